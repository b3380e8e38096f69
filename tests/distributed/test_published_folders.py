"""Folders in the form in which Qwen publishes vision-language models, read whole by each part."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from published_folders import publish
from test_vision import FAMILIES, GAP_BOUND, LOGPROB_BOUND, Seen, gap_to_transformers, pictures_of
from transformers import AutoProcessor, AutoTokenizer
from vision_rows import (
    SIZES,
    encoded,
    kept_pictures,
    noise,
    reference,
    reference_logprobs,
    save_tiny,
    sequences_of,
    shown_rows,
)

from mindrl.batch.balance import MicroBatching
from mindrl.config.generate import SamplingConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.prompts import load_prompts
from mindrl.data.reading import Reading
from mindrl.data.row_images import RowImages
from mindrl.layouts.layout import TrainLayout
from mindrl.models.vision import image_token
from mindrl.rollout.engine import Sampling
from mindrl.tiny.vision.habits import VisionFamily

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[VisionFamily, Path]:
    made = {}
    for family in FAMILIES:
        place = tmp_path_factory.mktemp(family)
        made[family] = publish(save_tiny(place / "saved", family), place / "published", family)
    return made


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_trainer_engine_and_rows_read_it_as_transformers_does(
    family: VisionFamily,
    folders: dict[VisionFamily, Path],
    forked_workers: ForkedWorkers,
    tmp_path: Path,
) -> None:
    folder = folders[family]
    images, numbers = kept_pictures(tmp_path / "pictures")
    this = Seen(folder, images, shown_rows(folder, numbers))
    with torch.no_grad():
        wanted = reference_logprobs(reference(folder), folder, this.rows, pictures_of(this))
    course = replace(this.course(MicroBatching(sequences=6)), minibatches=[])
    asked = [(this.case(TrainLayout()), course)]
    (found,) = forked_workers.run("archon_probe:lives", asked, sequences_of(this.rows))
    for row, expected, ours_T in zip(this.rows, wanted, found[0].logprobs_BT, strict=True):
        gap = (ours_T[row.asked : len(row.token_ids)] - expected).abs().max()
        assert gap <= LOGPROB_BOUND
    sampling = Sampling(
        section=SamplingConfig(temperature=1.0, max_tokens=8), stop_token_ids=(258,)
    )
    rows = [this.rows[at] for at in (0, 2, 3)]
    (life,) = forked_workers.run(
        "vision_probe:life_of_an_engine", (folder, folder), images, rows, sampling
    )
    asked_rows = [replace(row, token_ids=row.token_ids[: row.asked]) for row in rows]
    assert gap_to_transformers(this, folder, asked_rows, life.first) <= GAP_BOUND


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_becomes_the_prompt_of_the_published_processor(
    family: VisionFamily, folders: dict[VisionFamily, Path], tmp_path: Path
) -> None:
    folder, picture = folders[family], noise(SIZES[1], 5)
    (tmp_path / "a.png").write_bytes(encoded(picture))
    row = {"messages": [{"role": "user", "content": "<image>Why?"}], "images": ["a.png"]}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row | {"answer": "1"}) + "\n")
    images, _ = kept_pictures(tmp_path / "kept")
    token = image_token(str(folder))
    assert token is not None
    training = MegatronTrainingConfig(
        train_iters=1, global_batch_size=1, seq_length=128, data_path=str(rows)
    )
    (prompt,) = load_prompts(
        str(rows),
        training,
        RLConfig(mini_batch_size=1, max_prompt_length=96),
        AutoTokenizer.from_pretrained(folder),
        Reading(images=RowImages(model=str(folder), config=images, token=token)),
    ).prompts
    processor = AutoProcessor.from_pretrained(folder)
    parts = [{"type": "image", "image": picture}, {"type": "text", "text": "Why?"}]
    theirs = processor.apply_chat_template(
        [{"role": "user", "content": parts}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert list(prompt.token_ids) == theirs["input_ids"][0].tolist()
