"""The pictures of a run in a folder, each under a number of its content.

Batches carry numbers; a worker opens the file of a number when it needs the pixels. Pictures that
rows name by path are links to their files.
"""

from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

from PIL import Image

from mindrl.config.images import ImageConfig
from mindrl.errors import DataError
from mindrl.observability.output_files import output_errors, replace_file
from mindrl.observability.picture_names import picture_name
from mindrl.pictures.opening import opened_picture


def picture_number(content: bytes) -> int:
    """Return the number of an encoded picture, 1 to 2 ** 63 - 1."""
    return max(1, int.from_bytes(sha256(content).digest()[:8]) >> 1)


class PictureFolder:
    """Keeps pictures, and opens them; the last ones opened stay in memory."""

    def __init__(self, config: ImageConfig) -> None:
        """Set the folder and the limits; does not read files."""
        self.config, self.path = config, Path(config.folder).absolute()
        self._recent: OrderedDict[int, Image.Image] = OrderedDict()
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the opened pictures: another process opens its own."""
        return vars(self) | {"_recent": OrderedDict(), "_bytes": 0}

    def keep(self, content: bytes, source: Path | None = None) -> tuple[int, tuple[int, int]]:
        """Keep an encoded picture; return its number, and its width and height when opened.

        With `source`, the file that has this content, a link to it is kept.

        Raises:
            ValueError: Why the picture is refused.
            OutputError: The folder cannot be written.
        """
        number = picture_number(content)
        if number not in self._recent:
            self._remember(number, self._opened(content))
        file = self.file_of(number)
        if not file.is_file() or picture_number(file.read_bytes()) != number:
            with output_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                if source is not None:
                    made = file.with_name(f"{file.name}.{token_hex(4)}")
                    made.unlink(missing_ok=True)
                    made.symlink_to(source.absolute())
                    made.replace(file)
            if source is None:
                replace_file(file, content)
        return number, self._recent[number].size

    def picture(self, number: int) -> Image.Image:
        """Return a picture as RGB.

        Raises:
            DataError: Its file is missing, or has changed since the rows were read.
        """
        if (known := self._recent.get(number)) is not None:
            self._recent.move_to_end(number)
            return known
        try:
            self._remember(number, self._opened(self.content(number)))
        except ValueError as error:
            raise DataError(f"picture {self.file_of(number).resolve()}: {error}") from error
        return self._recent[number]

    def content(self, number: int) -> bytes:
        """Return an encoded picture; raises as `picture`."""
        file = self.file_of(number)
        try:
            content = file.read_bytes()
        except OSError as error:
            need = "all machines of a run need data_config.images.folder"
            raise DataError(f"picture {file}: {error.strerror or error}; {need}") from error
        if picture_number(content) != number:
            raise DataError(f"picture {file.resolve()} has changed since its row was read")
        return content

    def file_of(self, number: int) -> Path:
        """Return the file of a picture."""
        return self.path / picture_name(number)

    def _opened(self, content: bytes) -> Image.Image:
        return opened_picture(
            content,
            most_pixels=self.config.max_file_pixels,
            kept_pixels=self.config.max_pixels,
        )

    def _remember(self, number: int, image: Image.Image) -> None:
        self._recent[number] = image
        self._bytes += _nbytes(image)
        while self._bytes > self.config.cache_mib << 20 and len(self._recent) > 1:
            self._bytes -= _nbytes(self._recent.popitem(last=False)[1])


def _nbytes(image: Image.Image) -> int:
    return 3 * image.width * image.height
