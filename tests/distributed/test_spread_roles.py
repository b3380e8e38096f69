"""Actor on the first rank, critic on the second, reference on both: what one rank computes."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from safetensors.torch import load_file
from torch import Tensor

from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.sequences import Sequences
from mindrl.checkpoint.commits import Commits
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Sampling
from mindrl.trainer.worker_handle import WorkerHandle

pytestmark = pytest.mark.distributed

PROMPTS = [Prompt(uid=uid, token_ids=(5 + uid, 6, 7), text="", answer="") for uid in range(4)]
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=8), stop_token_ids=(1,), samples_per_prompt=2
)
PPO = {
    "rl_config.adv_estimator": "gae",
    "rl_config.init_kl_coef": 0.1,
    "critic_config.lr": 1e-3,
    "actor_config.micro_batch_size": 2,
}
RESOURCE = "rl_config.{}_resource.{}"


def spread(each: int) -> dict[str, Any]:
    """Give the actor as many devices, the critic as many others, and the reference all."""
    return {
        RESOURCE.format("actor", "num_npus"): each,
        RESOURCE.format("critic", "num_npus"): each,
        RESOURCE.format("critic", "first_npu"): each,
        RESOURCE.format("reference", "num_npus"): 2 * each,
    }


@dataclass
class Found:
    """What a run of two updates of each model has said and left."""

    tokens_BT: Tensor
    said: list[Tensor]
    metrics: list[dict[str, float]]
    weights: dict[str, dict[str, Tensor]]
    updates: dict[str, int]
    files: list[str]
    moments: list[list[MeasuredSnapshot]]
    plan: MemoryPlan


def minibatches(sequences: Sequences) -> tuple[Minibatch, CriticMinibatch]:
    """Return what actor and critic learn, with noise for what models would have said."""
    mask_BT = sequences.response_mask_BT
    noise_4BT = torch.randn(4, *mask_BT.shape, generator=torch.Generator().manual_seed(2)) * mask_BT
    common: dict[str, Any] = {
        **{each.name: getattr(sequences, each.name) for each in fields(Sequences)},
        "token_weights_BT": mask_BT / mask_BT.sum(),
    }
    # Log-probs of a random model of some hundred tokens are near -5.
    old_BT, ref_BT = noise_4BT[0] - 5.0 * mask_BT, noise_4BT[1] - 5.0 * mask_BT
    return (
        Minibatch(
            **common, old_logprobs_BT=old_BT, ref_logprobs_BT=ref_BT, advantages_BT=noise_4BT[2]
        ),
        CriticMinibatch(**common, old_values_BT=noise_4BT[2], returns_BT=noise_4BT[3]),
    )


def trained(actor: WorkerHandle, folder: Path, resumed: Path | None = None) -> Found:
    """Roll out, ask and update all models twice, with a checkpoint between; or from there on."""
    commits, said, metrics = Commits(folder / "checkpoints"), list[Tensor](), []
    actor.record_memory(is_on=True)
    rollouts = actor.generate_sequences(PROMPTS, SAMPLING, step=0)
    minibatch, critic_minibatch = minibatches(rollouts.sequences())
    saved = []
    for step in range(2):
        if resumed is not None and step == 0:
            actor.restore(resumed, {"actor": 1, "critic": 1})
            continue
        sequences = rollouts.sequences()
        said.append(actor.compute_ref_log_prob(sequences).logprobs_BT)
        said.append(actor.compute_log_prob(sequences).logprobs_BT)
        said.append(actor.compute_values(sequences).values_BT)
        metrics.append(actor.update_critic(critic_minibatch))
        metrics.append(actor.update(minibatch).metrics)
        if step == 0:
            actor.begin_save(commits.begin(1))
            actor.generate_sequences(PROMPTS, SAMPLING, step=1)
            saved = actor.finish_save()
            commits.commit(1, [file for rank in saved for file in rank.files], {})
    for role in ("actor", "critic"):
        actor.export(role, folder / role, {})
        actor.keep_export(role, folder / role, folder / f"{role}_best")
    names = ("actor", "critic")
    return Found(
        tokens_BT=rollouts.tokens_BT,
        said=said,
        metrics=metrics,
        weights={role: load_file(folder / f"{role}_best/model.safetensors") for role in names},
        updates={role: count for rank in saved for role, count in rank.updates.items()},
        files=[file.name for rank in saved for file in rank.files],
        moments=actor.flush_moments(),
        plan=actor.memory_plan(),
    )


@pytest.fixture(scope="module")
def run(
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> Callable[..., Found]:
    """Train in processes of a configuration."""

    def run_of(folder: Path, overrides: dict[str, Any], resumed: Path | None = None) -> Found:
        config = run_config(random_model(False), PPO | overrides)
        plan = unordered_shardings(config).ordered.plan
        group = forked_workers.start(plan)
        try:
            return trained(worker_handle(group, plan), folder, resumed)
        finally:
            group.stop()

    return run_of


def assert_same(found: Found, expected: Found, *, behind: int = 0) -> None:
    """Compare two runs to the bit, behind so many steps of the second."""
    assert torch.equal(found.tokens_BT, expected.tokens_BT)
    assert len(found.said) == len(expected.said) - 3 * behind
    for ours, theirs in zip(found.said, expected.said[3 * behind :], strict=True):
        assert torch.equal(ours, theirs)
    assert found.metrics == expected.metrics[2 * behind :]
    for role, weights in expected.weights.items():
        assert weights.keys() == found.weights[role].keys()
        for name, tensor in weights.items():
            assert torch.equal(found.weights[role][name], tensor), (role, name)


def check_bytes(found: Found) -> None:
    """Compare what lay on each device in each phase with what was planned for it."""
    for rank, moments in enumerate(found.moments):
        planned = {at.label: at.region_bytes for at in found.plan.of_rank(rank)}
        measured = [at for at in moments if at.label == at.phase and at.label in planned]
        assert len({at.label for at in measured}) >= 3
        for at in measured:
            there = {name: size for name, size in at.region_bytes.items() if size}
            assert there == {name: size for name, size in planned[at.label].items() if size}


def test_a_run_of_two_ranks_is_that_of_one_to_the_bit_and_has_the_planned_bytes(
    run: Callable[..., Found], tmp_path: Path
) -> None:
    one = run(tmp_path / "one", {RESOURCE.format("actor", "num_npus"): 1})
    two = run(tmp_path / "two", spread(1))
    assert_same(two, one)
    assert two.metrics[0]["value_loss"] != two.metrics[2]["value_loss"]
    assert two.updates == one.updates == {"actor": 1, "critic": 1}
    assert two.files == ["actor-00000.safetensors", "critic-00001.safetensors"]
    check_bytes(two)
    phases = [{at.phase for at in moments} for moments in two.moments]
    assert phases[0] - phases[1] == {"forward", "train"}
    assert phases[1] - phases[0] == {"critic_forward", "critic_train"}
    # A checkpoint of either is one of both.
    checkpoint = tmp_path / "two" / "checkpoints" / "step-00000001"
    assert_same(run(tmp_path / "again", spread(1), checkpoint), one, behind=1)
    shared = {RESOURCE.format("actor", "num_npus"): 1}
    assert_same(run(tmp_path / "shared", shared, checkpoint), one, behind=1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "layouts",
    [
        {
            "actor_config.tensor_model_parallel_size": 2,
            "critic_config.tensor_model_parallel_size": 1,
            "critic_config.pipeline_model_parallel_size": 2,
            "ref_config.tensor_model_parallel_size": 2,
        },
        {
            "actor_config.backend": "archon:d2",
            "critic_config.backend": "megatron:t2",
            "critic_config.tensor_model_parallel_size": 2,
        },
    ],
)
def test_four_ranks_are_two_to_the_bit_in_layouts_that_differ(
    layouts: dict[str, Any], run: Callable[..., Found], tmp_path: Path
) -> None:
    two = run(tmp_path / "two", layouts | {RESOURCE.format("actor", "num_npus"): 2})
    four = run(tmp_path / "four", layouts | spread(2))
    assert_same(four, two)
    check_bytes(four)
