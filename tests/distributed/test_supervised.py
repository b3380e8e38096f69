"""Supervised fine-tuning on real workers, against a loop of Hugging Face's model and torch's AdamW.

Shapes: B sequences, T positions.
"""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mindrl.batch.prompts import Demonstration
from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.launch.beginning import beginning
from mindrl.launch.parts import worker_handle
from mindrl.observability.console import StepConsole
from mindrl.observability.metrics import computed
from mindrl.observability.trackers import JsonlTracker
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary
from mindrl.trainer.supervised_trainer import SupervisedTrainer, sequences_of

pytestmark = pytest.mark.distributed

STEPS, ROWS, LR = 5, 4, 1e-2
KEYS = {
    "sft_config": {},
    "rl_config.n_samples_per_prompt": 8,
    "rl_config.memory_timeline_steps": 0,
    "megatron_training.train_iters": STEPS,
    "megatron_training.no_shuffle": True,
    "megatron_training.save_interval": 2,
    "megatron_training.keep_last": 3,
    "actor_config.micro_batch_size": 2,
    "actor_config.lr": LR,
    "actor_config.weight_decay": 0.1,
    # Wide, so that the step of a gradient near zero does not hang on its rounding.
    "actor_config.adam_eps": 1e-2,
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
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-2)
    found = []
    for batch in steps:
        inside_BT = torch.arange(batch.tokens_BT.size(1)) < batch.lengths_B[:, None]
        labels_BT = batch.tokens_BT.masked_fill(~batch.response_mask_BT, -100)
        loss = model(
            input_ids=batch.tokens_BT, attention_mask=inside_BT.long(), labels=labels_BT
        ).loss
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        found.append((loss.item(), norm.item()))
    return found


def learned(
    root: Path, config: RunConfig, workers: ForkedWorkers, *, from_step_2: bool = False
) -> list[dict[str, Any]]:
    """Run the loop of `train-sft` on workers of its own; returns the metrics of its steps."""
    plan, folder = check(config, PLATFORMS["cpu"], goes_on=from_step_2), RunFolder(root=root)
    data = RunData(
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({}))),
        stop_token_ids=(1,),
        train=PromptSet(path="none", prompts=demonstrations(), dropped=0),
        test=PromptSet(path="none", prompts=demonstrations()[:3], dropped=0),
    )
    summary = RunSummary(exports={"actor": root / "model"})
    log = RunLog(folder, summary, StepConsole(STEPS, io.StringIO()), [JsonlTracker(folder.metrics)])
    group = workers.start(plan)
    try:
        actor = worker_handle(group, plan)
        trainer = SupervisedTrainer(config, data, actor, log)
        if from_step_2:
            found = beginning(config, folder, {})
            assert found is not None
            assert found.step == 2
            actor.restore(found.folder, found.updates)
            trainer.resume(found.step, found.state)
        trainer.run()
    finally:
        group.stop()
        log.close()
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [computed(line) for line in lines if "sft/loss" in line]


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
    ours = learned(root, config, forked_workers)
    shown = demonstrations()
    steps = [sequences_of(shown[at : at + ROWS]) for at in range(0, len(shown), ROWS)]
    for step, (loss, norm) in zip(ours, of_hugging_face(model, steps), strict=True):
        # Sums of float32 in another order: packed, two micro-batches, two ranks.
        assert step["sft/loss"] == pytest.approx(loss, rel=1e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=2e-6)
    weights = (root / "model/model.safetensors").read_bytes()
    (root / "metrics.jsonl").unlink()
    for later in ("step-00000004", "step-00000005"):
        rmtree(root / "checkpoints" / later)
    assert learned(root, config, forked_workers, from_step_2=True) == ours[2:]
    assert (root / "model/model.safetensors").read_bytes() == weights
