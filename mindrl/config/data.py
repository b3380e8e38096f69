"""Section `data_config`: data sets besides the two files of `megatron_training`."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from mindrl.config.section import LARGEST, SECTION, PathText, PositiveInt


def _is_name(text: str) -> str:
    """Refuse what names no file and no metric."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", text, re.ASCII):
        need = "must be a name: 1 to 100 letters, digits, dots, - and _, the first no sign"
        raise PydanticCustomError("name", need)
    return text


SetName = Annotated[str, AfterValidator(_is_name)]


@dataclass(frozen=True, kw_only=True, config=SECTION)
class EvalSet:
    """A set on which progress is measured.

    `data_config.eval_sets` is a list of such sections; on the command line
    `data_config.eval_sets=[{name:math,data_path:math.jsonl,samples:8,temperature:0.6}]`.
    """

    name: SetName
    """Names its metrics, `eval/<name>/avg@8`, and the file of its answers."""
    data_path: PathText
    """Its prompts: a `.jsonl` or `.parquet` file with the columns of the training data."""
    samples: PositiveInt = 1
    """Answers to each prompt, n of avg@n. More than one gives pass@2, pass@4, .. and pass@n too."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    """Divides the logits. 0 takes the most likely token each time."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus of the distribution that is sampled from."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] = -1
    """Most likely tokens that are sampled from. -1 or 0 keeps all."""
    max_tokens: PositiveInt | None = None
    """Longest answer in tokens. None takes `generate_config.sampling_config.max_tokens`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class DataConfig:
    """Data sets besides the two files of `megatron_training`."""

    eval_sets: tuple[EvalSet, ...] = ()
    """Sets that are evaluated when the held-out file would be, each with a name and sampling of its
    own."""
    best_by: str | None = None
    """The set of `eval_sets` whose avg@n says which model and which checkpoint is the best. None is
    the held-out file, `megatron_training.test_data_path`, or else the first of the sets."""
