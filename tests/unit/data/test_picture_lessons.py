"""Rows with pictures and answers: what is learned, by supervised training and from preferences."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder
from PIL import Image
from transformers import PreTrainedTokenizerFast

from mindrl.batch.prompts import Demonstration, LabelledAnswer, PreferencePair, Prompt
from mindrl.config.images import ImageConfig
from mindrl.data.demonstrations import load_demonstrations
from mindrl.data.preferences import load_preferences
from mindrl.data.reading import Reading
from mindrl.data.row_images import RowImages
from mindrl.errors import DataError
from mindrl.tiny.vision.model import build_vision_tokenizer, image_processor
from mindrl.trainer.preference_trainer import mismatched
from mindrl.trainer.reference_logprobs import digests_of
from mindrl.trainer.supervised_trainer import sequences_of

END = 258
TOKENS = {"wide": 3 * 2, "tall": 2 * 4}
"""A token is 28 x 28 pixels."""
PREFERENCES = "preference_config"
Load = Callable[..., Prompt]


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


PROMPT = {"prompt": [message("user", "<image>?")], "images": ["tall.png"]}
TALK = [
    message("user", "<image>And <image>?"),
    message("assistant", "Red, blue"),
    message("user", "Again <image>?"),
    message("assistant", "Red"),
]


@pytest.fixture(scope="module")
def vision_tokenizer() -> PreTrainedTokenizerFast:
    return build_vision_tokenizer()


@pytest.fixture
def load(vision_tokenizer: PreTrainedTokenizerFast, run_config: MakeConfig, tmp_path: Path) -> Load:
    """Read one row of a run with the given section."""
    Image.new("RGB", (84, 56), "red").save(tmp_path / "wide.png")
    Image.new("RGB", (56, 112), "blue").save(tmp_path / "tall.png")
    model = model_folder(tmp_path / "model")
    image_processor("qwen2_5_vl").save_pretrained(model)
    pad = vision_tokenizer.convert_tokens_to_ids("<|image_pad|>")
    images = RowImages(
        model=str(model), config=ImageConfig(folder=str(tmp_path / "kept")), token=pad
    )

    def read(row: object, section: str = "sft_config", sees: bool = True, **keys: Any) -> Prompt:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n", "utf-8")
        given = {"megatron_training.seq_length": 128, section: keys}
        if section == PREFERENCES:
            given["megatron_training.prompt_column"] = "prompt"
        config = run_config(model, given)
        load_rows = load_demonstrations if section == "sft_config" else load_preferences
        reading = Reading(images=images if sees else None)
        return load_rows(str(path), config, vision_tokenizer, (END,), reading).prompts[0]

    return read


def learned(tokenizer: PreTrainedTokenizerFast, found: Prompt) -> str:
    assert isinstance(found, Demonstration)
    assert len(found.token_ids) == len(found.targets)
    text: str = tokenizer.decode([*compress(found.token_ids, found.targets)])
    return text


@pytest.mark.parametrize(
    ("turns", "text"), [("all", "Red, blue<|im_end|>Red<|im_end|>"), ("last", "Red<|im_end|>")]
)
def test_answers_between_pictures_are_learned_and_no_token_of_a_picture(
    turns: str, text: str, load: Load, vision_tokenizer: PreTrainedTokenizerFast
) -> None:
    files = ["wide.png", "tall.png", "wide.png"]
    found = load({"messages": TALK, "images": files}, turns=turns)
    assert learned(vision_tokenizer, found) == text
    first, second, third = found.images
    assert first.number == third.number != second.number
    assert [each.tokens for each in found.images] == [TOKENS["wide"], TOKENS["tall"], 6]
    pad = vision_tokenizer.convert_tokens_to_ids("<|image_pad|>")
    inside = [at for at, token in enumerate(found.token_ids) if token == pad]
    assert inside == [
        at for each in found.images for at in range(each.first, each.first + each.tokens)
    ]


def test_rows_with_parts_in_all_messages_are_those_with_marks(load: Load) -> None:
    """As HuggingFaceH4/llava-instruct-mix-vsft, which TRL's example of SFT reads."""
    parts = [
        {"index": None, "text": "Look: ", "type": "text"},
        {"index": 0, "text": None, "type": "image"},
    ]
    answer = [{"index": None, "text": "Red", "type": "text"}]
    row = {"messages": [message("user", parts), message("assistant", answer)]}
    marked = {"messages": [message("user", "Look: <image>"), message("assistant", "Red")]}
    image = {"images": ["wide.png"]}
    assert load(row | image) == load(marked | image)


def test_pictures_of_answers_and_of_models_of_text_are_refused(load: Load) -> None:
    row = {"messages": [*TALK[:1], message("assistant", "<image>")], "images": ["wide.png"] * 3}
    with pytest.raises(DataError, match=r"rows\.jsonl:1: an answer of the assistant has a picture"):
        load(row)
    asked = {"messages": TALK, "images": ["wide.png"] * 3}
    with pytest.raises(
        DataError, match=r"a vision tower, or of Qwen3\.5, of which mindrl trains the text"
    ):
        load(asked, sees=False)
    with pytest.raises(DataError, match=r"3 <image> in the text and 2 pictures"):
        load(asked | {"images": ["wide.png"] * 2})
    with pytest.raises(DataError, match=r"has pictures, and actor_config\.load names"):
        load(PROMPT | {"chosen": "1", "rejected": "2"}, PREFERENCES, sees=False)


def test_both_answers_of_a_pair_have_the_pictures_of_its_prompt(
    load: Load, vision_tokenizer: PreTrainedTokenizerFast
) -> None:
    whole = {
        "images": ["tall.png"],
        "chosen": [*PROMPT["prompt"], message("assistant", "blue")],
        "rejected": [*PROMPT["prompt"], message("assistant", "a red one")],
    }
    for row in (PROMPT | {"chosen": "blue", "rejected": "a red one"}, whole):
        pair = load(row, PREFERENCES)
        assert isinstance(pair, PreferencePair)
        assert pair.images == pair.chosen.images == pair.rejected.images
        assert [each.tokens for each in pair.images] == [TOKENS["tall"]]
        assert learned(vision_tokenizer, pair.chosen) == "blue<|im_end|>"
        assert learned(vision_tokenizer, pair.rejected) == "a red one<|im_end|>"
    batch = sequences_of([pair.chosen, pair.rejected])
    place = pair.images[0]
    assert batch.images() == [[(place.number, place.first)]] * 2


def test_a_mismatched_answer_follows_the_pictures_of_its_prompt(load: Load) -> None:
    rows = [
        load(
            PROMPT | {"completion": text, "label": True, "images": [file]}, PREFERENCES, loss="kto"
        )
        for text, file in (("blue", "tall.png"), ("red", "wide.png"))
    ]
    shown = [each for each in rows if isinstance(each, LabelledAnswer)]
    assert [each.images for each in mismatched(shown, 64)] == [each.images for each in rows]


def test_log_probs_of_a_reference_are_kept_for_the_pictures_too(load: Load) -> None:
    row = {"messages": [message("user", "<image>?"), message("assistant", "Red")]}
    red = load(row | {"images": ["wide.png"]})
    (image,) = red.images
    other = replace(red, images=(image._replace(number=image.number ^ 1),))
    first, second = digests_of(sequences_of([red, other]))
    assert first != second
    assert digests_of(sequences_of([red])) == [first]
