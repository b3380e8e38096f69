"""Rows with pictures: verl's and TRL's forms, and what is refused."""

import base64
import gc
import json
import pickle
import random
import tracemalloc
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import datasets
import pytest
from PIL import Image
from transformers import PreTrainedTokenizerFast

from mindrl.batch.prompts import Prompt
from mindrl.config.images import ImageConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.reward_columns import RewardColumns
from mindrl.config.rl import RLConfig
from mindrl.data.prompts import load_prompts
from mindrl.data.reading import Reading
from mindrl.data.row_images import RowImages
from mindrl.errors import DataError
from mindrl.pictures.folder import PictureFolder, picture_number
from mindrl.rollout.vllm.placeholders import with_placeholders
from mindrl.tiny.vision.model import build_vision_tokenizer, image_processor

TRAINING = MegatronTrainingConfig(
    train_iters=1, global_batch_size=1, seq_length=128, data_path="train.jsonl"
)
RL = RLConfig(mini_batch_size=1, max_prompt_length=96)
WIDE, TALL = Image.new("RGB", (84, 56), "red"), Image.new("RGB", (56, 112), "blue")
TOKENS = {"wide": 3 * 2, "tall": 2 * 4}
"""A token is 28 x 28 pixels."""


def png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def vision_tokenizer() -> PreTrainedTokenizerFast:
    return build_vision_tokenizer()


class Reader:
    """Writes rows to a file, and reads their prompts."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast, **limits: Any) -> None:
        image_processor("qwen2_5_vl").save_pretrained(folder / "model")
        self.folder, self.tokenizer = folder, tokenizer
        self.pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        config = ImageConfig(folder=str(folder / "kept"), **limits)
        self.images = RowImages(model=str(folder / "model"), config=config, token=self.pad)
        (folder / "wide.png").write_bytes(png(WIDE))
        (folder / "tall.png").write_bytes(png(TALL))

    def rows(self, *rows: Any, images: bool = True) -> tuple[Prompt, ...]:
        path = self.folder / "train.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.read(path, images=images)

    def read(self, path: Path, *, images: bool = True, **keys: Any) -> tuple[Prompt, ...]:
        reading = Reading(images=self.images if images else None)
        training = replace(TRAINING, **keys)
        return load_prompts(str(path), training, RL, self.tokenizer, reading).prompts


@pytest.fixture
def reader(tmp_path: Path, vision_tokenizer: PreTrainedTokenizerFast) -> Reader:
    return Reader(tmp_path, vision_tokenizer)


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "answer": "1", **more}


def test_each_mark_becomes_the_tokens_of_its_picture(reader: Reader) -> None:
    (prompt,) = reader.rows(asked("<image>And <image>?", images=["wide.png", "tall.png"]))
    first, second = prompt.images
    assert (first.tokens, second.tokens) == (TOKENS["wide"], TOKENS["tall"])
    assert [first.number, second.number] == [picture_number(png(WIDE)), picture_number(png(TALL))]
    for image in prompt.images:
        inside = prompt.token_ids[image.first : image.first + image.tokens]
        assert inside == (reader.pad,) * image.tokens
        around = (prompt.token_ids[image.first - 1], prompt.token_ids[image.first + image.tokens])
        assert reader.tokenizer.convert_ids_to_tokens(list(around)) == [
            "<|vision_start|>",
            "<|vision_end|>",
        ]
    assert prompt.token_ids.count(reader.pad) == sum(TOKENS.values())
    assert prompt.text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>And "
        "<|vision_start|><|image_pad|><|vision_end|>?<|im_end|>\n<|im_start|>assistant\n"
    )
    short = with_placeholders(prompt.token_ids, prompt.images)
    assert short == reader.tokenizer.encode(prompt.text, add_special_tokens=False)


def test_a_thin_picture_that_is_scaled_down_has_tokens(
    tmp_path: Path, vision_tokenizer: PreTrainedTokenizerFast
) -> None:
    images = Reader(tmp_path, vision_tokenizer, max_pixels=10_000).images
    (kept,) = images.keep_given([png(Image.new("RGB", (2000, 10)))])
    assert kept.tokens == images.maker.tokens((1400, 7)) > 0


def test_an_environment_reads_pictures_of_its_row_in_the_files_that_are_kept(
    reader: Reader,
) -> None:
    columns = {"images": [{"bytes": png(WIDE), "path": None}, "tall.png"], "level": 2}
    number, _ = reader.images.folder.keep(png(WIDE))
    found = reader.images.as_paths(columns)
    path = found["images"][0].pop("bytes")
    assert found == {"images": [{"path": None}, "tall.png"], "level": 2}
    assert Path(path) == reader.images.folder.file_of(number)
    assert Path(path).read_bytes() == png(WIDE)


def test_rows_for_environments_and_rewards_do_not_hold_the_bytes_of_their_pictures(
    reader: Reader,
) -> None:
    row = asked("<image>?", images=[{"bytes": png(WIDE), "path": None}], other=[b"no picture"])
    path = reader.folder / "train.parquet"
    datasets.Dataset.from_list([row]).to_parquet(path)
    every = RewardColumns(names=None, takes_chat=True)
    reading = Reading(images=reader.images, rewards=every)
    (prompt,) = load_prompts(str(path), TRAINING, RL, reader.tokenizer, reading).prompts
    assert prompt.row is not None
    columns, kept = prompt.row.columns, reader.images.folder.file_of(prompt.images[0].number)
    assert not held(png(WIDE), prompt)
    assert held(b"no picture", prompt)
    assert dict(columns) == row
    assert columns.get("images") == row["images"]
    as_paths = reader.images.as_paths(columns)
    assert as_paths["images"] == [{"bytes": str(kept), "path": None}]
    assert as_paths["messages"] == row["messages"]
    assert as_paths["other"] == [b"no picture"]
    # Opened pictures stay behind: this one has 14 kB of pixels.
    assert len(pickle.dumps(columns)) < 2000
    kept.write_bytes(png(TALL))
    assert columns["answer"] == "1"
    with pytest.raises(DataError, match="has changed since its row was read"):
        columns.get("images")


def test_the_pictures_of_a_file_are_not_in_memory_together(reader: Reader) -> None:
    rows = []
    for number in range(40):
        noise = random.Random(number).randbytes(160 * 160 * 3)
        picture = base64.b64encode(png(Image.frombytes("RGB", (160, 160), noise))).decode()
        rows.append(asked("<image>?", image=f"data:image/png;base64,{picture}"))
    # The first picture loads libraries.
    reader.rows(rows[0])
    path = reader.folder / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracemalloc.start()
    assert len(reader.read(path)) == 40
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4_000_000
    # A row, its parsed line, and its opened picture.
    assert peak < 2_000_000


def held(content: bytes, prompt: Prompt) -> bool:
    """Return whether bytes are in memory that a prompt refers to."""
    found, left = set[int](), [prompt]
    while left:
        each: Any = left.pop()
        if each == content:
            return True
        if id(each) not in found and not isinstance(each, (type, ModuleType, FunctionType)):
            found.add(id(each))
            left += gc.get_referents(each)
    return False


def test_all_forms_of_a_picture_are_the_same_picture(reader: Reader) -> None:
    address = "data:image/png;base64," + base64.b64encode(png(WIDE)).decode()
    parts = [{"type": "image"}, {"type": "text", "text": "?"}]
    linked = [{"type": "image_url", "image_url": {"url": address}}, parts[1]]
    held = [{"type": "image", "image": str(reader.folder / "wide.png"), "text": None}, parts[1]]
    prompts = reader.rows(
        asked("<image>?", images=["wide.png"]),
        asked("<image>?", images=[{"path": str(reader.folder / "wide.png")}]),
        asked("<image>?", image=address),
        {"messages": [{"role": "user", "content": parts}], "image": "wide.png", "answer": "1"},
        {"messages": [{"role": "user", "content": linked}], "answer": "1"},
        {"messages": [{"role": "user", "content": held}], "answer": "1"},
    )
    assert len({(each.token_ids, each.images, each.identity) for each in prompts}) == 1
    assert len([*(reader.folder / "kept").iterdir()]) == 1


def test_rows_of_verls_geometry3k_are_read_as_they_are(reader: Reader) -> None:
    rows = {
        "data_source": ["hiyouga/geometry3k"] * 2,
        "prompt": [[{"role": "user", "content": "<image>Find x."}]] * 2,
        "images": [[WIDE], [TALL]],
        "ability": ["math"] * 2,
        "reward_model": [{"style": "rule", "ground_truth": "3"}] * 2,
        "extra_info": [{"split": "train", "index": at} for at in range(2)],
    }
    features = datasets.Features(
        {
            **datasets.Dataset.from_dict({k: v for k, v in rows.items() if k != "images"}).features,
            "images": datasets.List(datasets.Image()),
        }
    )
    path = reader.folder / "geometry.parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    prompts = reader.read(path)
    assert [each.images[0].tokens for each in prompts] == [TOKENS["wide"], TOKENS["tall"]]
    assert [each.answer for each in prompts] == ["3", "3"]
    kept = PictureFolder(reader.images.config)
    assert kept.picture(prompts[0].images[0].number).getpixel((1, 1)) == (255, 0, 0)


def test_rows_of_trls_vision_examples_are_read_as_they_are(reader: Reader) -> None:
    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Say."}]}]
    rows = {"image": [WIDE, TALL], "prompt": [prompt] * 2, "solution": ["a", "b"]}
    path = reader.folder / "trl.parquet"
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).to_parquet(path)
    prompts = reader.read(path, prompt_column="prompt", answer_column="solution")
    assert [each.images[0].tokens for each in prompts] == [TOKENS["wide"], TOKENS["tall"]]
    assert prompts[0].identity != prompts[1].identity


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a picture too few": (
        asked("<image><image>", images=["wide.png"]),
        "2 <image> in the text and 1",
    ),
    "a picture too many": (asked("?", images=["wide.png"]), "0 <image> in the text and 1 pictures"),
    "no picture": (asked("<image>?"), "1 <image> in the text and 0 pictures"),
    "in two places": (
        {
            **asked("", images=["wide.png"]),
            "messages": [{"role": "user", "content": [{"type": "image", "image": "wide.png"}]}],
        },
        "in its messages and in a column",
    ),
    "more than allowed": (asked("<image>" * 5, images=["wide.png"] * 5), "max_per_prompt=4"),
    "no file": (asked("<image>", images=["none.png"]), "none.png: No such file"),
    "an address": (asked("<image>", images=["https://a.b/c.png"]), "is an address; needed a local"),
    "no picture in the file": (asked("<image>", images=["train.jsonl"]), "not a picture"),
    "another form": (asked("<image>", images=[3]), "needed a path, bytes"),
    "the token as text": (
        asked("<image><|image_pad|>", images=["wide.png"]),
        "2 image tokens for 1",
    ),
    "a film": (
        {
            **asked(""),
            "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "video"}]}],
        },
        "part 2 is",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rows_whose_pictures_do_not_fit_are_refused_by_place(name: str, reader: Reader) -> None:
    row, reason = BROKEN[name]
    with pytest.raises(DataError, match=rf"train\.jsonl:2.*{reason}"):
        reader.rows(asked("<image>", images=["wide.png"]), row)


def test_a_model_of_text_is_not_trained_on_the_letters_of_a_mark(reader: Reader) -> None:
    with pytest.raises(
        DataError, match=r"has pictures, and actor_config\.load names a model without"
    ):
        reader.rows(asked("<image>?", images=["wide.png"]), images=False)
    (prompt,) = reader.rows(asked("The tag <image> of HTML"), images=False)
    assert "<image>" in prompt.text
