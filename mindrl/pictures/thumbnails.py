"""Small copies of pictures in a run's folder, for people who read its samples."""

from collections import deque
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from PIL import Image

from mindrl.errors import DataError, OutputError
from mindrl.observability.output_files import output_errors, replace_file
from mindrl.pictures.folder import PictureFolder

_SIDE = 128
"""Most pixels of a side."""
MOST_FILES = 2000
"""Thumbnails of a run that are kept."""


def thumbnail(picture: Image.Image) -> bytes:
    """Return a small copy of a picture as a PNG file: pixels only, nothing else of its file."""
    small = picture.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    bare = Image.new("RGB", small.size)
    bare.paste(small)
    file = BytesIO()
    bare.save(file, "PNG")
    return file.getvalue()


class Thumbnails:
    """Writes the thumbnails of pictures that samples show, under the names of their numbers."""

    def __init__(self, pictures: PictureFolder, folder: Path) -> None:
        """Set where pictures are and where thumbnails go; writes nothing."""
        self.pictures, self.folder = pictures, folder
        self._written: deque[Path] = deque()

    def write(self, names: Iterable[str]) -> None:
        """Write those that are missing; remove the oldest of this process beyond the limit.

        Raises:
            OutputError: The folder cannot be written, or a picture cannot be read any more.
        """
        for name in dict.fromkeys(names):
            file = self.folder / f"{name}.png"
            if file.is_file():
                continue
            try:
                picture = self.pictures.picture(int(name, 16))
            except DataError as error:
                raise OutputError(f"thumbnail {file}: {error}") from error
            with output_errors(file):
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(file, thumbnail(picture))
                self._written.append(file)
                if len(self._written) > MOST_FILES:
                    self._written.popleft().unlink(missing_ok=True)
