"""Pictures of rows: verl's column `images` with `<image>` in the text, or TRL's parts of messages.

Inside mindrl a message is text, and `<image>` marks the place of a picture in it.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage, PlacedImage
from mindrl.config.images import ImageConfig
from mindrl.data.rows import Row, shown
from mindrl.errors import DataError
from mindrl.observability.regular_files import read_regular
from mindrl.pictures.folder import PictureFolder, picture_number

if TYPE_CHECKING:
    from mindrl.pictures.patches import PatchMaker

MARK = "<image>"
_COLUMNS = ("images", "image")
_PICTURES = ("image", "image_url")
"""Types of a message's parts that are pictures."""
_BASE64 = ";base64,"
_PLACE_IN_FILE = re.compile(r"(:\d+|, row \d+.*)$")
"""Matches what follows the file in the place of a row."""


class KeptImage(NamedTuple):
    """A picture of a row or an environment, which is kept."""

    number: int
    tokens: int


def joined_parts(where: str, content: Sequence[Any]) -> str:
    """Return a message's parts of text and pictures as text with marks.

    Raises:
        DataError: A part is neither.
    """
    found = []
    for at, part in enumerate(content, start=1):
        # Parquet fills keys that only other parts have with null.
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if kind == "text" else None
        if isinstance(text, str):
            found.append(text)
        elif kind in _PICTURES:
            found.append(MARK)
        else:
            need = "needed a part of type text or image"
            raise DataError(f"{where}, part {at} is {shown(part)}; {need}")
    return "".join(found)


def has_parts(content: Sequence[Any]) -> bool:
    """Return whether a message's content has parts of text or pictures."""
    return bool(_kinds(content) & {"text", *_PICTURES})


def pictures_of(
    images: "RowImages | None", row: Row, messages: Sequence[ChatMessage], prompt: Any
) -> tuple[KeptImage, ...]:
    """Keep the pictures of a row; `prompt` is the value of its prompt column.

    Raises:
        DataError: As `RowImages.keep`, or there are pictures but the model reads none (`images` is
            None).
    """
    if images is not None:
        return images.keep(row, messages, prompt)
    is_marked = any(MARK in message["content"] for message in messages)
    if is_marked and (any(_of_column(row)) or _has_picture_parts(prompt)):
        raise DataError(
            f"{row.place} has pictures, and actor_config.load names a model without a vision "
            "tower, or of Qwen3.5, of which mindrl trains the text part alone; needed a "
            "vision-language model, such as Qwen2.5-VL"
        )
    return ()


def with_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as chat templates of vision-language models take it."""
    pieces = message["content"].split(MARK)
    if len(pieces) == 1:
        return message
    parts: list[dict[str, str]] = []
    for at, piece in enumerate(pieces):
        parts += [{"type": "image"}] if at else []
        parts += [{"type": "text", "text": piece}] if piece else []
    return {**message, "content": parts}


@dataclass(frozen=True)
class _InFile:
    """The place of a kept picture's bytes in a column."""

    number: int


class KeptColumns(Mapping[str, Any]):
    """Columns of a row; those with kept pictures are read from their files at each look."""

    def __init__(self, folder: PictureFolder, stored: Mapping[str, Any]) -> None:
        self.folder, self.stored = folder, stored

    def __getitem__(self, name: str) -> Any:
        return _with(self.stored[name], _InFile, lambda each: self.folder.content(each.number))

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def _with(value: Any, kind: type | tuple[type, ...], changed: Callable[[Any], Any]) -> Any:
    """Return a value of a column with its parts of some types changed."""
    match value:
        case _ if isinstance(value, kind):
            return changed(value)
        case dict():
            return {name: _with(each, kind, changed) for name, each in value.items()}
        case list() | tuple():
            return [_with(each, kind, changed) for each in value]
    return value


@dataclass(frozen=True, kw_only=True)
class RowImages:
    """Keeps the pictures of rows, and places their tokens in prompts."""

    model: str
    """Folder of the model; its image processor counts the tokens."""
    config: ImageConfig
    token: int
    """Token that stands for a part of a picture."""

    @cached_property
    def folder(self) -> PictureFolder:
        """Where the pictures are kept."""
        return PictureFolder(self.config)

    @cached_property
    def maker(self) -> "PatchMaker":
        """The model's image processor."""
        # Imported late: it loads torch, which rows of text do not need.
        from mindrl.pictures.patches import PatchMaker  # noqa: PLC0415

        return PatchMaker(self.model)

    def keep(self, row: Row, messages: Sequence[ChatMessage], prompt: Any) -> tuple[KeptImage, ...]:
        """Keep the pictures of a row; `prompt` is the value of its prompt column.

        Raises:
            DataError: A picture is refused, or their number differs from the marks in the messages.
        """
        own, column = [*_of_messages(prompt)], [*_of_column(row)]
        if own and column:
            need = "needed them in one place"
            raise DataError(f"{row.place}: pictures in its messages and in a column; {need}")
        given = own or column
        marks = sum(message["content"].count(MARK) for message in messages)
        if marks != len(given):
            raise DataError(
                f"{row.place}: {marks} {MARK} in the text and {len(given)} pictures; needed as many"
            )
        if len(given) > self.config.max_per_prompt:
            raise DataError(
                f"{row.place}: {len(given)} pictures; "
                f"data_config.images.max_per_prompt={self.config.max_per_prompt}"
            )
        return tuple(
            self._kept(f"{row.place}, picture {at}", row, each)
            for at, each in enumerate(given, start=1)
        )

    def keep_given(self, contents: Sequence[bytes]) -> tuple[KeptImage, ...]:
        """Keep encoded pictures that an environment gave.

        Raises:
            DataError: One is refused.
        """
        found = []
        for at, content in enumerate(contents, start=1):
            try:
                number, size = self.folder.keep(content)
                found.append(KeptImage(number, self.maker.tokens(size)))
            except ValueError as error:
                raise DataError(f"picture {at} of its answer: {error}") from error
        return tuple(found)

    def placed(
        self, place: str, token_ids: Sequence[int], images: Sequence[KeptImage]
    ) -> tuple[tuple[int, ...], tuple[PlacedImage, ...]]:
        """Give each picture its tokens in rendered token ids; return these and the places.

        Raises:
            DataError: The prompt has not one placeholder for each picture.
        """
        found = token_ids.count(self.token)
        if found != len(images):
            raise DataError(
                f"{place}: the rendered prompt has {found} image tokens for {len(images)} pictures;"
                " needed one for each: a chat template with pictures, and no such token in the text"
            )
        expanded: list[int] = []
        places, left = [], iter(images)
        for token in token_ids:
            if token != self.token:
                expanded.append(token)
                continue
            image = next(left)
            places.append(PlacedImage(image.number, len(expanded), image.tokens))
            expanded += [token] * image.tokens
        return tuple(expanded), tuple(places)

    def as_paths(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns of a row with the paths of kept pictures in place of their bytes."""

        def path_of(value: bytes | _InFile) -> str | bytes:
            number = picture_number(value) if isinstance(value, bytes) else value.number
            file = self.folder.file_of(number)
            # Bytes of another kind are no picture.
            return value if isinstance(value, bytes) and not file.is_file() else str(file)

        stored = columns.stored if isinstance(columns, KeptColumns) else columns
        return {name: _with(value, (bytes, _InFile), path_of) for name, value in stored.items()}

    def in_files(self, columns: Mapping[str, Any], kept: Sequence[KeptImage]) -> "KeptColumns":
        """Return columns of a row without the bytes of its kept pictures in memory."""
        numbers = {each.number for each in kept}

        def stored(content: bytes) -> bytes | _InFile:
            number = picture_number(content)
            return _InFile(number) if number in numbers else content

        return KeptColumns(
            self.folder, {name: _with(value, bytes, stored) for name, value in columns.items()}
        )

    def _kept(self, where: str, row: Row, given: Any) -> KeptImage:
        try:
            content, source = _content(row, given)
            number, size = self.folder.keep(content, source)
            return KeptImage(number, self.maker.tokens(size))
        except (ValueError, OSError) as error:
            raise DataError(f"{where}: {error}") from error


def image_notes(images: RowImages | None, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield how the pictures of a run become tokens."""
    if images is not None:
        token = tokenizer.convert_ids_to_tokens(images.token)
        yield f"pictures become {token} by {images.maker.name}, kept in {images.folder.path}"


def _kinds(content: Sequence[Any]) -> set[str]:
    """Return the types of a message's parts."""
    kinds = (part.get("type") for part in content if isinstance(part, Mapping))
    return {kind for kind in kinds if isinstance(kind, str)}


def _has_picture_parts(prompt: Any) -> bool:
    """Return whether a message of a prompt column has parts with pictures."""
    messages = prompt if isinstance(prompt, list) else ()
    contents = (each.get("content") for each in messages if isinstance(each, Mapping))
    return any(
        isinstance(each, list) and not _kinds(each).isdisjoint(_PICTURES) for each in contents
    )


def _of_column(row: Row) -> Iterator[Any]:
    for column in _COLUMNS:
        value = row.values.get(column)
        found = value if isinstance(value, (list, tuple)) else [value]
        if given := [each for each in found if each not in (None, "")]:
            yield from given
            return


def _of_messages(prompt: Any) -> Iterator[Any]:
    """Yield the pictures that parts of messages hold themselves."""
    for message in prompt if isinstance(prompt, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, Mapping):
                continue
            linked = part.get("image_url")
            found = linked.get("url") if isinstance(linked, Mapping) else linked
            found = part.get("image") if found is None else found
            if part.get("type") in _PICTURES and found is not None:
                yield found


def _content(row: Row, given: Any) -> tuple[bytes, Path | None]:
    """Return an encoded picture, and its file if it is one.

    Raises:
        ValueError: It is no picture in a known form.
        OSError: Its file cannot be read.
    """
    match given:
        case bytes():
            return given, None
        case {"bytes": bytes(content)}:
            return content, None
        case {"path": str(path)}:
            return _of_path(row, path)
        case str(text) if text.startswith("data:") and _BASE64 in text:
            try:
                return base64.b64decode(text.partition(_BASE64)[2], validate=True), None
            except binascii.Error as error:
                raise ValueError(f"not base64 ({error})") from error
        case str(path):
            return _of_path(row, path)
        case Image.Image():
            file = BytesIO()
            given.save(file, "PNG")
            return file.getvalue(), None
    need = "needed a path, bytes, or an object with bytes or path"
    raise ValueError(f"{shown(given)}; {need}")


def _of_path(row: Row, path: str) -> tuple[bytes, Path]:
    """Read a file; a relative path is one of the data file's folder, or else of the working one."""
    if "://" in path and not path.startswith("file://"):
        raise ValueError(f"{shown(path)} is an address; needed a local file")
    file = Path(path.removeprefix("file://"))
    sibling = Path(_PLACE_IN_FILE.sub("", row.place)).parent / file
    found = sibling if not file.is_absolute() and sibling.is_file() else file
    try:
        return read_regular(found), found
    except OSError as error:
        raise ValueError(f"{found}: {error.strerror or error}") from error
