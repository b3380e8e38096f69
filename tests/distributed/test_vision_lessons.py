"""Supervised fine-tuning on rows with pictures, against a loop with transformers' own processor."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from answer_loops import FIVE_STEPS, learned, usual_updates
from forked_workers import ForkedWorkers
from nightly import at_night_but
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoProcessor
from vision_rows import SIZES, noise, reference, save_tiny

from mindrl.config.run import RunConfig
from mindrl.data.run_data import read_data

pytestmark = pytest.mark.distributed

STEPS, ROWS = 5, 4
START, END = "<|im_start|>assistant\n", "<|im_end|>"
LAYERS = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The layers with adapters; a tower has some of these names too."""
CASES = [
    ("qwen2_5_vl", "fsdp:d1", False),
    ("qwen3_vl", "fsdp:d1", False),
    ("qwen3_vl", "fsdp:d2", False),
    ("qwen2_5_vl", "fsdp:d2", True),
    ("qwen3_vl", "fsdp:d2", True),
    ("qwen2_5_vl", "archon:d2", False),
    ("qwen3_vl", "archon:d2", True),
    ("qwen2_5_vl", "archon:t2", True),
    ("qwen3_vl", "archon:t2", True),
]


def conversation(uid: int) -> dict[str, Any]:
    """Return a row; every fourth has no picture, so that one of two ranks may have none."""
    count = uid % 4 if uid % 4 < 3 else 1
    return {
        "messages": [
            {"role": "user", "content": "<image>" * count + f"What is number {uid}?"},
            {"role": "assistant", "content": f"It is {uid * 37}."},
        ],
        "images": [f"{(uid + at) % len(SIZES)}.png" for at in range(count)],
    }


def of_transformers(
    folder: Path, rows: list[dict[str, Any]], network: Any
) -> list[tuple[float, float]]:
    """Train transformers' network by a loop on what its processor makes of the rows."""
    processor = AutoProcessor.from_pretrained(folder)
    pictures = {f"{at}.png": noise(size, at) for at, size in enumerate(SIZES)}

    def logits_and_labels(row: dict[str, Any]) -> tuple[Tensor, Tensor]:
        asked, answered = (each["content"] for each in row["messages"])
        pads = "<|vision_start|><|image_pad|><|vision_end|>" * len(row["images"])
        prompt = f"<|im_start|>user\n{pads}{asked.replace('<image>', '')}{END}\n{START}"
        images = [pictures[name] for name in row["images"]] or None
        whole, begun = (
            processor(text=[text], images=images, return_tensors="pt")
            for text in (f"{prompt}{answered}{END}", prompt)
        )
        logits_TV = network(**whole, use_cache=False).logits[0]
        first = begun["input_ids"].size(1)
        return logits_TV[first - 1 : -1], whole["input_ids"][0, first:]

    def loss(step: list[dict[str, Any]]) -> Tensor:
        logits, labels = zip(*map(logits_and_labels, step), strict=True)
        return cross_entropy(torch.cat(logits), torch.cat(labels))

    cut = (rows[at : at + ROWS] for at in range(0, len(rows), ROWS))
    return usual_updates(network, (partial(loss, step) for step in cut))


def with_adapters(network: Any, folder: Path) -> Any:
    """Put PEFT's adapters on the decoder alone, with factors that both add something."""
    decoder = rf".*language_model\.layers\..*\.({'|'.join(LAYERS)})"
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=decoder)
    adapted = peft.get_peft_model(network, config)
    torch.manual_seed(5)
    for name, factor in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(factor, std=0.05)
    adapted.save_pretrained(folder)
    return adapted


@pytest.mark.parametrize(
    ("family", "backend", "has_adapters"),
    at_night_but([CASES[0], CASES[3], CASES[-1]], CASES),
)
def test_five_updates_on_rows_with_pictures_are_those_of_a_transformers_loop(
    family: Any,
    backend: str,
    has_adapters: bool,
    forked_workers: ForkedWorkers,
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    model, rows = save_tiny(tmp_path / "model", family), [*map(conversation, range(STEPS * ROWS))]
    for at, size in enumerate(SIZES):
        noise(size, at).save(tmp_path / f"{at}.png")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {
        "megatron_training.data_path": str(path),
        "megatron_training.seq_length": 128,
        "data_config.images.folder": str(tmp_path / "kept"),
        "actor_config.backend": backend,
        "actor_config.micro_batch_size": 2,
        "rl_config.actor_resource.num_npus": int(backend[-1]),
        "sft_config": {},
    }
    network = reference(model)
    if has_adapters:
        network = with_adapters(network, tmp_path / "adapters")
        given |= {
            "actor_config.lora.r": 4,
            "actor_config.lora.alpha": 8.0,
            "actor_config.lora.target_modules": LAYERS,
            "actor_config.lora.load": str(tmp_path / "adapters"),
        }
    config, root = run_config(model, FIVE_STEPS | given), tmp_path / "run"
    root.mkdir()
    prompts = read_data(config).train.prompts
    assert [len(each.images) for each in prompts[:4]] == [0, 1, 2, 1]
    ours = learned(prompts, root, config, forked_workers)
    for step, (loss, norm) in zip(ours, of_transformers(model, rows, network), strict=True):
        # Sums of float32 in another order: packed, two micro-batches, two ranks.
        assert step["sft/loss"] == pytest.approx(loss, abs=2e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=1e-5)
    if has_adapters:
        # Exported for PEFT, which finds each factor and no further layer.
        loaded = peft.PeftModel.from_pretrained(reference(model), root / "model/adapter")
        found, wanted = map(peft.get_peft_model_state_dict, (loaded, network))
        assert found.keys() == wanted.keys()
        for name, factor in wanted.items():
            torch.testing.assert_close(found[name], factor, atol=2e-5, rtol=0)
