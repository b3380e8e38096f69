"""PPO with the actor on one worker, the critic on another, and the reference on both."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from clusters import ray_cluster
from disturbances import disturbance, environment, witnesses
from program import KEEPS, STEPS, kill_at_once, one_core, start_program
from test_resume import outcome, resume

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

ACTORS = "rl_config.actor_resource.num_npus=1"
SPREAD = (
    *(ACTORS, "rl_config.critic_resource.num_npus=1", "rl_config.critic_resource.first_npu=1"),
    "rl_config.reference_resource.num_npus=2",
)
APART = ("rl_config.use_integrated_worker=false", "rl_config.rollout_resource.num_npus=1")
ASKED = (
    "rl_config.test_freq=0",
    # Both workers then read as many sequences at a time as one of them would alone.
    "rl_config.ref_forward_micro_batch_size=128",
    *KEEPS,
)
OF_THE_ENGINES = ("logprob_gap/", "memory/", "throughput/")
"""Metrics of how many engines there are: other batches of theirs give other last bits."""


def learned(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of what was learned, step by step."""
    return [
        {name: value for name, value in line.items() if not name.startswith(OF_THE_ENGINES)}
        for line in found["metrics"]
    ]


def test_two_workers_with_a_model_each_learn_what_one_with_both_does_and_survive_a_kill(
    tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", *ASKED]
    with one_core():
        shared = start_program(tmp_path / "shared", [*asked, ACTORS], program="train_ppo")
    assert shared.process.wait(timeout=600) == 0, shared.text()
    spread = start_program(tmp_path / "spread", [*asked, *SPREAD], program="train_ppo")
    assert spread.process.wait(timeout=600) == 0, spread.text()
    theirs, ours = outcome(shared.folder), outcome(spread.folder)
    assert learned(ours) == learned(theirs)
    assert (ours["model"], ours["critic"]) == (theirs["model"], theirs["critic"])
    assert ours["samples"] == theirs["samples"]
    assert {*ours["state"]} == {"actor-00000.safetensors", "critic-00001.safetensors"}

    planned = [disturbance("critic's update", "worker 1", "SIGKILL", call=4)]
    around = environment(tmp_path / "disturbed", planned)
    killed = start_program(tmp_path / "killed", [*asked, *SPREAD], around, program="train_ppo")
    killed.wait_for_line("restart 1: ")
    killed.wait_for_steps(4)
    assert len(witnesses(tmp_path / "disturbed")) == 1
    kill_at_once(killed.process)
    resumed = resume(killed.folder, "train_ppo")
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    assert outcome(resumed.folder) == ours
    assert [line["step"] for line in resumed.steps()] == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def three_devices() -> Iterator[dict[str, str]]:
    """The environment to join a cluster of three devices, however many cores there are."""
    with ray_cluster(3) as (_, environment):
        yield environment


def test_two_workers_with_a_model_each_and_a_rollout_apart_learn_what_one_with_all_does(
    tiny_model: Path, three_devices: dict[str, str], tmp_path: Path
) -> None:
    """Only the actor has weights for the replica; the link has the critic's worker in it too."""
    asked = [f"actor_config.load={tiny_model}", *ASKED]
    with one_core():
        one = start_program(tmp_path / "one", [*asked, ACTORS], program="train_ppo")
    assert one.process.wait(timeout=600) == 0, one.text()
    spread = [*asked, *SPREAD, *APART]
    three = start_program(tmp_path / "three", spread, three_devices, program="train_ppo")
    assert three.process.wait(timeout=600) == 0, three.text()
    theirs, ours = outcome(one.folder), outcome(three.folder)
    assert learned(ours) == learned(theirs)
    for what in ("model", "critic", "samples", "rollouts"):
        assert ours[what] == theirs[what], what
    assert {*ours["state"]} == {"actor-00000.safetensors", "critic-00001.safetensors"}
    assert [*ours["state"].values()] == [*theirs["state"].values()]
    for step in three.steps()[1:]:
        assert step["bytes/reshard_sent"] == step["bytes/reshard_needed"]


def test_the_critic_may_learn_beside_an_actor_whose_responses_are_drawn_ahead(
    tiny_model: Path, three_devices: dict[str, str], tmp_path: Path
) -> None:
    ahead = ("rl_config.step_order=asynchronous", "rl_config.max_staleness=1")
    asked = [f"actor_config.load={tiny_model}", *ASKED, *SPREAD, *APART, *ahead]
    run = start_program(tmp_path / "ahead", asked, three_devices, program="train_ppo")
    assert run.process.wait(timeout=600) == 0, run.text()
    steps = run.steps()
    assert len(steps) == STEPS
    assert max(step["staleness/max"] for step in steps) == 1
    assert all(step["logprob_gap/mean"] < 1e-5 for step in steps if "logprob_gap/mean" in step)
    assert all("critic/value_loss" in step for step in steps)
