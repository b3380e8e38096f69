"""Steps in which all groups have a signal, and steps with too few such groups."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import MemoryRoles, asked_at, config, data, lines, rewards, run_log

from mindrl.batch.prompts import Prompt
from mindrl.errors import NoSignalError, RewardError, StopRequestedError
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import ENVIRONMENT, Rewarded
from mindrl.trainer.source.group import OpenGroup
from mindrl.trainer.source.group_filter import GroupFilter, ScoredGroups

KEYS = {"filter_groups_enable": True, "no_shuffle": True, "global_batch_size": 2}
PROMPTS = [
    Prompt(uid=uid, token_ids=(uid + 1, 9), text=f"prompt {uid}", answer=str(uid))
    for uid in range(20)
]
EVERY_FIFTH = range(0, 20, 5)


class Easy(MemoryRoles):
    """Both responses are right, but for those to some prompts: there one is."""

    def __init__(self, differing: Container[int], failing: Iterable[bool] = ()) -> None:
        super().__init__()
        self.differing = differing
        self.failing = iter(failing)
        """Batches for none of whose responses there is a score."""

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        found = super().score(responses, answers)
        pairs = zip(found.rewards, answers, strict=True)
        scores = tuple(right if int(uid) in self.differing else 1.0 for right, uid in pairs)
        found = replace(found, rewards=scores, components={"exact": scores, "other": found.rewards})
        if next(self.failing, False):
            first = Failure(kind="exception", detail="'KeyError: 1'")
            each = Failures(function="exact", count=len(scores), first=first, response=0)
            return replace(found, failures=(each,))
        return found

    def trained(self) -> list[int]:
        """Return the prompts that were trained on, in order."""
        return [int(each.tokens_BT[0, 0]) - 1 for each in self.minibatches]

    def drawn(self) -> list[list[int]]:
        return [uids for uids, _, _ in self.asked]


def test_groups_that_failed_whole_are_replaced_and_have_no_scores() -> None:
    judged = ScoredGroups(per_step=2, most=8)
    gone = OpenGroup(prompt=0, start_step=1, sequences=())
    judged.add_failed([gone])
    scores = Scores(rewards=(0.0, 1.0), components={}, ranges={}, failures=())
    scored = Rewarded(responses=["a", "b"], scores=scores)
    judged.add([replace(gone, prompt=1)], scored, torch.tensor([0, 0]), [True])
    assert (judged.needed, judged.found, judged.group_B) == (1, 1, [1, 1])
    judged.add([replace(gone, prompt=2)], scored, torch.tensor([0, 0]), [True])
    assert (judged.chosen, judged.used) == ([1, 2], 3)
    assert judged.rewarded().responses == ["a", "b"] * 2


def build(root: Path, roles: MemoryRoles, **changes: Any) -> PolicyTrainer:
    chosen = config(**(KEYS | changes))
    log = run_log(root, chosen.megatron_training.train_iters)
    of_run = data(train=PROMPTS)
    return PolicyTrainer(chosen, of_run, roles, rewards(roles), log, max_logprob_gap=0.1)


def test_an_epoch_with_80_percent_all_right_groups_trains_on_full_steps(tmp_path: Path) -> None:
    roles = Easy(EVERY_FIFTH)
    build(tmp_path, roles, train_iters=4).run()
    # Two groups a step, four with a signal an epoch: an epoch is two steps.
    assert roles.trained() == [0, 5, 10, 15, 0, 5, 10, 15]
    assert all(len(each) == 2 for each in roles.minibatches)
    first, *_ = steps = lines(tmp_path / "metrics.jsonl")
    assert [step["advantage/zero_fraction"] for step in steps] == [0.0] * 4
    # 0 and 1; of two prompts one has a signal, so two more are likely to fill the step; and so on.
    assert roles.drawn()[:3] == [[0, 1], [2, 3], [4, 5]]
    assert (first["groups/rollouts"], first["groups/drawn"]) == (3, 6)
    assert first["groups/without_signal"] == pytest.approx(4 / 6)
    # The second step begins behind 5.
    assert roles.drawn()[3] == [6, 7]


def test_what_lies_behind_the_group_that_fills_a_step_is_drawn_again_by_the_next(
    tmp_path: Path,
) -> None:
    roles = Easy({0, 3, 4, 5})
    build(tmp_path, roles, train_iters=2, global_batch_size=2).run()
    # 0 of 0 and 1; then 2 and 3, of which the last fills the step: none is left over.
    assert roles.drawn() == [[0, 1], [2, 3], [4, 5]]
    others = Easy({0, 2, 3, 4})
    build(tmp_path / "over", others, train_iters=2).run()
    # Here 2 fills it already, and 3 belongs to the second step.
    assert others.drawn() == [[0, 1], [2, 3], [3, 4]]
    assert others.trained() == [0, 2, 3, 4]
    assert [step["groups/answered_again"] for step in lines(tmp_path / "over/metrics.jsonl")] == [
        1,
        0,
    ]


def test_each_prompt_with_a_signal_is_trained_on_once_an_epoch_whatever_its_order(
    tmp_path: Path,
) -> None:
    roles = Easy({1, 2, 3, 7, 11, 19})
    build(tmp_path, roles, train_iters=6, no_shuffle=False).run()
    assert sorted(roles.trained()[:6]) == sorted(roles.trained()[6:]) == [1, 2, 3, 7, 11, 19]
    assert roles.trained()[:6] != roles.trained()[6:]


def test_where_all_groups_have_a_signal_a_step_is_what_it_is_without(tmp_path: Path) -> None:
    filtered, plain = Easy(range(20)), Easy(range(20))
    build(tmp_path / "filtered", filtered, train_iters=3).run()
    build(tmp_path / "plain", plain, train_iters=3, filter_groups_enable=False).run()
    assert filtered.asked == plain.asked
    for ours, theirs in zip(filtered.minibatches, plain.minibatches, strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
        assert torch.equal(ours.advantages_BT, theirs.advantages_BT)


def test_at_the_limit_groups_without_a_signal_fill_the_step_and_the_run_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roles = Easy({0, 9})
    build(tmp_path, roles, train_iters=3, filter_groups_max_batches=2).run()
    # Four prompts a step: 0 and the first of the others; two of 4 to 7; 9 behind one of the others.
    assert roles.trained() == [0, 1, 4, 5, 8, 9]
    assert [len(uids) for uids in roles.drawn()] == [2] * 6
    told = [record.message for record in caplog.records if "no signal" in record.message]
    (line,) = told
    assert line == (
        "step 1: 1 of 2 groups have no signal after the 4 prompts that a step may draw "
        "(rl_config.filter_groups_max_batches): their advantages are 0; see groups/without_signal "
        "for later steps"
    )


@pytest.mark.parametrize("most", [0, 3])
def test_a_set_without_any_signal_ends_in_words_and_what_was_learned_is_exported(
    most: int, tmp_path: Path
) -> None:
    class Mastered(Easy):
        """After two steps all responses are right."""

        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            if len(self.minibatches) >= 4:
                self.differing = ()
            return super().score(responses, answers)

    roles = Mastered(range(20))
    trainer = build(tmp_path, roles, train_iters=50, filter_groups_max_batches=most)
    with pytest.raises(NoSignalError) as caught:
        trainer.run()
    # In one step with 0; at 6 prompts a step behind the fourth that has none, which has 24.
    without = 20 if most == 0 else 24
    assert str(caught.value).startswith(
        "rl_config.filter_groups_enable=true: the rewards of the responses to each of the last "
        f"{without} prompts are equal, and the data has 20: there is nothing to learn from"
    )
    assert roles.records == [{"step": 2 if most == 0 else 5}]


def test_groups_may_be_judged_by_one_function_alone(tmp_path: Path) -> None:
    roles = Easy(EVERY_FIFTH)
    build(tmp_path, roles, filter_groups_metric="other").run()
    assert roles.drawn() == [[0, 1]]


def test_a_batch_without_a_response_that_the_function_scores_has_no_signal(tmp_path: Path) -> None:
    """Other sources have other functions."""
    judge = build(tmp_path, Easy(()), filter_groups_metric="other").source.filter
    scores = Scores(rewards=(0.0, 1.0), components={"exact": (0.0, 1.0)}, ranges={}, failures=())
    rewarded = Rewarded(responses=["a", "b"], scores=scores)
    assert judge.signals(1, rewarded, torch.tensor([0, 0])) == [False]


def test_groups_may_be_judged_by_their_environment_even_if_its_weight_is_0(tmp_path: Path) -> None:
    judge = build(tmp_path, Easy(()), filter_groups_metric=ENVIRONMENT).source.filter
    scores = Scores(rewards=(0.0, 1.0, 0.0, 0.0), components={}, ranges={}, failures=())
    scores = scores.plus(ENVIRONMENT, (2.0, 2.0, 2.0, 3.0), weight=0.0)
    rewarded = Rewarded(responses=["a", "b", "c", "d"], scores=scores)
    assert judge.signals(2, rewarded, torch.tensor([0, 0, 1, 1])) == [False, True]


def test_a_group_differs_where_any_of_its_responses_does(tmp_path: Path) -> None:
    """Of the scores 0, 0.5 and 1 the second is the mean: its own advantage is 0."""

    class Halves(MemoryRoles):
        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            scores = (0.0, 0.5, 1.0) * (len(responses) // 3)
            return replace(super().score(responses, answers), rewards=scores)

    roles = Halves()
    build(tmp_path, roles, n_samples_per_prompt=3).run()
    assert [uids for uids, _, _ in roles.asked] == [[0, 1]]


def test_groups_may_be_judged_by_the_function_that_measures_accuracy(tmp_path: Path) -> None:
    """The rewards of all groups differ, and `exact` those of every fifth: as DAPO filters."""

    class Shaped(Easy):
        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            found = super().score(responses, answers)
            shaped = tuple(each + 0.1 * row for row, each in enumerate(found.rewards))
            return replace(found, rewards=shaped)

    roles = Shaped(EVERY_FIFTH)
    build(tmp_path, roles, filter_groups_metric="accuracy").run()
    assert roles.trained() == [0, 5]
    # A source that has a judge of its own is judged by that one.
    roles = Shaped(EVERY_FIFTH)
    trainer = build(tmp_path / "judged", roles, filter_groups_metric="accuracy")
    trainer.source.filter.judge = "other"
    ranges = {name: ScoreRange(0.0, 1.0) for name in ("exact", "other")}
    score = roles.score
    roles.score = lambda *given: replace(score(*given), ranges=ranges)
    trainer.run()
    assert roles.trained() == [0, 1]


@pytest.mark.parametrize("moment", range(12))
def test_a_run_that_is_stopped_anywhere_and_goes_on_draws_what_the_straight_one_does(
    moment: int, tmp_path: Path
) -> None:
    keys = {"train_iters": 3, "save_interval": 1, "filter_groups_max_batches": 2}
    straight, stopped, resumed = (Easy({0, 2, 9, 11}) for _ in range(3))
    build(tmp_path / "straight", straight, **keys).run()
    trainer = build(tmp_path / "stopped", stopped, **keys)
    with pytest.raises(StopRequestedError):
        trainer.run(asked_at(moment))
    done, state = trainer.run_log.summary.steps, trainer.state()
    again = build(tmp_path / "resumed", resumed, **keys)
    again.resume(done, state)
    again.run()
    assert stopped.trained()[: 2 * done] + resumed.trained() == straight.trained()
    later = [asked for asked in straight.asked if asked[2] > done]
    assert resumed.asked == later


def test_failed_scores_of_groups_that_are_left_out_are_counted_too(tmp_path: Path) -> None:
    """Four scores in the first of three rollouts are not there."""
    roles = Easy(EVERY_FIFTH, failing=[True])
    trainer = build(tmp_path, roles)
    trainer.run()
    assert trainer.run_log.close()["reward_failures"] == {"exact": {"exception": 4}}
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["reward/errors"] == 4


def test_a_function_that_fails_for_all_that_a_step_draws_ends_the_run(tmp_path: Path) -> None:
    roles = Easy((), failing=[True] * 2)
    with pytest.raises(RewardError, match=r"step 1: .* no score for any of 8 responses"):
        build(tmp_path, roles, filter_groups_max_batches=2).run()


def test_a_group_that_lost_responses_with_their_environments_is_judged_by_the_others(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles)
    judge = GroupFilter(trainer.config, trainer.answering, lambda _: None)
    scores = Scores(rewards=(1.0, 0.0, 1.0, 1.0), components={}, ranges={}, failures=())
    rated = Rewarded(responses=["a", "b", "c", "d"], scores=scores)
    group_B = torch.tensor([0, 0, 1, 3])
    assert judge.signals(4, rated, group_B) == [True, False, False, False]
    judged, groups = judge.begin(), [OpenGroup(prompt=0, start_step=1, sequences=())] * 4
    judged.add(groups, rated, group_B, [True, False, False, True])
    assert judged.rewarded().responses == ["a", "b", "d"]
