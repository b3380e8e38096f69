"""What leaves the device and comes back is what it was: runs with and without it are equal."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from file_opens import opens_of
from forked_workers import ForkedWorkers
from role_steps import GREEDY, PROMPTS, take_step
from safetensors.torch import load_file
from torch import Tensor

from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

STEPS = 20
TWO_RANKS = {"rl_config.actor_resource.num_npus": 2, "actor_config.micro_batch_size": 8}
WITH_REFERENCE = {"rl_config.init_kl_coef": 0.1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense, fp32, tp 2": ("dense", {"actor_config.tensor_model_parallel_size": 2}),
    # With a critic beside it.
    "dense, bf16, dp 2, distributed optimizer": (
        "dense",
        {
            "megatron_training.bf16": True,
            "generate_config.dtype": "bfloat16",
            "rl_config.adv_estimator": "gae",
            "critic_config.lr": 1e-3,
        },
    ),
    "moe, bf16, ep 2, distributed optimizer": (
        "moe",
        {
            "megatron_training.bf16": True,
            "generate_config.dtype": "bfloat16",
            "actor_config.expert_model_parallel_size": 2,
        },
    ),
    # Beside a reference of another engine.
    "moe, fp32, dp 2": (
        "moe",
        {"megatron_training.use_distributed_optimizer": False, "ref_config.backend": "fsdp:d2"},
    ),
}
STAYING = {
    f"{section}.{switch}": False
    for section, switches in {
        "generate_config": ("offload_train_param", "offload_train_grad", "offload_train_optimizer"),
        "ref_config": ("offload_param",),
    }.items()
    for switch in switches
}
CRITIC_STAYING = {
    f"critic_config.offload_train_{part}": False for part in ("param", "grad", "optimizer")
}


@dataclass
class Course:
    """All that a run did."""

    tokens: list[list[list[int]]]
    metrics: list[dict[str, dict[str, float]]]
    values: list[Tensor | None]
    greedy: list[list[int]]
    initial: dict[str, Tensor]
    """Exported before the first step."""
    weights: dict[str, Tensor]
    """Exported behind the last one."""
    copied_bytes: float
    """To the host, over all steps and workers."""


def run_of(workers: ForkedWorkers, config: RunConfig, folder: Path) -> Course:
    plan = unordered_shardings(config).ordered.plan
    group = workers.start(plan)
    actor = worker_handle(group, plan)
    actor.export("actor", folder / "initial", {"step": 0})
    traces = [take_step(actor, config, step) for step in range(STEPS)]
    answers = actor.generate_sequences(PROMPTS, GREEDY, step=0)
    metrics = actor.flush_metrics()
    actor.export("actor", folder / "trained", {"step": STEPS})
    group.stop()
    return Course(
        tokens=[trace.sequences.tokens_BT.tolist() for trace in traces],
        metrics=[trace.metrics for trace in traces],
        values=[trace.values_BT for trace in traces],
        greedy=answers.tokens_BT.tolist(),
        initial=load_file(folder / "initial" / "model.safetensors"),
        weights=load_file(folder / "trained" / "model.safetensors"),
        copied_bytes=sum(
            value for name, value in metrics.items() if name.startswith("bytes/to_host_")
        ),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_steps_are_equal_to_the_bit_whether_all_leaves_the_device_or_all_stays(
    name: str,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    random_model_of: Callable[..., Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    kind, overrides = CASES[name]
    model = random_model(False) if kind == "dense" else random_model_of("qwen3_moe")
    common = TWO_RANKS | WITH_REFERENCE | overrides
    has_critic = "critic_config.lr" in overrides
    staying = STAYING | (CRITIC_STAYING if has_critic else {})

    leaves = run_of(forked_workers, run_config(model, common), tmp_path / "leaves")
    stays = run_of(forked_workers, run_config(model, common | staying), tmp_path / "stays")

    assert leaves.tokens == stays.tokens
    assert leaves.metrics == stays.metrics
    assert leaves.greedy == stays.greedy
    for ours, theirs in zip(leaves.values, stays.values, strict=True):
        assert (ours is not None) == (theirs is not None) == has_critic
        assert ours is None or torch.equal(ours, theirs)
    _assert_same_weights(leaves.weights, stays.weights)
    # The actor begins with the reference's weights, on the host or on the device.
    before = load_file(model / "model.safetensors")
    _assert_same_weights(leaves.initial, before)
    _assert_same_weights(stays.initial, before)
    _assert_something_happened(leaves)
    # So they agree before the first update, whichever engines they are of, and then not.
    divergences = [metrics["actor"]["kl"] for metrics in leaves.metrics]
    assert divergences[0] < 1e-9 < divergences[-1]
    assert leaves.copied_bytes > 0
    assert stays.copied_bytes == 0


def _assert_same_weights(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name].to(tensor.dtype)), name


def _assert_something_happened(course: Course) -> None:
    """Every step had a gradient and another rollout, and no weight is what it was."""
    norms = [metrics["actor"]["grad_norm"] for metrics in course.metrics]
    assert len(norms) == STEPS
    assert min(norms) > 1e-3
    assert len({str(tokens) for tokens in course.tokens}) == STEPS
    for name, tensor in course.weights.items():
        assert not torch.equal(tensor, course.initial[name]), name


def test_an_actor_takes_its_weights_from_an_equal_reference_and_reads_no_file_again(
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    """The kernel counts who opens the weight file: no one more often than without a reference."""
    model, opened = random_model(False), []
    for overrides in ({}, WITH_REFERENCE):
        with opens_of(model / "model.safetensors") as count:
            plan = unordered_shardings(run_config(model, overrides)).ordered.plan
            forked_workers.start(plan).stop()
            opened.append(count())
    without_reference, with_reference = opened
    assert with_reference == without_reference > 0
