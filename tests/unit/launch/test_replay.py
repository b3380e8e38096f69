"""The files of a step suffice to replay it, or the replay is refused with a message."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from memory_roles import MemoryRoles, config, data, rewards, run_log

from mindrl.config.changed import with_value
from mindrl.errors import CheckpointError, ConfigError
from mindrl.launch.replay import Recorded, recorded_step, run_again
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.run_log import RunFolder

ESTIMATORS = pytest.mark.parametrize("estimator", ["group_norm", "gae"])
KEYS = {"train_iters": 6, "save_interval": 2, "keep_rollouts": 4, "shuffle_mini_batch": True}
CONFIG = config(**KEYS)
"""Checkpoints behind steps 2, 4 and 6, of which two stay."""


def built(root: Path, estimator: str, roles: MemoryRoles) -> PolicyTrainer:
    log = run_log(root, 6, *(["critic"] if estimator == "gae" else []))
    chosen = config(adv_estimator=estimator, **KEYS)
    return PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1)


def trained(root: Path, estimator: str = "group_norm") -> RunFolder:
    trainer = built(root, estimator, MemoryRoles())
    trainer.run()
    trainer.run_log.close()
    return trainer.run_log.folder


def on_record(folder: RunFolder, step: int) -> Recorded:
    """Take the losses out, which count the updates of the process in these roles."""
    recorded = recorded_step(CONFIG, folder, step, generates=False)
    kept = {name: value for name, value in recorded.metrics.items() if "_loss" not in name}
    return replace(recorded, metrics=kept)


@ESTIMATORS
def test_a_stored_step_is_learned_from_without_a_rollout_and_a_score(
    estimator: str, tmp_path: Path
) -> None:
    folder, roles = trained(tmp_path / "run", estimator), MemoryRoles()
    recorded = on_record(folder, 5)
    assert recorded.before is not None
    trainer = built(tmp_path / "again", estimator, roles)
    trainer.resume(recorded.before.step, recorded.before.state)
    found = run_again(trainer, recorded, generates=False, scores=False)
    assert {each.name for each in found.differences} <= {"update/policy_loss", "critic/value_loss"}
    assert found.count >= len(recorded.metrics) >= 12
    assert "generate" not in roles.calls
    assert "score" not in roles.calls
    assert roles.calls.count("update") == 2


@ESTIMATORS
def test_asked_for_it_rolls_out_and_scores_again_and_a_changed_reward_is_named(
    estimator: str, tmp_path: Path
) -> None:
    recorded, roles = on_record(trained(tmp_path / "run", estimator), 5), MemoryRoles()
    assert recorded.before is not None
    trainer = built(tmp_path / "again", estimator, roles)
    trainer.resume(recorded.before.step, recorded.before.state)
    found = run_again(trainer, recorded, generates=True, scores=True)
    assert (roles.calls[:2], roles.calls.count("score")) == (["flush", "generate"], 1)
    # Their number, four responses of two tokens to prompts of two, and the log-probs.
    assert found.count - len(found.differences) == 1 + 16 + 8 + len(recorded.metrics)
    changed = replace(recorded, metrics=recorded.metrics | {"reward/mean": 0.25})
    again = run_again(
        built(tmp_path / "other", estimator, MemoryRoles()), changed, generates=False, scores=True
    )
    assert ("reward/mean", 0.25, 0.5) in [
        (each.name, each.recorded, each.replayed) for each in again.differences
    ]


def test_without_stored_responses_it_learns_from_new_ones(tmp_path: Path) -> None:
    folder, roles = trained(tmp_path / "run"), MemoryRoles()
    recorded = recorded_step(CONFIG, folder, 1, generates=True)
    assert (recorded.batch, recorded.before) == (None, None)
    found = run_again(
        built(tmp_path / "again", "group_norm", roles), recorded, generates=True, scores=False
    )
    assert roles.calls[:2] == ["generate", "score"]
    assert found.differences == ()


@pytest.mark.parametrize(
    ("step", "generates", "words"),
    [
        (6, False, "a checkpoint of step 5; steps that can be replayed: 5"),
        (1, False, "a file in rollouts/ (not needed with --generate); steps that can be "),
        (4, True, "a checkpoint of step 3; steps that can be replayed: 1, 5"),
        (7, False, "a line in metrics.jsonl, a file in rollouts/ (not needed with --generate);"),
    ],
)
def test_a_step_that_cannot_be_replayed_is_refused_with_those_that_can(
    step: int, generates: bool, words: str, tmp_path: Path
) -> None:
    folder = trained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        recorded_step(CONFIG, folder, step, generates=generates)
    assert f"--step {step}: {tmp_path} lacks {words}" in str(caught.value)


def test_the_first_step_of_a_run_that_begins_from_another_has_no_initial_models(
    tmp_path: Path,
) -> None:
    folder, begun = trained(tmp_path), config(train_iters=6, resume="/runs/other")
    with pytest.raises(ConfigError, match=r"a checkpoint of step 0; .* replayed: 5$"):
        recorded_step(begun, folder, 1, generates=True)


def test_with_experts_of_the_engine_the_responses_are_generated_again(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    routed = with_value(CONFIG, "actor_config.router_replay", "R3")
    with pytest.raises(ConfigError, match=r"^--step 5: .*router_replay=R3 needs; add --generate$"):
        recorded_step(routed, folder, 5, generates=False)
    assert recorded_step(routed, folder, 5, generates=True).step == 5


def test_a_folder_without_a_step_and_a_damaged_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps that can be replayed: none"):
        recorded_step(CONFIG, RunFolder(tmp_path / "none"), 1, generates=True)
    folder = trained(tmp_path)
    recorded = recorded_step(CONFIG, folder, 5, generates=False)
    assert recorded.before is not None
    weights = recorded.before.folder / "actor-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"actor-00000\.safetensors has \d+ bytes"):
        recorded_step(CONFIG, folder, 5, generates=False)


def test_numbers_that_were_recorded_are_those_of_the_line_of_the_step(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    lines = map(json.loads, folder.metrics.read_text().splitlines())
    (line,) = (each for each in lines if each["step"] == 5)
    recorded = recorded_step(CONFIG, folder, 5, generates=False).metrics
    assert recorded == {name: line[name] for name in recorded}
    assert {name.partition("/")[0] for name in line.keys() - recorded.keys()} == {
        *("step", "seconds", "bytes", "throughput")
    }
