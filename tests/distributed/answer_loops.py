"""Train on answers from rows in forked workers, and the same updates in a plain loop."""

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from forked_workers import ForkedWorkers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mindrl.batch.prompts import Prompt
from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.launch.beginning import beginning
from mindrl.launch.parts import loop_kind, worker_handle
from mindrl.observability.console import StepConsole
from mindrl.observability.metrics import computed
from mindrl.observability.trackers import JsonlTracker
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary
from mindrl.trainer.supervised_trainer import AnswerTrainer

LR, WEIGHT_DECAY, EPS = 1e-2, 0.1, 1e-2
OPTIMIZER = {
    "actor_config.lr": LR,
    "actor_config.weight_decay": WEIGHT_DECAY,
    # Wide, so that the step of a gradient near zero does not hang on its rounding.
    "actor_config.adam_eps": EPS,
}
FIVE_STEPS: dict[str, Any] = {
    "rl_config.n_samples_per_prompt": 8,
    "rl_config.memory_timeline_steps": 0,
    "megatron_training.train_iters": 5,
    "megatron_training.no_shuffle": True,
    "megatron_training.save_interval": 2,
    "megatron_training.keep_last": 3,
    **OPTIMIZER,
}
"""Keys of a run that can be resumed from its second step."""


def learned(
    rows: tuple[Prompt, ...],
    root: Path,
    config: RunConfig,
    workers: ForkedWorkers,
    *,
    from_step_2: bool = False,
) -> list[dict[str, Any]]:
    """Run the loop of a configuration; return the metrics of its steps."""
    plan, folder = check(config, PLATFORMS["cpu"], goes_on=from_step_2), RunFolder(root=root)
    data = RunData(
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({}))),
        stop_token_ids=(1,),
        train=PromptSet(path="none", prompts=rows, dropped=0),
        test=PromptSet(path="none", prompts=rows[:3], dropped=0),
    )
    summary = RunSummary(exports={"actor": root / "model"})
    steps = config.megatron_training.train_iters
    trackers = [JsonlTracker(folder.metrics)]
    log = RunLog(folder, summary, StepConsole(steps, io.StringIO()), trackers)
    group = workers.start(plan)
    try:
        actor = worker_handle(group, plan)
        kind = loop_kind(config)
        assert issubclass(kind, AnswerTrainer)
        trainer = kind(config, data, actor, log)
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
    return [computed(line) for line in lines if "update/grad_norm" in line]


def is_the_same_from_step_2(
    rows: tuple[Prompt, ...],
    root: Path,
    config: RunConfig,
    workers: ForkedWorkers,
    ours: list[dict[str, Any]],
) -> None:
    """Go on from the checkpoint of step 2, and compare metrics and weights to the bit."""
    weights = exported(root)
    (root / "metrics.jsonl").unlink()
    for later in ("step-00000004", "step-00000005"):
        rmtree(root / "checkpoints" / later)
    assert learned(rows, root, config, workers, from_step_2=True) == ours[2:]
    assert exported(root) == weights


def exported(root: Path) -> dict[str, bytes]:
    """Return the files of weights of a run; one of several if tensors were kept."""
    found = {file.name: file.read_bytes() for file in (root / "model").glob("model*.safetensors")}
    assert found
    return found


def usual_updates(
    model: PreTrainedModel, losses: Iterable[Callable[[], Tensor]]
) -> list[tuple[float, float]]:
    """Take an update of torch's AdamW for each loss; return loss and gradient norm of each."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS)
    found = []
    for loss_now in losses:
        loss = loss_now()
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        found.append((loss.item(), norm.item()))
    return found
