"""Supervised fine-tuning against a loop of Hugging Face's model and torch's AdamW.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from training_messages import OPTIMIZER, Case, Course, Updated
from transformers import AutoModelForCausalLM

from mindrl.algorithms.losses import PolicyLoss
from mindrl.algorithms.policy_losses import PolicyLossOptions, plain
from mindrl.batch.balance import MicroBatching
from mindrl.batch.prompts import Demonstration
from mindrl.batch.sequences import Sequences
from mindrl.trainer.supervised_trainer import minibatch_of, sequences_of

pytestmark = pytest.mark.distributed

LOSS = PolicyLoss(
    kl_kind="k3",
    kl_coef=0.0,
    entropy_coef=0.0,
    options=PolicyLossOptions(clip_low=0.2, clip_high=0.2),
    function=plain,
)
"""As `launch/worker.py` makes it of `policy_loss: plain`."""
STEPS = 5


def batches(vocabulary: int = 96) -> list[Sequences]:
    """Make five batches of four conversations, each with two answers of some tokens."""
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

    return [sequences_of([conversation(uid) for uid in range(4)]) for _ in range(STEPS)]


def of_hugging_face(folder: Path, steps: list[Sequences]) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each update of the usual loop."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    decay = OPTIMIZER["weight_decay"]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_eps"],
    )
    found = []
    for batch in steps:
        inside_BT = torch.arange(batch.tokens_BT.size(1)) < batch.lengths_B[:, None]
        labels_BT = batch.tokens_BT.masked_fill(~batch.response_mask_BT, -100)
        loss = model(
            input_ids=batch.tokens_BT, attention_mask=inside_BT.long(), labels=labels_BT
        ).loss
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip_grad"])
        adam.step()
        found.append((loss.item(), norm.item()))
    return found


LAYOUTS = {
    "one": Case(folder=""),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_five_updates_have_the_losses_and_gradient_norms_of_a_hugging_face_loop(
    name: str, forked_workers: ForkedWorkers, random_model: Callable[[bool], Path]
) -> None:
    folder, steps = random_model(False), batches()
    case = replace(LAYOUTS[name], folder=str(folder))
    course = Course(
        minibatches=[minibatch_of(batch) for batch in steps],
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": STEPS},
        micro_batching=MicroBatching(sequences=2),
    )
    ranks = case.layout.world_size
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", [case], course, ranks=ranks
    )
    expected = of_hugging_face(folder, steps)
    for (found,) in replies:
        for ours, (loss, norm) in zip(found.metrics, expected, strict=True):
            # Sums of float32 in another order: packed, two micro-batches.
            assert ours["policy_loss"] == pytest.approx(loss, rel=1e-6)
            assert ours["grad_norm"] == pytest.approx(norm, rel=2e-6)
