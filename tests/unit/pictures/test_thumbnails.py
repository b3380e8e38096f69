"""Thumbnails of pictures: small, encoded anew, and few."""

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from mindrl.config.images import ImageConfig
from mindrl.errors import OutputError
from mindrl.pictures import thumbnails
from mindrl.pictures.folder import PictureFolder
from mindrl.pictures.thumbnails import Thumbnails, thumbnail

HOSTILE = b"<script>alert(1)</script>"


def encoded(size: tuple[int, int], colour: str) -> bytes:
    """Return a PNG whose metadata holds markup, with more of it after its end."""
    notes, file = PngImagePlugin.PngInfo(), BytesIO()
    notes.add_text("Comment", HOSTILE.decode())
    Image.new("RGB", size, colour).save(file, "PNG", pnginfo=notes, icc_profile=HOSTILE)
    return file.getvalue() + HOSTILE


def test_a_thumbnail_has_pixels_and_nothing_else_of_the_file(tmp_path: Path) -> None:
    pictures = PictureFolder(ImageConfig(folder=str(tmp_path / "kept")))
    content = encoded((400, 200), "red")
    assert content.count(HOSTILE) >= 2
    number, _ = pictures.keep(content)
    written = Thumbnails(pictures, tmp_path / "run/pictures")
    written.write([f"{number:016x}", f"{number:016x}"])
    (file,) = (tmp_path / "run/pictures").iterdir()
    assert file.name == f"{number:016x}.png"
    found = file.read_bytes()
    assert HOSTILE not in found
    with Image.open(BytesIO(found)) as image:
        assert (image.format, image.size, image.info) == ("PNG", (128, 64), {})
        assert image.convert("RGB").getpixel((5, 5)) == (255, 0, 0)
    # Profiles that a decoder attached to the opened picture stay behind too.
    with Image.open(BytesIO(content)) as image:
        assert b"iCCP" in content
        assert b"iCCP" not in thumbnail(image)


def test_the_oldest_thumbnails_leave_and_a_lost_picture_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thumbnails, "MOST_FILES", 2)
    pictures = PictureFolder(ImageConfig(folder=str(tmp_path / "kept")))
    names = [
        f"{pictures.keep(encoded((28, 28), colour))[0]:016x}" for colour in ("red", "green", "blue")
    ]
    written = Thumbnails(pictures, tmp_path / "shown")
    written.write(names)
    assert {file.stem for file in (tmp_path / "shown").iterdir()} == {*names[1:]}
    with pytest.raises(OutputError, match=r"thumbnail .*00ab\.png: picture .*No such file"):
        written.write([f"{0xAB:016x}"])
