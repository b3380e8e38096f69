"""Strict parsing of server answers: missing fields and wrong types are errors."""

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

Ending = Literal["stop", "length", "abort"]
STRICT = ConfigDict(strict=True)
TokenId = Annotated[int, Field(ge=0, lt=1 << 63)]
Logprob = Annotated[float, Field(allow_inf_nan=False)]
_Form = TypeVar("_Form")


@dataclass(frozen=True, config=STRICT)
class ScoredToken:
    """The log-prob of a token, as a server writes it."""

    logprob: Logprob


@plain_dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A response, or the part of it that exists."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-prob of each token; empty if not requested."""
    ending: Ending
    versions: frozenset[str]
    """Versions of the weights that sampled it; empty if not reported."""


def read(form: type[_Form], text: bytes) -> _Form:
    """Parse JSON into a form.

    Raises:
        ValueError: It is not JSON of this form; names the field.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(form)
    try:
        found: _Form = adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise ValueError(f"{where}: {first['msg']}") from error
    return found
