"""Pictures, sequences that show them, and what Hugging Face's own network makes of them.

Shapes: B sequences, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.sequences import Sequences
from mindrl.config.images import ImageConfig
from mindrl.pictures.folder import PictureFolder
from mindrl.pictures.patches import PatchMaker
from mindrl.tiny.vision.habits import VisionFamily
from mindrl.tiny.vision.model import (
    build_vision_model,
    build_vision_tokenizer,
    save_vision_model,
)

START, END, PAD = 264, 265, 266
"""Tokens around a picture, and that of a part of it."""
SIZES = ((84, 56), (60, 100), (56, 56))
"""Widths and heights of the pictures, which have other numbers of tokens."""


@dataclass(frozen=True)
class Shown:
    """A sequence and its pictures."""

    token_ids: list[int]
    asked: int
    """Tokens of the prompt."""
    images: list[PlacedImage]


def save_tiny(folder: Path, family: VisionFamily, seed: int = 3) -> Path:
    """Write a random model; its tower has biases and norms that are not those of a fresh one."""
    tokenizer = build_vision_tokenizer()
    model = build_vision_model(tokenizer, seed, family)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    save_vision_model(model, tokenizer, folder, family)
    return folder


def noise(size: tuple[int, int], seed: int) -> Image.Image:
    """Return a picture of random colours."""
    width, height = size
    colours = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray((colours * 255).byte().numpy())


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the file of a picture."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def kept_pictures(folder: Path) -> tuple[ImageConfig, list[int]]:
    """Keep the pictures of `SIZES` in a folder; return the section and their numbers."""
    config = ImageConfig(folder=str(folder))
    pictures = PictureFolder(config)
    made = [encoded(noise(size, seed)) for seed, size in enumerate(SIZES)]
    return config, [pictures.keep(content)[0] for content in made]


def shown_rows(model: Path, numbers: Sequence[int]) -> list[Shown]:
    """Make five sequences: two samples of a prompt with a picture, two pictures, none, one."""
    generator = torch.Generator().manual_seed(5)
    maker = PatchMaker(str(model))

    def words(count: int) -> list[int]:
        return torch.randint(0, 256, (count,), generator=generator).tolist()

    def prompt(*which: int) -> tuple[list[int], list[PlacedImage]]:
        ids, placed = words(4), []
        for index in which:
            count = maker.tokens(SIZES[index])
            placed.append(PlacedImage(numbers[index], len(ids) + 1, count))
            ids += [START, *[PAD] * count, END, *words(3)]
        return ids, placed

    one, two, none, other = prompt(0), prompt(1, 2), prompt(), prompt(1)
    rows = [(one, 6), (one, 9), (two, 5), (none, 7), (other, 4), (none, 3)]
    return [Shown(ids + words(n), len(ids), placed) for (ids, placed), n in rows]


def sequences_of(rows: Sequence[Shown]) -> Sequences:
    """Return the rows as a batch whose responses need log-probs."""
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    T = int(lengths_B.max())
    tokens_BT = torch.zeros(len(rows), T, dtype=torch.int64)
    for at, row in enumerate(rows):
        tokens_BT[at, : len(row.token_ids)] = torch.tensor(row.token_ids)
    asked_B = torch.tensor([row.asked for row in rows])
    places = torch.arange(T)
    mask_BT = (places >= asked_B[:, None]) & (places < lengths_B[:, None])
    batch = Sequences(tokens_BT=tokens_BT, lengths_B=lengths_B, response_mask_BT=mask_BT)
    return batch.with_images([row.images for row in rows])


def reference(folder: Path) -> Any:
    """Return Hugging Face's own network."""
    return AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )


def reference_logprobs(
    network: Any,
    folder: Path,
    rows: Sequence[Shown],
    pictures: dict[int, Image.Image],
    targets: Sequence[list[int]] = (),
) -> list[Tensor]:
    """Return the log-probs of each response by transformers' own forward pass, row by row.

    `targets` are the tokens that the log-probs are of, if they are not those that are read.
    """
    processor = AutoImageProcessor.from_pretrained(folder)
    found = []
    for at, row in enumerate(rows):
        tokens = torch.tensor([row.token_ids])
        wanted = torch.tensor([targets[at]]) if targets else tokens
        more = {}
        if row.images:
            more = processor(
                images=[pictures[each.number] for each in row.images], return_tensors="pt"
            )
        kinds = (tokens == PAD).int()
        logits = network(input_ids=tokens, mm_token_type_ids=kinds, use_cache=False, **more).logits
        logprobs = logits[0].float().log_softmax(-1)[:-1].gather(1, wanted[0, 1:, None])[:, 0]
        found.append(logprobs[row.asked - 1 :])
    return found
