"""Rotary position settings of config.json, in the formats of transformers 4 and 5."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(strict=True, extra="forbid")
_Factor = Annotated[float, Field(ge=1.0)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinearScaling:
    """Divides all frequencies by one factor."""

    factor: _Factor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Llama3Scaling:
    """Divides low frequencies and keeps high ones; field names follow config.json."""

    factor: _Factor
    low_freq_factor: Annotated[float, Field(gt=0.0)]
    """Wavelengths above `original_max_position_embeddings` / this are low frequencies."""
    high_freq_factor: Annotated[float, Field(gt=0.0)]
    """Wavelengths below `original_max_position_embeddings` / this are high frequencies."""
    original_max_position_embeddings: Annotated[int, Field(ge=1)]

    def __post_init__(self) -> None:
        """Refuse an empty range between low and high, which would divide by zero."""
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )


RopeScaling = LinearScaling | Llama3Scaling
_SCALINGS: Mapping[str, type[RopeScaling]] = {"linear": LinearScaling, "llama3": Llama3Scaling}
_SHARES: Mapping[str, float] = {
    "glm4_moe": 0.5,
    "qwen3_5_text": 0.25,
    "qwen3_5_moe_text": 0.25,
    "qwen3_next": 0.25,
}
"""Part of each head that is rotated if config.json omits it, in families that rotate a part."""
_WITH_PICTURES = ("qwen3_5_text", "qwen3_5_moe_text", "qwen2_5_vl", "qwen3_vl")
"""Families with settings of positions in pictures, which change nothing in a text."""


def rope_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary section of a config.json; empty if there is none."""
    # transformers 5 writes rope_parameters with rope_theta in it, earlier versions write both
    # separately; transformers 5 prefers the old name.
    found = values.get("rope_scaling") or values.get("rope_parameters")
    return found if isinstance(found, dict) else {}


def rope_type(values: Mapping[str, Any]) -> str:
    """Return the name of the scaling rule of the frequencies."""
    rope = rope_values(values)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    # Folders of transformers 4 name positions in pictures so; their frequencies are the default.
    return "default" if kind == "mrope" else kind


def rope_theta(values: Mapping[str, Any]) -> Any:
    """Return the base of the frequencies; None if config.json has none."""
    return rope_values(values).get("rope_theta") or values.get("rope_theta")


def rope_scaling(values: Mapping[str, Any]) -> RopeScaling | None:
    """Return the scaling of the frequencies; None for the default and for unknown rules."""
    scaling = _SCALINGS.get(rope_type(values))
    return scaling(**rope_numbers(values, scaling)) if scaling else None


def rotary_share(values: Mapping[str, Any]) -> Any:
    """Return the part of each head that is rotated, with the default of its family."""
    for section in (rope_values(values), values):
        if (found := section.get("partial_rotary_factor")) is not None:
            return found
    return _SHARES.get(values["model_type"], 1.0)


def rope_numbers(values: Mapping[str, Any], scaling: type) -> dict[str, Any]:
    """Return the fields of a scaling that config.json has."""
    named = {field.name for field in fields(scaling)}
    return {name: value for name, value in rope_values(values).items() if name in named}


def unsupported_rope(values: Mapping[str, Any], scalings: Collection[str]) -> Iterator[str]:
    """Yield rotary settings that transformers and the engines would compute differently.

    All three support `scalings` in this family, besides the default.
    """
    rope, kind = dict(rope_values(values)), rope_type(values)
    scaling = _SCALINGS[kind] if kind in scalings else None
    needed = {field.name for field in fields(scaling)} if scaling else set()
    known = needed | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    if values["model_type"] in _WITH_PICTURES:
        known |= {"mrope_section", "mrope_interleaved"}
    if kind not in {"default", *scalings} or rope.keys() - known:
        yield f"rope scaling {rope} is not supported; only {', '.join(['default', *scalings])}"
    elif scaling:
        for name in sorted(needed - rope_numbers(values, scaling).keys()):
            yield f"rope scaling {rope} has no {name!r}"
    length = values.get("original_max_position_embeddings")
    if scaling and length not in (None, rope.get("original_max_position_embeddings")):
        # transformers would use it for the scaling, the rollout engine would not.
        yield (
            f"original_max_position_embeddings={length!r} outside of rope_scaling is not supported"
        )
    part = rotary_share(values)
    if part != 1.0 and values["model_type"] not in _SHARES:
        yield f"partial_rotary_factor={part!r} is not supported; only 1.0"
    if kind == "linear" and isinstance(rope.get("factor"), int):
        # the rollout engine reads an integer as a list.
        yield f"rope scaling {rope} needs a decimal point in its factor"
