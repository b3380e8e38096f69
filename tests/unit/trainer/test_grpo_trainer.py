"""The order of a GRPO step, and the checks that end a run of any trainer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_roles import (
    PROMPTS,
    SAMPLING,
    MemoryRoles,
    config,
    data,
    lines,
    rewards,
    run_log,
)

from mindrl.batch.experience import Minibatch, PolicyUpdate
from mindrl.batch.prompts import Prompt
from mindrl.errors import RewardError, StopRequestedError
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.trainer.policy_trainer import PolicyTrainer


def build(
    root: Path,
    roles: MemoryRoles,
    *,
    test: Sequence[Prompt] = (),
    with_reference: bool = False,
    max_logprob_gap: float | None = 0.1,
    **changes: Any,
) -> PolicyTrainer:
    chosen = config(init_kl_coef=0.1 if with_reference else 0.0, **changes)
    return PolicyTrainer(
        chosen,
        data(test),
        roles,
        rewards(roles),
        run_log(root, chosen.megatron_training.train_iters),
        max_logprob_gap=max_logprob_gap,
    )


def test_a_step_rolls_out_rates_scores_and_updates_in_this_order(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, with_reference=True).run()
    assert roles.calls == [
        "generate",
        "score",
        "reference log-probs",
        "log-probs",
        "update",
        "update",
        "flush",
        "export model",
        "flush",
    ]


def test_without_a_reference_none_is_asked_and_the_minibatches_carry_none(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles).run()
    assert "reference log-probs" not in roles.calls
    assert [minibatch.ref_logprobs_BT for minibatch in roles.minibatches] == [None, None]


def test_updates_get_log_probs_of_the_trainer_and_advantages_on_response_tokens_only(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles(gap=0.05)
    build(tmp_path, roles, with_reference=True, epochs=2).run()
    # Two prompts, one an update, twice.
    assert len(roles.minibatches) == 4
    for minibatch in roles.minibatches:
        assert minibatch.response_mask_BT.tolist() == [[False, False, True, True]] * 2
        assert minibatch.old_logprobs_BT is not None
        assert minibatch.old_logprobs_BT[:, 2:].flatten().tolist() == pytest.approx([-1.05] * 4)
        assert minibatch.ref_logprobs_BT is not None
        assert minibatch.ref_logprobs_BT[:, 2:].flatten().tolist() == [-3.0] * 4
        # Rewards 0 and 1: each is 0.5 from the mean, the standard deviation is sqrt(1/2).
        low, high = minibatch.advantages_BT
        assert low.tolist() == pytest.approx([0, 0, -(0.5**0.5), -(0.5**0.5)], abs=1e-4)
        assert high.tolist() == pytest.approx([0, 0, 0.5**0.5, 0.5**0.5], abs=1e-4)


def test_the_only_update_of_a_step_finds_its_old_log_probs_and_measures_the_gap(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles(gap=0.05)
    roles.keeps_logprobs = True
    build(tmp_path, roles, mini_batch_size=2).run()
    assert roles.calls == ["generate", "score", "update", "flush", "export model", "flush"]
    assert [minibatch.old_logprobs_BT for minibatch in roles.minibatches] == [None]
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["logprob_gap/mean"] == pytest.approx(0.05, abs=1e-7)
    assert "seconds/log_prob" not in step


def test_old_log_probs_of_the_engine_meet_the_trainer_in_the_first_update_of_a_step(
    tmp_path: Path,
) -> None:
    class Drifting(MemoryRoles):
        def update(self, minibatch: Minibatch) -> PolicyUpdate:
            found = super().update(minibatch)
            self.gap += 1.0
            return found

    roles = Drifting(gap=0.05)
    roles.keeps_logprobs = True
    build(tmp_path, roles, old_log_probs="from_rollout").run()
    assert roles.calls[:4] == ["generate", "score", "update", "update"]
    for minibatch in roles.minibatches:
        assert minibatch.old_logprobs_BT is not None
        assert minibatch.old_logprobs_BT[:, 2:].flatten().tolist() == [-1.0] * 4
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["logprob_gap/max"] == pytest.approx(0.05, abs=1e-7)


def test_steps_take_prompts_in_the_order_of_the_data_and_count_from_1(tmp_path: Path) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, train_iters=3)
    trainer.run()
    order = trainer.order
    assert [(uids, step) for uids, _, step in roles.asked] == [
        (order.indices(0, 2), 1),
        (order.indices(2, 2), 2),
        (order.indices(4, 2), 3),
    ]
    assert {sampling for _, sampling, _ in roles.asked} == {SAMPLING}


def test_metrics_of_a_step_join_all_parts_under_their_names(tmp_path: Path) -> None:
    build(tmp_path, MemoryRoles(gap=0.05)).run()
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["step"] == 1
    assert step["rollout/response_tokens"] == 8.0
    assert step["reward/mean"] == 0.5
    assert step["update/policy_loss"] == 1.5
    assert step["update/grad_norm"] == 0.5
    assert step["bytes/reshard_sent"] == 7.0
    assert step["logprob_gap/mean"] == pytest.approx(0.05, abs=1e-7)
    assert step["logprob_gap/max"] == pytest.approx(0.05, abs=1e-7)
    assert step["advantage/zero_fraction"] == 0.0
    assert step["throughput/response_tokens_per_second"] == pytest.approx(
        8.0 / step["seconds/step"]
    )
    stages = ("rollout", "reward", "log_prob", "update")
    assert sum(step[f"seconds/{stage}"] for stage in stages) <= step["seconds/step"]


def test_samples_of_a_step_go_over_its_prompts_with_text_and_reward(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles).run()
    samples = lines(tmp_path / "samples.jsonl")
    first, second = roles.asked[0][0]
    assert [(each["prompt"], each["response"], each["reward"]) for each in samples] == [
        (f"prompt {first}", "20 30", 0.0),
        (f"prompt {second}", "20 30", 0.0),
        (f"prompt {first}", "20 31", 1.0),
    ]
    assert samples[0]["reference"] == f"answer {first}"
    assert samples[0]["response_tokens"] == 2


@pytest.mark.parametrize(
    ("test_freq", "evaluated"), [(0, [0, 4]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3, 4])]
)
def test_evaluations_come_before_every_so_many_steps_and_once_at_the_end(
    test_freq: int, evaluated: list[int], tmp_path: Path
) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, test=PROMPTS[:2], train_iters=4, test_freq=test_freq).run()
    accuracies = [
        line for line in lines(tmp_path / "metrics.jsonl") if "evaluation/accuracy" in line
    ]
    assert [line["step"] for line in accuracies] == evaluated
    greedy = [(step, sampling) for _, sampling, step in roles.asked if sampling.is_greedy]
    assert [step for step, _ in greedy] == evaluated
    assert {
        (sampling.samples_per_prompt, sampling.section.max_tokens) for _, sampling in greedy
    } == {(1, 2)}


def test_engines_are_to_have_the_weights_behind_the_step_before_and_evaluations_those_of_theirs(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, test=PROMPTS[:2], train_iters=3, test_freq=2).run()
    # Before training, steps 1 and 2, behind 2, step 3, behind it.
    assert roles.published == [0, 0, 1, 2, 2, 3]


def test_the_accuracy_of_a_reward_from_minus_1_to_1_lies_between_0_and_1(tmp_path: Path) -> None:
    class Halves(MemoryRoles):
        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            found = super().score(responses, answers)
            halves = tuple((-1.0, 1.0)[row % 2] for row in range(len(responses)))
            return replace(
                found, components={"exact": halves}, ranges={"exact": ScoreRange(-1.0, 1.0)}
            )

    trainer = build(tmp_path, Halves(), test=PROMPTS[:4])
    trainer.evaluate(0)
    assert trainer.run_log.summary.accuracy_before == 0.5


class FailingRules(MemoryRoles):
    """Rules that fail for the first responses of a batch, batch by batch."""

    def __init__(self, *failed: int) -> None:
        super().__init__()
        self.failed = list(failed)

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        found, count = super().score(responses, answers), self.failed.pop(0)
        first = Failure(kind="exception", detail="'KeyError: 1' (/rewards.py:3)")
        return replace(
            found, failures=(Failures(function="exact", count=count, first=first, response=0),)
        )


def test_a_run_goes_on_where_all_but_one_of_its_rewards_fail(tmp_path: Path) -> None:
    trainer = build(tmp_path, FailingRules(3, 3), train_iters=2)
    trainer.run()
    assert trainer.run_log.close()["reward_failures"] == {"exact": {"exception": 6}}


def test_a_function_that_fails_for_a_whole_step_ends_the_run_before_the_step_is_learned(
    tmp_path: Path,
) -> None:
    roles = FailingRules(1, 4)
    trainer = build(tmp_path, roles, train_iters=3)
    with pytest.raises(RewardError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "step 2: rl_config.verifier_function='exact': no score for any of 4 responses; the first: "
        "exception: 'KeyError: 1' (/rewards.py:3); rl_config.on_reward_failure=stop_if_all_fail"
    )
    assert roles.calls.count("update") == 2
    # What the first step has learned is not lost.
    assert (roles.calls[-2:], roles.records) == (["export model", "flush"], [{"step": 1}])
    assert trainer.run_log.close()["reward_failures"] == {"exact": {"exception": 5}}


def test_a_run_may_end_with_the_first_reward_that_fails_or_go_on_without_any(
    tmp_path: Path,
) -> None:
    with pytest.raises(RewardError, match=r"step 1: .* no score for 1 of 4 responses; the first"):
        build(tmp_path / "a", FailingRules(1), train_iters=3, on_reward_failure="stop").run()
    trainer = build(tmp_path / "b", FailingRules(4, 4), train_iters=2, on_reward_failure="worst")
    trainer.run()
    failed = [line["reward/failed_share"] for line in lines(tmp_path / "b/metrics.jsonl")]
    assert failed == [1.0, 1.0]


def test_a_function_that_fails_for_a_whole_evaluation_ends_the_run_before_it_trains(
    tmp_path: Path,
) -> None:
    roles = FailingRules(3)
    with pytest.raises(RewardError, match=r"step 0: .* no score for any of 3 responses"):
        build(tmp_path, roles, test=PROMPTS[:3]).run()
    assert roles.calls == ["generate", "score"]


def test_without_held_out_prompts_nothing_is_evaluated(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, test_freq=1).run()
    assert len(roles.asked) == 1
    assert not (tmp_path / "evaluations.jsonl").read_text("utf-8")


@pytest.mark.parametrize(("save_interval", "exports"), [(0, 1), (1, 5), (2, 3), (5, 1)])
def test_the_model_is_exported_every_so_many_steps_and_once_at_the_end(
    save_interval: int, exports: int, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, train_iters=5, save_interval=save_interval)
    trainer.run()
    assert roles.calls.count("export model") == exports
    # What the switches of an export cost belongs to no step either.
    assert roles.calls[-2:] == ["export model", "flush"]
    assert trainer.run_log.summary.model_step == 5


class MemoryNotes:
    """Keeps what it is told, and has something to say of the second step."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def note(self, step: int, workers: Sequence[Sequence[MeasuredSnapshot]]) -> str | None:
        self.steps.append((step, workers[0][0].total_bytes))
        return "more than was predicted" if step == 2 else None


def test_the_memory_of_the_first_two_steps_is_noted_and_a_finding_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roles, notes = MemoryRoles(), MemoryNotes()
    trainer = build(tmp_path, roles, train_iters=3, memory_timeline_steps=2)
    trainer.run_log.note_memory = notes.note
    trainer.run()
    assert notes.steps == [(1, 5), (2, 5)]
    assert not roles.records_memory
    assert [record.message for record in caplog.records] == ["more than was predicted"]


def test_an_export_says_its_step_and_what_the_run_was_made_with(tmp_path: Path) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, train_iters=5, save_interval=2)
    trainer.run_log.summary.provenance = {"seed": 7}
    trainer.run()
    assert roles.records == [{"step": step, "seed": 7} for step in (2, 4, 5)]
    summary = trainer.run_log.close()
    assert (summary["model_step"], summary["seed"]) == (5, 7)


class Learner(MemoryRoles):
    """Answers right in some steps' evaluations: those of the second update, and the fourth."""

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        scores = super().score(responses, answers)
        greedy = len(responses) == 1
        right = (float(len(self.minibatches) in (4, 8)),)
        return replace(scores, rewards=right, components={"exact": right}) if greedy else scores


def test_the_best_export_by_evaluation_is_kept_beside_the_newest_and_the_first_of_equals_wins(
    tmp_path: Path,
) -> None:
    roles = Learner()
    # Two updates a step: step 2 and step 4 are right, and 4 is no better than 2.
    trainer = build(tmp_path, roles, train_iters=5, test=PROMPTS[:1], test_freq=1, save_interval=1)
    trainer.run()
    exports = [call for call in roles.calls if call.startswith(("export", "keep"))]
    kept = "keep model of actor as model_best"
    assert exports == ["export model", kept, "export model", kept, *["export model"] * 3]
    summary = trainer.run_log.close()
    assert summary["model_best"] == str(tmp_path / "model_best")
    assert (summary["model_best_step"], summary["model_best_accuracy"]) == (2, 1.0)
    assert (summary["model_step"], summary["accuracy_after"]) == (5, 0.0)


def test_an_evaluation_of_a_step_that_is_not_exported_keeps_nothing(tmp_path: Path) -> None:
    roles = Learner()
    build(tmp_path, roles, train_iters=3, test=PROMPTS[:1], test_freq=2).run()
    exports = [call for call in roles.calls if call.startswith(("export", "keep"))]
    assert exports == ["export model", "keep model of actor as model_best"]


def asked_in(calls: Sequence[str], moment: str, count: int) -> Callable[[], None]:
    """Ask to stop as soon as a call has been made so often."""

    def check_interrupt() -> None:
        if calls.count(moment) >= count:
            raise StopRequestedError("stopped by SIGINT")

    return check_interrupt


@pytest.mark.parametrize(
    ("moment", "count", "steps"),
    [
        # In the rollout and in the scoring of the third step: that step is given up.
        ("generate", 3, 2),
        ("log-probs", 3, 2),
        # In its second update, of two: it is finished.
        ("update", 6, 3),
    ],
)
def test_a_run_that_is_asked_to_stop_exports_its_last_whole_step(
    moment: str, count: int, steps: int, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, train_iters=9)
    with pytest.raises(StopRequestedError):
        trainer.run(asked_in(roles.calls, moment, count))
    assert roles.calls.count("update") == 2 * steps
    assert roles.calls[-2:] == ["export model", "flush"]
    assert roles.records == [{"step": steps}]
    assert trainer.run_log.close()["model_step"] == steps


def test_what_is_exported_or_was_never_learned_is_not_exported_again_on_the_way_out(
    tmp_path: Path,
) -> None:
    first, second = MemoryRoles(), MemoryRoles()
    with pytest.raises(StopRequestedError):
        build(tmp_path, first).run(asked_in(first.calls, "generate", 1))
    assert "export model" not in first.calls
    with pytest.raises(StopRequestedError):
        build(tmp_path, second, train_iters=9, save_interval=2).run(
            asked_in(second.calls, "export model", 1)
        )
    assert second.records == [{"step": 2}]
