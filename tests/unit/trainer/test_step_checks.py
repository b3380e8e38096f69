"""What ends a run after a step, and what is only told."""

from pathlib import Path

import pytest
from memory_roles import MemoryRoles, lines
from test_grpo_trainer import build

from mindrl.batch.experience import Minibatch
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.errors import LogprobGapError, MindrlError, SkippedUpdatesError


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
        f"step 3: {differ}, rl_config.max_logprob_gap=0.1, for 3 step(s) in a row: the rollout "
        "engine has other weights, another temperature or another precision than the trainer"
    )
    assert [record.message for record in caplog.records] == [
        f"step {step}: {differ}, rl_config.max_logprob_gap=0.1; the run ends if that lasts for "
        "3 steps in a row"
        for step in (1, 2)
    ]
    assert len(lines(tmp_path / "metrics.jsonl")) == 3
    assert "export model" not in roles.calls
    assert trainer.run_log.summary.model_step is None


def test_a_step_within_the_limit_begins_a_new_row(tmp_path: Path) -> None:
    class Healing(MemoryRoles):
        def compute_logprobs(self, sequences: Sequences) -> Logprobs:
            self.gap = 0.0 if len(self.asked) % 3 == 0 else 0.5
            return super().compute_logprobs(sequences)

    build(tmp_path, Healing(), train_iters=6).run()
    steps = lines(tmp_path / "metrics.jsonl")
    assert [round(step["logprob_gap/mean"], 6) for step in steps] == [0.5, 0.5, 0.0] * 2


def test_a_gap_of_nan_ends_the_run_in_its_first_step_even_where_no_gap_is_judged(
    tmp_path: Path,
) -> None:
    with pytest.raises(LogprobGapError, match=r"^step 1: .* differ by nan nats on average"):
        build(tmp_path, MemoryRoles(gap=float("nan")), max_logprob_gap=None).run()
    other = tmp_path / "other"
    other.mkdir()
    build(other, MemoryRoles(gap=9.0), max_logprob_gap=None, train_iters=4).run()
    assert len(lines(other / "metrics.jsonl")) == 4


def test_a_metric_that_is_no_finite_number_ends_the_run_and_is_named(tmp_path: Path) -> None:
    class Overflowing(MemoryRoles):
        def update(self, minibatch: Minibatch) -> dict[str, float]:
            return super().update(minibatch) | {"ratio": float("inf")}

    roles = Overflowing()
    with pytest.raises(MindrlError) as caught:
        build(tmp_path, roles, train_iters=3).run()
    assert str(caught.value) == "step 1: not a finite number: update/ratio"
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
        "step 2: 1 update(s) of the actor skipped: the norm of the gradient is not finite"
    ]
    assert trainer.run_log.close()["skipped_updates"] == 1


@pytest.mark.parametrize("grad_norm", [float("nan"), float("inf")])
def test_three_steps_in_a_row_without_any_update_end_the_run(
    grad_norm: float, tmp_path: Path
) -> None:
    roles = MemoryRoles(grad_norm=lambda _: grad_norm)
    trainer = build(tmp_path, roles, train_iters=5)
    with pytest.raises(SkippedUpdatesError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "step 3: the actor has taken no update in 3 steps: the norm of its gradient is not finite; "
        "its weights are those of before"
    )
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["update/skipped"] for step in steps] == [2.0] * 3
    assert not any("update/grad_norm" in step for step in steps)
    # The weights are whole.
    assert roles.records == [{"step": 3}]
