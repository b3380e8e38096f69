"""Section `data_config`: data sets besides the two files of `megatron_training`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from mindrl.config.section import (
    LARGEST,
    SECTION,
    Count,
    Fraction,
    Positive,
    PositiveInt,
    Tokens,
    Weight,
    is_path,
)


def _is_name(text: str) -> str:
    """Refuse what names no file and no metric."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", text, re.ASCII):
        need = "must be a name: 1 to 100 letters, digits, dots, - and _, the first no sign"
        raise PydanticCustomError("name", need)
    return text


def _are_paths(value: Any) -> Any:
    """Refuse what is neither a path nor some, in one sentence."""
    is_list = isinstance(value, (list, tuple)) and value
    for each in value if is_list else [value]:
        if not isinstance(each, str):
            raise PydanticCustomError("paths", "must be a path, or a list of paths")
        is_path(each)
    return tuple(value) if is_list else value


SetName = Annotated[str, AfterValidator(_is_name)]
DataPath = Annotated[str | tuple[str, ...], BeforeValidator(_are_paths)]


def paths_of(given: DataPath | None) -> tuple[str, ...]:
    """Return the paths that a key gives: none, one or several."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True, config=SECTION)
class TrainSet:
    """One of the sets that a run trains on.

    `data_config.train_sets` is a list of such sections, in the place of
    `megatron_training.data_path`.
    """

    name: SetName
    """Names its share and rewards among the metrics, unless its rows have a `data_source`."""
    data_path: DataPath
    """Its prompts: as `megatron_training.data_path`."""
    weight: Positive = 1.0
    """Its share of the prompts, over the sum of all weights. However often that goes over its rows,
    each is visited once before any is visited again."""
    data_source: str | None = None
    """Chooses the reward of its rows. None takes `data_config.source_column`, or else `name`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SourceReward:
    """The reward of the rows with one `data_source`.

    `data_config.rewards` is a list of such sections.
    """

    data_source: str
    """What the rows have in `data_config.source_column`, or the name of a set."""
    verifier_function: tuple[str, ...]
    """As `rl_config.verifier_function`, for these rows; the first measures accuracy on them."""
    verifier_weight: tuple[Weight, ...]
    """Weight of each, in the same order."""
    verifier_kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments of each, in the same order. Empty gives none to any."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class EvalSet:
    """A set on which progress is measured.

    `data_config.eval_sets` is a list of such sections; on the command line
    `data_config.eval_sets=[{name:math,data_path:math.jsonl,samples:8,temperature:0.6}]`.
    """

    name: SetName
    """Names its metrics, `eval/<name>/avg@8`, and the file of its answers."""
    data_path: DataPath
    """Its prompts: as `megatron_training.data_path`, with the columns of the training data."""
    samples: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    """Answers to each prompt, n of avg@n. More than one gives pass@2, pass@4, .. and pass@n too."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Divides the logits. 0 takes the most likely token each time."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus of the distribution that is sampled from."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] = -1
    """Most likely tokens that are sampled from. -1 or 0 keeps all."""
    max_tokens: Tokens | None = None
    """Longest answer in tokens. None takes `generate_config.sampling_config.max_tokens`."""
    data_source: str | None = None
    """Chooses the reward of its rows. None takes `data_config.source_column`, or else `name`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class DataConfig:
    """Data sets besides the two files of `megatron_training`."""

    train_sets: tuple[TrainSet, ...] = ()
    """Sets that are trained on, each with a weight."""
    source_column: str | None = None
    """Column of the `data_source` of a row, in all data files. None takes the name of its set."""
    rewards: tuple[SourceReward, ...] = ()
    """Reward functions by `data_source`. Where there are any, each `data_source` needs some; where
    there are none, `rl_config.verifier_function` rates all rows."""
    order: Literal["shuffled", "as_is", "by_column"] | None = None
    """Order of each training set: `shuffled`, each pass in a fresh order; `as_is`, as in the file;
    `by_column`, by the numbers in `order_column`. None takes `megatron_training.no_shuffle`."""
    order_column: str | None = None
    """With `by_column`: the column with a number, such as a difficulty, smallest first. Rows with
    the same number keep their order."""
    order_descending: bool = False
    """Largest first, as for a pass rate, whose largest is the easiest."""
    order_stages: PositiveInt | None = None
    """With `by_column`: cut the ordered rows into so many equal parts, one behind the other, each
    of which is shuffled. None shuffles nothing."""
    pass_rate_column: str | None = None
    """Column with a pass rate: of the training rows those stay whose rate lies within
    `pass_rate_low` and `pass_rate_high`. None keeps all."""
    pass_rate_low: Fraction = 0.0
    """Least pass rate that stays."""
    pass_rate_high: Fraction = 1.0
    """Largest pass rate that stays."""
    held_out_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the training prompts that is held out to be evaluated, in the place of
    `megatron_training.test_data_path`. Equal prompts stay together."""
    held_out_seed: Count = 0
    """Which prompts these are: equal seeds choose equal ones, whatever the order of the rows."""
    test_overlap_policy: Literal["error", "drop", "allow"] = "error"
    """What test prompts that are training prompts too do: end the run before it starts, leave the
    training prompts out, or nothing, where accuracy may count what is trained on."""
    eval_sets: tuple[EvalSet, ...] = ()
    """Sets that are evaluated when the held-out file would be, each with a name and sampling of its
    own."""
    best_by: str | None = None
    """The set of `eval_sets` whose avg@n says which model and which checkpoint is the best. None is
    the held-out file, `megatron_training.test_data_path`, or else the first of the sets."""

    @property
    def evaluates(self) -> bool:
        """Whether these keys say what is evaluated."""
        return bool(self.eval_sets) or self.held_out_fraction > 0
