"""Pictures from untrusted sources: what is refused, and what becomes 8-bit RGB."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mindrl.config.images import ImageConfig
from mindrl.errors import DataError
from mindrl.pictures.folder import PictureFolder, picture_number
from mindrl.pictures.opening import opened_picture


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def opened(content: bytes, *, most: int = 10_000, kept: int = 10_000) -> Image.Image:
    return opened_picture(content, most_pixels=most, kept_pixels=kept)


def bomb() -> bytes:
    """Return a PNG of 179 bytes that says it has 2.5 billion pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100_000)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


RED = Image.new("RGB", (30, 20), (200, 10, 10))


def mistyped(tag: int, kind: int, value: bytes) -> bytes:
    """Return a JPEG to be turned by 90 degrees, whose other EXIF tag has another type."""
    entries = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack(">HHI4s", tag, kind, 4, value)
    tags = b"MM\0*" + struct.pack(">IH", 8, 2) + entries + bytes(4)
    return encoded(RED, "JPEG", exif=b"Exif\0\0" + tags)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "decompression bomb": (bomb, "exceeds limit|50000 x 50000 pixels"),
    "more pixels than allowed": (lambda: encoded(Image.new("RGB", (101, 100))), "101 x 100 pixels"),
    "cut": (lambda: encoded(Image.effect_noise((30, 20), 99).convert("RGB"))[:-40], "broken"),
    "text": (lambda: b"not a picture", "not a picture; needed PNG"),
    "script of another decoder": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", "not a picture"),
    "empty": (lambda: b"", "not a picture"),
    "animated": (
        lambda: encoded(RED, "GIF", save_all=True, append_images=[Image.new("RGB", (30, 20))]),
        "several frames",
    ),
    "EXIF resolution of letters": (lambda: mistyped(0x011A, 2, b"72\0\0"), "broken EXIF data"),
    "EXIF format of letters": (lambda: mistyped(0x0153, 2, b"72\0\0"), "broken EXIF data"),
    "thin": (lambda: encoded(Image.new("RGB", (1, 300))), "1 x 300 pixels"),
    "16 bits": (
        lambda: encoded(Image.fromarray(np.full((20, 30), 40_000, np.uint16))),
        "mode I;16",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_and_unfit_pictures_are_refused_by_name(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        opened(make())


def test_other_modes_become_rgb_and_transparent_parts_white() -> None:
    cmyk = opened(encoded(RED.convert("CMYK"), "JPEG", quality=100))
    assert cmyk.mode == "RGB"
    assert np.abs(np.asarray(cmyk, np.int32) - np.asarray(RED, np.int32)).max() < 40
    layer = Image.new("RGBA", (30, 20), (0, 0, 0, 0))
    assert np.asarray(opened(encoded(layer))).min() == 255
    palette = RED.convert("P")
    assert opened(encoded(palette)).getpixel((0, 0)) == palette.convert("RGB").getpixel((0, 0))
    assert (
        opened(encoded(RED.convert("L"))).getpixel((5, 5))
        == (RED.convert("L").getpixel((5, 5)),) * 3
    )


def test_exif_turns_a_picture_and_a_large_one_is_scaled_down() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert opened(encoded(RED, "JPEG", exif=exif)).size == (20, 30)
    assert opened(encoded(RED), kept=150).size == (15, 10)
    assert opened(encoded(RED), kept=600).size == (30, 20)


def test_a_picture_that_is_scaled_down_is_not_thinner_than_allowed() -> None:
    """1,414 x 7.07 pixels would be 202 times as wide as high after rounding."""
    assert opened(encoded(Image.new("RGB", (2000, 10))), most=20_000).size == (1400, 7)
    assert opened(encoded(Image.new("RGB", (10, 2000))), most=20_000).size == (7, 1400)
    assert opened(encoded(Image.new("RGB", (1000, 10))), most=20_000, kept=100).size == (100, 1)


def folder(tmp_path: Path, **limits: Any) -> PictureFolder:
    return PictureFolder(ImageConfig(folder=str(tmp_path / "kept"), **limits))


def test_a_picture_is_found_by_the_number_of_its_content(tmp_path: Path) -> None:
    content, kept = encoded(RED), folder(tmp_path)
    number, size = kept.keep(content)
    assert (number, size) == (picture_number(content), (30, 20))
    assert kept.keep(content) == (number, size)
    again = folder(tmp_path).picture(number)
    assert (again.mode, again.getpixel((3, 3))) == ("RGB", (200, 10, 10))


def test_a_picture_of_a_path_is_a_link_whose_change_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "red.png"
    source.write_bytes(encoded(RED))
    number, _ = folder(tmp_path).keep(source.read_bytes(), source)
    (link,) = (tmp_path / "kept").iterdir()
    assert link.readlink() == source
    source.write_bytes(encoded(RED.rotate(180).resize((10, 10))))
    with pytest.raises(DataError, match=r"red.png has changed since its row was read"):
        folder(tmp_path).picture(number)
    source.unlink()
    with pytest.raises(DataError, match="No such file"):
        folder(tmp_path).picture(number)


def test_the_memory_for_opened_pictures_is_bounded(tmp_path: Path) -> None:
    kept = folder(tmp_path, cache_mib=1)
    # 0.9 MB each.
    numbers = [kept.keep(encoded(Image.new("RGB", (640, 480), (at, 0, 0))))[0] for at in range(3)]
    assert [*kept._recent] == numbers[-1:]
    assert kept.picture(numbers[0]).getpixel((0, 0)) == (0, 0, 0)
    assert [*kept._recent] == [numbers[0]]
