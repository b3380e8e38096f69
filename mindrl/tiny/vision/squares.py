"""Pictures of one to five coloured squares on white, and the question how many there are.

The rows have verl's form: `<image>` in the message, and a column of paths. The same arguments
always give the same bytes.
"""

import json
import random
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw

from mindrl.tiny.questions import write_if_changed

QUESTION = "How many squares?"
MOST_SQUARES = 5
TRAINING_PICTURES, TEST_PICTURES = 768, 96
_CELLS = (6, 4)
_CELL_PIXELS = 14
_INSET = 2
"""White pixels around a square in its cell."""


def draw_squares(count: int, rng: random.Random) -> Image.Image:
    """Draw squares of random colours in random cells."""
    columns, rows = _CELLS
    image = Image.new("RGB", (columns * _CELL_PIXELS, rows * _CELL_PIXELS), "white")
    canvas = ImageDraw.Draw(image)
    for cell in rng.sample(range(columns * rows), count):
        x, y = cell % columns * _CELL_PIXELS, cell // columns * _CELL_PIXELS
        corner = _CELL_PIXELS - 1 - _INSET
        colour = tuple(rng.randrange(160) for _ in range(3))
        canvas.rectangle((x + _INSET, y + _INSET, x + corner, y + corner), fill=colour)
    return image


def write_squares(
    folder: Path, *, seed: int, train: int = TRAINING_PICTURES, test: int = TEST_PICTURES
) -> Iterator[str]:
    """Write pictures, and train.jsonl and test.jsonl about them; yields a line about each.

    Raises:
        OutputError: A file cannot be written.
    """
    rng = random.Random(seed)
    for name, number in (("train", train), ("test", test)):
        rows, is_new = [], False
        for index in range(number):
            count = index % MOST_SQUARES + 1
            picture = f"pictures/{name}_{index:04d}.png"
            is_new |= write_if_changed(folder / picture, _encoded(draw_squares(count, rng)))
            message = {"role": "user", "content": f"<image>{QUESTION}"}
            row = {"messages": [message], "images": [picture], "answer": str(count)}
            rows.append(json.dumps(row) + "\n")
        path = folder / f"{name}.jsonl"
        is_new |= write_if_changed(path, "".join(rows).encode())
        yield f"{path}: {number} rows, {'written' if is_new else 'up to date'}"


def _encoded(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
