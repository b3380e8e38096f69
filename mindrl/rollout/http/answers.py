"""What servers answer, read strictly: a field that is missing or of another kind is garbage."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Ending = Literal["stop", "length", "abort"]
STRICT = ConfigDict(strict=True)
TokenId = Annotated[int, Field(ge=0, lt=1 << 63)]
Logprob = Annotated[float, Field(allow_inf_nan=False)]
_Form = TypeVar("_Form")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A response, or as much of one as there is."""

    token_ids: list[int]
    logprobs: list[float]
    """Of each token; empty where none were asked for."""
    ending: Ending
    versions: frozenset[str]
    """Of the weights that drew it; empty where nothing is said of them."""


def read(form: type[_Form], text: bytes) -> _Form:
    """Read JSON into a form.

    Raises:
        ValueError: It is no JSON, or another; says where.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(form)
    try:
        found: _Form = adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise ValueError(f"{where}: {first['msg']}") from error
    return found
