"""Section `data_config`: data sets besides the two files of `megatron_training`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from mindrl.config.generate import Truncation
from mindrl.config.images import ImageConfig
from mindrl.config.section import (
    SECTION,
    Count,
    Fraction,
    Positive,
    PositiveInt,
    TokenCount,
    Weight,
    is_path,
)


def _is_name(text: str) -> str:
    """Refuse text that cannot be part of file names and metric names."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", text, re.ASCII):
        need = (
            "must be a name of 1 to 100 letters, digits, dots, - and _ that starts with a "
            "letter or digit"
        )
        raise PydanticCustomError("name", need)
    return text


def _are_paths(value: Any) -> Any:
    """Convert a path or a list of paths, or refuse the value with one sentence."""
    is_list = isinstance(value, (list, tuple)) and value
    for each in value if is_list else [value]:
        if not isinstance(each, str):
            raise PydanticCustomError("paths", "must be a path or a list of paths")
        is_path(each)
    return tuple(value) if is_list else value


SetName = Annotated[str, AfterValidator(_is_name)]
DataPath = Annotated[str | tuple[str, ...], BeforeValidator(_are_paths)]


def paths_of(given: DataPath | None) -> tuple[str, ...]:
    """Return the paths of a key: none, one or several."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True, config=SECTION)
class TrainSet:
    """One of the sets that a run trains on.

    `data_config.train_sets` is a list of such sections, instead of `megatron_training.data_path`.
    """

    name: SetName
    """Name of the set in metrics, for its share and rewards, unless its rows have a
    `data_source`."""
    data_path: DataPath
    """Its prompts, as in `megatron_training.data_path`."""
    weight: Positive = 1.0
    """Its share of the prompts, relative to the sum of all weights. Each row is visited once before
    any is repeated, in every pass."""
    data_source: str | None = None
    """Selects the reward of its rows. None uses `data_config.source_column`, or else `name`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SourceReward:
    """Rewards of the rows with one `data_source`.

    `data_config.rewards` is a list of such sections.
    """

    data_source: str
    """Value of `data_config.source_column` in the rows, or the name of a set."""
    verifier_function: tuple[str, ...]
    """As `rl_config.verifier_function`, for these rows; the first measures their accuracy."""
    verifier_weight: tuple[Weight, ...]
    """Weight of each, in the same order."""
    verifier_kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments of each, in the same order. Empty passes none."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class EvalSet(Truncation):
    """A set for evaluation.

    `data_config.eval_sets` is a list of such sections; on the command line
    `data_config.eval_sets=[{name:math,data_path:math.jsonl,samples:8,temperature:0.6}]`.
    """

    name: SetName
    """Name of the set in metrics, `eval/<name>/avg@8`, and of the file of its answers."""
    data_path: DataPath
    """Its prompts, as in `megatron_training.data_path`, with the columns of the training data."""
    samples: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    """Answers to each prompt, n of avg@n. More than one also gives pass@2, pass@4, .. and
    pass@n."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Divides the logits. 0 uses the most likely token each time."""
    max_tokens: TokenCount | None = None
    """Longest answer in tokens. None uses `generate_config.sampling_config.max_tokens`."""
    data_source: str | None = None
    """Selects the reward of its rows. None uses `data_config.source_column`, or else `name`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class DataConfig:
    """Data sets besides the two files of `megatron_training`."""

    train_sets: tuple[TrainSet, ...] = ()
    """Training sets, each with a weight."""
    source_column: str | None = None
    """Column with the `data_source` of a row, in all data files. None uses the name of its set."""
    rewards: tuple[SourceReward, ...] = ()
    """Reward functions by `data_source`. If there are any, each `data_source` needs an entry;
    otherwise `rl_config.verifier_function` scores all rows."""
    order: Literal["shuffled", "as_is", "by_column"] | None = None
    """Order of each training set: `shuffled`, each pass in a new order; `as_is`, as in the file;
    `by_column`, by the numbers in `order_column`. None uses `megatron_training.no_shuffle`."""
    order_column: str | None = None
    """With `by_column`: the column with a number, such as a difficulty, smallest first. Rows with
    equal numbers keep their order."""
    order_descending: bool = False
    """Sort the largest first, for example by pass rate, where the largest is the easiest."""
    order_stages: PositiveInt | None = None
    """With `by_column`: split the sorted rows into this many equal parts, in order, and shuffle
    each. None does not shuffle."""
    pass_rate_column: str | None = None
    """Column with a pass rate: only training rows with a rate between `pass_rate_low` and
    `pass_rate_high` are kept. None keeps all."""
    pass_rate_low: Fraction = 0.0
    """Smallest pass rate that is kept."""
    pass_rate_high: Fraction = 1.0
    """Largest pass rate that is kept."""
    held_out_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of the training prompts that is held out for evaluation, instead of
    `megatron_training.test_data_path`. Equal prompts stay together."""
    held_out_seed: Count = 0
    """Seed that selects the held-out prompts: equal seeds select equal prompts in any order of
    rows."""
    test_overlap_policy: Literal["error", "drop", "allow"] = "error"
    """What to do if a test prompt is also a training prompt: `error` refuses the run before it
    starts, `drop` leaves it out of training, `allow` keeps it, and accuracy may then count trained
    prompts."""
    eval_sets: tuple[EvalSet, ...] = ()
    """Sets that are evaluated when the held-out file would be, each with a name and its own
    sampling."""
    best_by: str | None = None
    """The set of `eval_sets` whose avg@n determines the best model and checkpoint. None uses the
    held-out file, `megatron_training.test_data_path`, or else the first of the sets."""

    images: ImageConfig = ImageConfig()
    """Pictures of rows, for a model with a vision tower:
    [Train on pictures](../tutorials/train-on-pictures.md)."""

    @property
    def evaluates(self) -> bool:
        """Whether these keys configure an evaluation."""
        return bool(self.eval_sets) or self.held_out_fraction > 0
