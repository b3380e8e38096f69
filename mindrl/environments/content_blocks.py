"""Content blocks that tools and `reset` return: text and pictures, by the contract of TRL.

`[{"type": "image", "image": PIL picture or the bytes of a file}, {"type": "text", "text": "..."}]`.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from mindrl.environments.messages import GivenPicture
from mindrl.errors import EnvironmentFailedError

_KINDS = ("text", "image")
"""Types of blocks; each names the key of its content too."""
_PRINTED = ("CMYK", "YCbCr", "HSV", "LAB")
"""Modes of colours that PNG files lack."""


def is_blocks(value: object) -> bool:
    """Return whether a value is a list of content blocks; an empty list is none."""
    return isinstance(value, list) and bool(value) and all(map(_is_block, value))


def read_blocks(blocks: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[GivenPicture, ...]]:
    """Return the text of content blocks, and its pictures.

    Raises:
        EnvironmentFailedError: A block has no text or no picture.
    """
    text, pictures = "", list[GivenPicture]()
    for block in blocks:
        if block["type"] == "image":
            pictures.append(GivenPicture(at=len(text), content=_encoded(block["image"])))
            continue
        if not isinstance(found := block["text"], str):
            kind = type(found).__name__
            raise EnvironmentFailedError(f"the text of a content block is {kind}; needed str")
        text += found
    return text, tuple(pictures)


def _is_block(value: object) -> bool:
    return isinstance(value, Mapping) and any(
        value.get("type") == kind and kind in value for kind in _KINDS
    )


def _encoded(picture: object) -> bytes:
    """Return the bytes of a file; a PIL picture becomes a PNG file of its pixels."""
    if isinstance(picture, bytes):
        return picture
    # Imported late: most environments show no picture.
    from PIL import Image  # noqa: PLC0415

    if not isinstance(picture, Image.Image):
        need = "needed a PIL picture or the bytes of a file"
        raise EnvironmentFailedError(
            f"the picture of a content block is {type(picture).__name__}; {need}"
        )
    file = BytesIO()
    try:
        pixels = picture.convert("RGB") if picture.mode in _PRINTED else picture
        pixels.save(file, "PNG")
    except (OSError, ValueError, SyntaxError) as error:
        raise EnvironmentFailedError(f"a picture cannot be written as PNG: {error}") from error
    return file.getvalue()
