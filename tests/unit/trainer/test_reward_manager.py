"""Rewards by rules and by a model, one after the other or concurrent with the devices."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_roles import MemoryRoles, config, data, decode, lines, rewards, run_log

from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Responses, Rollouts, Turns
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.config.generate import SamplingConfig
from mindrl.config.rl import RLConfig
from mindrl.errors import RewardError
from mindrl.observability.timing import StageTimer
from mindrl.rewards.functions import boxed_format
from mindrl.rewards.scorer import RewardScorer
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import RewardManager, RewardSources

ONE = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=2), stop_token_ids=(), samples_per_prompt=2
)
PROMPT = Prompt(uid=0, token_ids=(7, 9), text="", answer="")
PATIENCE = 20.0
"""Seconds after which something that should have come is taken for lost."""


def manager(sources: RewardSources) -> RewardManager:
    return RewardManager(sources, decode, StageTimer())


def rollouts(roles: MemoryRoles) -> Rollouts:
    """Two responses, `20 30` with reward 0 and `20 31` with reward 1."""
    return roles.generate_sequences([PROMPT], ONE, step=1)


def test_the_score_of_the_model_is_added_with_its_weight_and_shown_without_it() -> None:
    """The model says 30 and 31, a hundredth of which counts."""
    roles = MemoryRoles()
    sources = rewards(roles, model_weight=0.01)
    with manager(sources).compute([PROMPT], rollouts(roles), blocking=True) as rewarded:
        scores = rewarded().scores
    assert scores.rewards == pytest.approx((0.30, 1.31))
    assert scores.components == {"exact": (0.0, 1.0), "model": (30.0, 31.0)}
    assert scores.metrics()["reward/mean"] == pytest.approx(0.805)
    assert scores.metrics()["reward/model"] == 30.5


def test_the_penalty_for_length_is_added_in_training_and_not_where_rules_alone_rate() -> None:
    """Both responses have 2 tokens, of which the second costs 0.5."""
    roles = MemoryRoles()
    penalty = LengthPenalty(longest=2, buffer=1, factor=0.5)
    sources = replace(rewards(roles, model_weight=0.01), length_penalty=penalty)
    with manager(sources).compute([PROMPT], rollouts(roles), blocking=True) as rewarded:
        scores = rewarded().scores
    assert scores.rewards == pytest.approx((0.30 - 0.5, 1.31 - 0.5))
    assert scores.components["overlong"] == (-0.5, -0.5)
    assert scores.metrics()["reward/overlong"] == -0.5
    evaluated = manager(sources).by_rules([PROMPT], rollouts(roles)).scores
    assert (evaluated.rewards, set(evaluated.components)) == ((0.0, 1.0), {"exact"})


def test_the_penalty_for_length_counts_the_tokens_of_environments_in_all_sequences() -> None:
    """A conversation of 3 and 2 tokens, of which the policy sampled 3, and one of 2 tokens."""
    talks = Rollouts.of_turns(
        [torch.tensor([7, 9])] * 3,
        Responses.of(
            [(1, 2, 3), (4, 5), (6, 8)], [(-1.0,) * each for each in (3, 2, 2)], [False] * 3
        ),
        [0, 0, 0],
        Turns(
            written_N=torch.tensor([True, False, True, True, False, True, True]),
            rewards_N=torch.zeros(7),
            conversation_B=torch.tensor([0, 0, 1]),
        ),
    )
    penalty = LengthPenalty(longest=5, buffer=2, factor=0.5)
    sources = RewardSources(
        scorer=None, reward_model=None, reward_model_weight=0.0, length_penalty=penalty
    )
    with manager(sources).compute([PROMPT], talks, blocking=True) as rewarded:
        assert rewarded().scores.rewards == (-0.5, 0.0)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_step_that_asks_three_times_for_its_rewards_has_them_put_together_once(
    blocking: bool,
) -> None:
    """Two responses of 2 tokens each: their lengths are charged twice, not six times."""
    charged: list[int] = []

    class Counted(LengthPenalty):
        def __call__(self, length: int) -> float:
            charged.append(length)
            return super().__call__(length)

    roles = MemoryRoles()
    penalty = Counted(longest=2, buffer=1, factor=0.5)
    sources = replace(rewards(roles, model_weight=0.01), length_penalty=penalty)
    with manager(sources).compute([PROMPT], rollouts(roles), blocking=blocking) as rewarded:
        first = rewarded()
        assert rewarded() is first
    assert rewarded() is first
    assert charged == [2, 2]


def test_a_model_alone_rates_without_rules() -> None:
    roles = MemoryRoles()
    sources = RewardSources(scorer=None, reward_model=roles, reward_model_weight=0.5)
    with manager(sources).compute([PROMPT], rollouts(roles), blocking=False) as rewarded:
        assert rewarded().responses == ["20 30", "20 31"]
        assert rewarded().scores.rewards == (15.0, 15.5)
        assert rewarded().scores.components == {"model": (30.0, 31.0)}


class SlowRules(MemoryRoles):
    """Rules that are not done before the log-probs are."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = threading.Event()
        self.in_time = False

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        found = super().compute_log_prob(sequences)
        self.scored.set()
        return found

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        self.in_time = self.scored.wait(PATIENCE)
        return super().score(responses, answers)


def trained(root: Path, roles: MemoryRoles, *, blocking: bool) -> dict[str, float]:
    trainer = PolicyTrainer(
        config(blocking=blocking, init_kl_coef=0.1),
        data(),
        roles,
        rewards(roles),
        run_log(root, 1),
        max_logprob_gap=0.1,
    )
    trainer.run()
    (step,) = lines(root / "metrics.jsonl")
    return {name: value for name, value in step.items() if not name.startswith(("sec", "through"))}


def test_without_blocking_log_probs_are_computed_while_the_rules_work_and_numbers_are_equal(
    tmp_path: Path,
) -> None:
    """These rules wait for the log-probs: one after the other, the step would not end well."""
    blocked, beside = MemoryRoles(), SlowRules()
    one_by_one = trained(tmp_path / "blocked", blocked, blocking=True)
    together = trained(tmp_path / "beside", beside, blocking=False)
    assert beside.in_time
    assert beside.calls.index("log-probs") < beside.calls.index("score")
    assert together == one_by_one
    for one, other in zip(blocked.minibatches, beside.minibatches, strict=True):
        assert one.advantages_BT.tolist() == other.advantages_BT.tolist()
    samples = [
        (tmp_path / run / "samples.jsonl").read_text("utf-8") for run in ("blocked", "beside")
    ]
    assert samples[0] == samples[1]


class BrokenRules(MemoryRoles):
    """Rules whose process is lost."""

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        raise RewardError(f"{len(responses)} responses, {len(answers)} answers: lost")


@pytest.mark.parametrize("blocking", [True, False])
def test_an_error_of_the_rules_ends_the_run_either_way(blocking: bool, tmp_path: Path) -> None:
    roles = BrokenRules()
    with pytest.raises(RewardError, match=r"^[24] responses, [24] answers: lost"):
        trained(tmp_path, roles, blocking=blocking)
    assert "update" not in roles.calls


def test_an_error_of_the_devices_ends_the_rules_too() -> None:
    roles, held, in_time = MemoryRoles(), threading.Event(), list[bool]()
    found = rollouts(roles)

    class HeldRules(MemoryRoles):
        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            in_time.append(held.wait(PATIENCE))
            return super().score(responses, answers)

        def abort(self) -> None:
            held.set()

    sources = rewards(HeldRules())
    with (
        pytest.raises(ZeroDivisionError),
        manager(sources).compute([PROMPT], found, blocking=False),
    ):
        raise ZeroDivisionError
    # Their process was ended, and the thread with it: nobody meets them behind the error.
    assert in_time == [True]


def test_real_rules_in_their_own_process_give_the_same_scores_from_a_thread() -> None:
    roles = MemoryRoles()
    rl = RLConfig(
        mini_batch_size=1,
        verifier_function=(boxed_format.__name__,),
        verifier_weight=(1.0,),
    )
    with RewardScorer(rl) as scorer:
        sources = RewardSources(scorer=scorer, reward_model=None, reward_model_weight=0.0)
        found = []
        for blocking in (True, False, True):
            with manager(sources).compute([PROMPT], rollouts(roles), blocking=blocking) as rewarded:
                found.append(rewarded())
    assert found[0] == found[1] == found[2]
