"""Environments of the tests that show pictures, as users write them."""

import random
from io import BytesIO
from typing import Any
from zlib import crc32

from PIL import Image

NAMES = (
    *("one", "two", "no picture", "a number", "no text", "a broken one", "an empty one"),
    *("a huge one", "a long one", "an animated one", "a program", "a large file"),
    "a very large file",
)
"""What can be shown."""
Blocks = list[dict[str, Any]]
TAIL = b"\0" * 64


def drawn(size: tuple[int, int], seed: int) -> Image.Image:
    """Return a picture of random colours."""
    width, height = size
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * width * height))


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the file of a picture."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def header_of(width: int, height: int) -> bytes:
    """Return a PNG file that claims a size and has no pixels."""
    small = file_of(drawn((8, 8), 0), "PNG")
    head = small[12:16] + width.to_bytes(4) + height.to_bytes(4) + small[24:29]
    return small[:12] + head + crc32(head).to_bytes(4) + small[33:]


def shown(what: str) -> Blocks:
    """Return content blocks by name."""
    one = {"type": "image", "image": drawn((84, 56), 1)}
    files: dict[str, Any] = {
        "a broken one": file_of(drawn((84, 56), 1), "PNG")[:90],
        "an empty one": b"",
        "a huge one": header_of(10_000, 10_000),
        "a long one": file_of(Image.new("RGB", (201, 1)), "PNG"),
        "an animated one": file_of(
            drawn((8, 8), 1), "GIF", save_all=True, append_images=[drawn((8, 8), 2)]
        ),
        "a program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + TAIL,
        "a large file": random.Random(1).randbytes(70_000),
        "a very large file": random.Random(1).randbytes(3_000_000),
    }
    match what:
        case "one":
            return [one, {"type": "text", "text": "look"}]
        case "two":
            other = file_of(drawn((56, 56), 2), "JPEG")
            text = {"type": "text", "text": "<|image_pad|><image>"}
            return [{"type": "text", "text": "a "}, one, text, {"type": "image", "image": other}]
        case "no picture":
            return [{"type": "text", "text": "no"}, {"type": "text", "text": "ne"}]
        case "a number":
            return [{"type": "image", "image": 5}]
        case "no text":
            return [{"type": "text", "text": 5}]
    return [{"type": "image", "image": files[what]}]


class Gallery:
    """A game that shows what the policy names; `opens` is what it begins with."""

    def __init__(self, opens: str = "") -> None:
        self.opens = opens

    def reset(self, **row: object) -> Blocks | str | None:
        if self.opens == "its row":
            return str(row)
        return shown(self.opens) if self.opens else None

    def step(self, text: str) -> tuple[Blocks | str, float, bool]:
        if text == "random":
            return [{"type": "image", "image": drawn((60, 100), random.randrange(99))}], 0.0, False
        return shown(text) if text in NAMES else text, 0.5, False


def look(what: str) -> Blocks:
    """Show something.

    Args:
        what: Its name.
    """
    return shown(what)
