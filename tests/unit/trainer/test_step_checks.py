"""Which checks end a run after a step, and which only print a note."""

from dataclasses import replace
from pathlib import Path

import pytest
from memory_roles import MemoryRoles, config, data, lines, rewards, run_log
from test_grpo_trainer import build

from mindrl.batch.experience import Minibatch, PolicyUpdate
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores
from mindrl.checkpoint.commits import Commits
from mindrl.errors import LogprobGapError, MindrlError, NonfiniteError, SkippedUpdatesError
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.step_checks import StepChecks


@pytest.mark.parametrize("gap", [0.5, -0.5])
def test_a_gap_beyond_the_limit_is_warned_of_at_once_and_ends_the_run_in_the_third_step_of_a_row(
    gap: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roles = MemoryRoles(gap=gap)
    trainer = build(tmp_path, roles, train_iters=5)
    with pytest.raises(LogprobGapError) as caught:
        trainer.run()
    differ = "rollout and training log-probs differ by 0.5 nats on average"
    assert str(caught.value) == (
        f"step 3: {differ} (rl_config.max_logprob_gap=0.1) for 3 step(s) in a row: weights, "
        "temperature or precision of rollout engine and trainer differ"
    )
    assert [record.message for record in caplog.records] == [
        f"step {step}: {differ} (rl_config.max_logprob_gap=0.1); 3 such steps in a row end the run"
        for step in (1, 2)
    ]
    assert len(lines(tmp_path / "metrics.jsonl")) == 3
    assert "export model" not in roles.calls
    assert trainer.run_log.summary.model_step is None


def test_a_step_all_of_whose_tokens_are_of_earlier_steps_says_nothing_of_the_gap() -> None:
    checks = StepChecks(0.1, 2)
    far = {"logprob_gap/mean": 0.5}
    assert len([*checks.warnings(1, far)]) == 1
    assert [*checks.warnings(2, {})] == []
    with pytest.raises(LogprobGapError):
        [*checks.warnings(3, far)]


def test_a_step_within_the_limit_begins_a_new_row(tmp_path: Path) -> None:
    class Healing(MemoryRoles):
        def compute_log_prob(self, sequences: Sequences) -> Logprobs:
            self.gap = 0.0 if len(self.asked) % 3 == 0 else 0.5
            return super().compute_log_prob(sequences)

    build(tmp_path, Healing(), train_iters=6).run()
    steps = lines(tmp_path / "metrics.jsonl")
    assert [round(step["logprob_gap/mean"], 6) for step in steps] == [0.5, 0.5, 0.0] * 2


@pytest.mark.parametrize("max_logprob_gap", [None, 0.1])
def test_log_probs_that_are_not_finite_end_the_run_in_the_third_step_of_a_row(
    max_logprob_gap: float | None, tmp_path: Path
) -> None:
    trainer = build(
        tmp_path, MemoryRoles(gap=float("nan")), max_logprob_gap=max_logprob_gap, train_iters=5
    )
    with pytest.raises(LogprobGapError) as caught:
        trainer.run()
    text = "rollout and training log-probs are not finite at 8 token(s)"
    assert str(caught.value).startswith(f"step 3: {text} for 3 step(s) in a row: ")
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["nonfinite/logprob_gap"] for step in steps] == [8.0] * 3
    assert not any("logprob_gap/mean" in step for step in steps)


def test_where_no_gap_is_judged_one_of_9_nats_is_not(tmp_path: Path) -> None:
    build(tmp_path, MemoryRoles(gap=9.0), max_logprob_gap=None, train_iters=4).run()
    assert len(lines(tmp_path / "metrics.jsonl")) == 4


def test_one_token_without_a_log_prob_is_told_and_the_gap_is_measured_at_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Once(MemoryRoles):
        def compute_log_prob(self, sequences: Sequences) -> Logprobs:
            found = super().compute_log_prob(sequences)
            if len(self.asked) == 2:
                found.logprobs_BT[0, -1] = float("inf")
            return found

    build(tmp_path, Once(gap=0.05), train_iters=3).run()
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["logprob_gap/max"] for step in steps] == pytest.approx([0.05] * 3)
    assert ["nonfinite/logprob_gap" in step for step in steps] == [False, True, False]
    differ = "rollout and training log-probs differ by 0.05 nats on average"
    differ += " (rl_config.max_logprob_gap=0.1)"
    ends = "; 3 such steps in a row end the run"
    assert [record.message for record in caplog.records] == [
        "step 2: not finite: logprob_gap",
        f"step 2: {differ}, and are not finite at 1 token(s){ends}",
    ]


def test_a_metric_that_is_no_finite_number_ends_the_run_and_is_named(tmp_path: Path) -> None:
    class Overflowing(MemoryRoles):
        def update(self, minibatch: Minibatch) -> PolicyUpdate:
            found = super().update(minibatch)
            return replace(found, metrics=found.metrics | {"ratio": float("inf")})

    roles = Overflowing()
    with pytest.raises(MindrlError) as caught:
        build(tmp_path, roles, train_iters=3).run()
    assert str(caught.value) == "step 1: metrics are not finite: update/ratio"
    assert "export model" not in roles.calls


def test_a_skipped_update_is_counted_and_told_and_enters_no_mean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Two updates a step; the third of all is not taken.
    roles = MemoryRoles(grad_norm=lambda update: float("nan") if update == 3 else 0.5)
    trainer = build(tmp_path, roles, train_iters=2)
    trainer.run()
    first, second = lines(tmp_path / "metrics.jsonl")
    assert (first["update/skipped"], first["update/policy_loss"]) == (0.0, 1.5)
    assert (second["update/skipped"], second["update/policy_loss"]) == (1.0, 4.0)
    assert second["update/grad_norm"] == 0.5
    assert [record.message for record in caplog.records] == [
        "step 2: not finite: a gradient norm",
        "step 2: 1 update(s) of the actor skipped",
    ]
    assert trainer.run_log.close()["skipped_updates"] == 1


@pytest.mark.parametrize("grad_norm", [float("nan"), float("inf")])
def test_three_steps_in_a_row_without_any_update_end_the_run(
    grad_norm: float, tmp_path: Path
) -> None:
    roles = MemoryRoles(grad_norm=lambda _: grad_norm)
    trainer = build(tmp_path, roles, train_iters=5, save_interval=5)
    with pytest.raises(SkippedUpdatesError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "step 3: all updates of the actor in 3 steps were skipped because its loss or gradient was "
        "not finite; its weights are unchanged"
    )
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["update/skipped"] for step in steps] == [2.0] * 3
    assert not any("update/grad_norm" in step for step in steps)
    # The weights are whole.
    assert roles.records == [{"step": 3}]
    assert Commits(tmp_path / "checkpoints").steps() == [3]


class OnWorker1(MemoryRoles):
    """The second update of all is skipped, for worker 1 had a loss that is no number."""

    def __init__(self) -> None:
        super().__init__(grad_norm=lambda update: float("nan") if update == 2 else 0.5)

    def flush_metrics(self) -> dict[str, float]:
        bad = {"nonfinite/worker_1/actor_loss": 1.0} if len(self.minibatches) == 2 else {}
        return super().flush_metrics() | bad


def test_a_run_that_stops_for_it_takes_no_later_update_and_leaves_checkpoint_and_model(
    tmp_path: Path,
) -> None:
    roles = OnWorker1()
    keys = {"global_batch_size": 4, "save_interval": 5, "on_nonfinite": "stop"}
    trainer = build(tmp_path, roles, train_iters=5, **keys)
    with pytest.raises(NonfiniteError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "step 1: not finite: actor_loss of worker_1; megatron_training.on_nonfinite=stop"
    )
    # Of the four updates of the step.
    assert len(roles.minibatches) == 2
    assert Commits(tmp_path / "checkpoints").steps() == [1]
    assert roles.records == [{"step": 1}]


def test_what_could_not_be_measured_is_left_out_where_it_is_known_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Overflowing(OnWorker1):
        def compute_rewards(self, sequences: Sequences) -> SequenceScores:
            scores = super().compute_rewards(sequences)
            if not self.minibatches:
                scores.rewards_B[0] = float("inf")
            return scores

    roles = Overflowing()
    sources, log = rewards(roles, model_weight=1.0), run_log(tmp_path, 2)
    chosen = config(train_iters=2)
    PolicyTrainer(chosen, data(), roles, sources, log, max_logprob_gap=0.1).run()
    first, second = lines(tmp_path / "metrics.jsonl")
    gone = {"reward/mean", "reward/std", "reward/model", "nonfinite/worker_1/actor_loss"}
    assert first.keys() ^ second.keys() == gone
    assert [record.message for record in caplog.records] == [
        "step 1: not finite: actor_loss of worker_1",
        "step 1: 1 update(s) of the actor skipped",
    ]
