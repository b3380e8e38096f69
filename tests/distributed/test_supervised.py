"""Supervised fine-tuning on real workers, against a loop of Hugging Face's model and torch's AdamW.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from answer_loops import FIVE_STEPS, is_the_same_from_step_2, learned, usual_updates
from forked_workers import ForkedWorkers
from nightly import at_night_but
from torch import Tensor
from transformers import AutoModelForCausalLM

from mindrl.batch.prompts import Demonstration
from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.trainer.supervised_trainer import sequences_of

pytestmark = pytest.mark.distributed

STEPS, ROWS = 5, 4
KEYS = {
    "sft_config": {},
    "actor_config.micro_batch_size": 2,
    **FIVE_STEPS,
}

TWO = {"rl_config.actor_resource.num_npus": 2}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "megatron": {},
    "by tokens": {"rl_config.use_dynamic_bsz": True, "rl_config.max_packing_token_size": 64},
    "archon": {"actor_config.backend": "archon:d1"},
    "TP2": TWO | {"actor_config.tensor_model_parallel_size": 2},
    "DP2": TWO,
    "archon DP2": TWO | {"actor_config.backend": "archon:d2"},
}
EVERY_CHANGE = ("megatron", "by tokens", "archon")


def demonstrations(vocabulary: int = 96) -> tuple[Demonstration, ...]:
    """Make the rows of five steps: conversations with two answers of some tokens."""
    generator = torch.Generator().manual_seed(3)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    def conversation(uid: int) -> Demonstration:
        parts = [(False, drawn(3, 9)), (True, drawn(1, 7)), (False, drawn(2, 5)), (True, 2)]
        targets = tuple(learned for learned, count in parts for _ in range(count))
        token_ids = torch.randint(0, vocabulary, (len(targets),), generator=generator)
        return Demonstration(
            uid=uid, token_ids=tuple(token_ids.tolist()), text="", answer="", targets=targets
        )

    return tuple(conversation(uid) for uid in range(STEPS * ROWS))


def of_hugging_face(folder: Path, steps: list[Sequences]) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each update of the usual loop."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def loss(batch: Sequences) -> Tensor:
        inside_BT = torch.arange(batch.tokens_BT.size(1)) < batch.lengths_B[:, None]
        labels_BT = batch.tokens_BT.masked_fill(~batch.response_mask_BT, -100)
        found: Tensor = model(
            input_ids=batch.tokens_BT, attention_mask=inside_BT.long(), labels=labels_BT
        ).loss
        return found

    return usual_updates(model, (partial(loss, batch) for batch in steps))


@pytest.mark.parametrize("way", at_night_but(EVERY_CHANGE, WAYS))
def test_five_updates_are_those_of_a_hugging_face_loop_and_the_same_from_a_checkpoint(
    way: str,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    model, rows = random_model(False), tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    given = KEYS | WAYS[way] | {"megatron_training.data_path": str(rows)}
    config, root = run_config(model, given), tmp_path / "run"
    root.mkdir()
    shown = demonstrations()
    ours = learned(shown, root, config, forked_workers)
    steps = [sequences_of(shown[at : at + ROWS]) for at in range(0, len(shown), ROWS)]
    for step, (loss, norm) in zip(ours, of_hugging_face(model, steps), strict=True):
        # Sums of float32 in another order: packed, two micro-batches, two ranks.
        assert step["sft/loss"] == pytest.approx(loss, rel=1e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=2e-6)
    is_the_same_from_step_2(shown, root, config, forked_workers, ours)
