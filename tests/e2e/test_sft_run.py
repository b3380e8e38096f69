"""Supervised fine-tuning as a whole: the numbers of Hugging Face, and the same bits again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from program import DATA, Program, kill_at_once, start_program
from transformers import AutoModelForCausalLM, AutoTokenizer

from mindrl.checkpoint.commits import checksum_of
from mindrl.data.order import PromptOrder
from mindrl.observability.metrics import computed

# Three runs. Of every change are its losses on real workers (tests/distributed/test_supervised.py).
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

STEPS, ROWS, LR = 5, 16, 1e-3
ASKED = (
    f"megatron_training.train_iters={STEPS}",
    f"megatron_training.global_batch_size={ROWS}",
    f"rl_config.mini_batch_size={ROWS}",
    "megatron_training.save_interval=2",
    "rl_config.test_freq=0",
    f"actor_config.lr={LR}",
    "actor_config.lr_decay_style=constant",
    "actor_config.lr_warmup_fraction=0",
    "actor_config.micro_batch_size=4",
)


def started(folder: Path, model: Path, *more: str) -> Program:
    asked = [f"actor_config.load={model}", *ASKED, *more]
    return start_program(folder, asked, program="train_sft")


def learned(run: Program) -> list[dict[str, Any]]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "sft/loss" in line]


def of_hugging_face(model: Path, seed: int, dtype: torch.dtype) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each update of the usual loop on the same rows."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    adam = torch.optim.AdamW(network.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    rows = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
    order, found = PromptOrder(count=len(rows), seed=seed, shuffle=True), []
    for step in range(STEPS):
        ids, labels = [], []
        for at in order.indices(step * ROWS, ROWS):
            asked = tokenizer.apply_chat_template(
                rows[at]["messages"], add_generation_prompt=True, tokenize=False
            )
            before, answer = (
                tokenizer(text)["input_ids"] for text in (asked, f"{rows[at]['answer']}<|im_end|>")
            )
            ids.append(torch.tensor([*before, *answer]))
            labels.append(torch.tensor([*[-100] * len(before), *answer]))
        padded = torch.nn.utils.rnn.pad_sequence
        loss = network(
            input_ids=padded(ids, batch_first=True),
            labels=padded(labels, batch_first=True, padding_value=-100),
        ).loss
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        found.append((loss.item(), norm.item()))
    return found


def test_a_run_has_the_numbers_of_a_hugging_face_loop_and_goes_on_to_the_same_bits_when_killed(
    tiny_model: Path, tmp_path: Path
) -> None:
    straight = started(tmp_path / "straight", tiny_model)
    assert straight.process.wait(timeout=600) == 0, straight.text()
    steps = learned(straight)
    theirs, exact = (
        of_hugging_face(tiny_model, 1234, dtype) for dtype in (torch.float32, torch.float64)
    )
    for update, ours in enumerate(steps):
        found = (ours["sft/loss"], ours["update/grad_norm"])
        # Sums of float32 in another order: packed, four micro-batches, two ranks. Adam makes more
        # of the difference in each update, in their loop as in ours.
        for each, their, right, rel in zip(
            found, theirs[update], exact[update], (1e-6, 5e-6), strict=True
        ):
            assert each == pytest.approx(right, rel=rel, abs=1.5 * abs(their - right))
            assert update > 1 or each == pytest.approx(their, rel=rel)
    summary = straight.summary()
    assert summary["status"] == "completed"
    held_out = summary["evaluations"]["held-out"]
    assert held_out["after"]["loss"] < held_out["before"]["loss"]

    killed = started(tmp_path / "killed", tiny_model)
    killed.wait_for_line(f"step 3/{STEPS}")
    kill_at_once(killed.process)
    asked = ["--resume", str(killed.folder)]
    goes_on = start_program(killed.folder, asked, program="train_sft")
    assert goes_on.process.wait(timeout=600) == 0, goes_on.text()
    assert "continues after step 2" in goes_on.text()
    assert [computed(line) for line in learned(goes_on)] == [computed(line) for line in steps]
    files = [run.folder / "model/model.safetensors" for run in (goes_on, straight)]
    assert checksum_of(files[0]) == checksum_of(files[1])
