"""Each estimator of advantages against arithmetic by hand, and against loops in float64."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

from mindrl.algorithms import estimators
from mindrl.algorithms.estimators import (
    ESTIMATORS,
    Estimate,
    RatedResponses,
    estimated,
    resolve_estimator,
)
from mindrl.config import rl
from mindrl.errors import ConfigError

MASK = torch.tensor(
    [[False, True, False, False], [False, True, True, True]] * 2 + [[False, True, True, False]]
)
"""Two groups of a response of one token and one of three, and a response alone."""


def rated(rewards: Sequence[float], group: Sequence[int], **more: Tensor | float) -> RatedResponses:
    values = torch.tensor(rewards)
    return RatedResponses(
        rewards_B=values, group_B=torch.tensor(group), mask_BT=MASK[: len(values)], **more
    )


def per_response(name: str, given: RatedResponses) -> list[float]:
    """Return the advantage that all tokens of a response share, and assert the rest is 0."""
    advantages_BT = estimated(ESTIMATORS[name], given).advantages_BT
    assert (advantages_BT[~given.mask_BT] == 0).all()
    shared = []
    for row, mask_T in zip(advantages_BT, given.mask_BT, strict=True):
        (value,) = set(row[mask_T].tolist())
        shared.append(value)
    return shared


BY_HAND = {
    # Means 0.5 and 2; deviations sqrt(0.5) and sqrt(8).
    "group_norm": (-(0.5**0.5), 0.5**0.5, -(0.5**0.5), 0.5**0.5, 0.0),
    "group_mean": (-0.5, 0.5, -2.0, 2.0, 0.0),
    # Against the other one of two.
    "rloo": (-1.0, 1.0, -4.0, 4.0, 0.0),
    # Three of four tokens are of the better response: baselines 0.75 and 3.
    "opo": (-0.75, 0.25, -3.0, 1.0, 0.0),
    "pass_at_k": (0.0, 1.0, 0.0, 4.0, 0.0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_response_is_compared_with_its_group(name: str) -> None:
    found = per_response(name, rated([0.0, 1.0, 0.0, 4.0, 7.0], [3, 3, 1, 1, 2]))
    assert found == pytest.approx(BY_HAND[name], abs=2e-6)


def test_a_return_is_whitened_over_the_tokens_of_the_step() -> None:
    """Tokens 0 and three times 1: mean 0.75, variance 0.1875."""
    deviation = 0.1875**0.5
    found = per_response("reinforce_plus_plus", rated([0.0, 1.0], [0, 0]))
    assert found == pytest.approx([-0.75 / deviation, 0.25 / deviation])
    # With its group's mean off: -0.5 and three times 0.5, which is the same but for a shift.
    found = per_response("reinforce_plus_plus_baseline", rated([0.0, 1.0], [0, 0]))
    assert found == pytest.approx([-0.75 / deviation, 0.25 / deviation])


def test_the_reward_of_the_greedy_response_is_taken_off() -> None:
    given = rated([0.0, 1.0, 0.5], [0, 0, 1], baseline_B=torch.tensor([0.25, 0.25, 0.5]))
    assert per_response("remax", given) == [-0.25, 0.75, 0.0]
    # Of responses of one and three tokens each token answers for the KL penalty from itself on.
    fined = rated(
        [0.0, 1.0], [0, 0], baseline_B=torch.tensor([0.5, 0.5]), penalty_BT=torch.full((2, 4), 0.25)
    )
    advantages_BT = estimated(ESTIMATORS["remax"], fined).advantages_BT
    assert advantages_BT.tolist() == [[0.0, -0.75, 0.0, 0.0], [0.0, -0.25, 0.0, 0.25]]


def test_tokens_that_come_before_a_reward_are_discounted() -> None:
    """Gamma 0.5: returns 0 and 0.25, 0.5, 1; mean 0.4375, variance 0.13671875."""
    given = rated([0.0, 1.0], [0, 0], gamma=0.5)
    advantages_BT = estimated(ESTIMATORS["reinforce_plus_plus"], given).advantages_BT
    expected = [(each - 0.4375) / 0.13671875**0.5 for each in (0.25, 0.5, 1.0)]
    assert advantages_BT[1, 1:].tolist() == pytest.approx(expected)


def test_a_penalty_of_tokens_is_taken_from_the_reward_of_their_response() -> None:
    """0.25 for each token: returns -0.25 and 1 - 0.75."""
    given = rated([0.0, 1.0], [0, 0], penalty_BT=torch.full((2, 4), 0.25))
    assert per_response("group_mean", given) == [-0.25, 0.25]
    # By token: -0.25 and 0.25, 0.5, 0.75, of variance 0.13671875.
    found = estimated(ESTIMATORS["reinforce_plus_plus"], given).advantages_BT
    assert found[1, 1:].diff().tolist() == pytest.approx([0.25 / 0.13671875**0.5] * 2)


@pytest.mark.parametrize("name", [name for name in rl.ESTIMATORS if name not in ("gae", "remax")])
def test_responses_with_equal_rewards_hold_no_signal(name: str) -> None:
    assert per_response(name, rated([0.1] * 4, [0, 0, 1, 1])) == [0.0] * 4


REFERENCES: dict[str, Callable[[list[float], list[int], int], float]] = {
    "group_mean": lambda rewards, _, row: rewards[row] - sum(rewards) / len(rewards),
    "rloo": lambda rewards, _, row: (
        rewards[row] - sum(rewards[:row] + rewards[row + 1 :]) / (len(rewards) - 1)
    ),
    "opo": lambda rewards, lengths, row: (
        rewards[row]
        - sum(each * length for each, length in zip(rewards, lengths, strict=True)) / sum(lengths)
    ),
    "pass_at_k": lambda rewards, _, row: max(
        rewards[row] - max(rewards[:row] + rewards[row + 1 :]), 0.0
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("seed", range(3))
def test_random_groups_equal_a_loop_in_float64(name: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    group_B = torch.arange(30).remainder(5)[torch.randperm(30, generator=draw)]
    rewards_B = torch.randn(30, generator=draw)
    lengths_B = torch.randint(1, 9, (30,), generator=draw)
    given = RatedResponses(
        rewards_B=rewards_B, group_B=group_B, mask_BT=torch.arange(9) < lengths_B[:, None]
    )
    expected = torch.zeros(30, dtype=torch.float64)
    for group in range(5):
        rows = torch.nonzero(group_B == group)[:, 0]
        members, lengths = rewards_B[rows].double().tolist(), lengths_B[rows].tolist()
        for place, row in enumerate(rows):
            expected[row] = REFERENCES[name](members, lengths, place)
    assert per_response(name, given) == pytest.approx(expected.tolist(), abs=1e-6)


def test_each_estimator_has_its_name_in_the_configuration() -> None:
    found = {
        name
        for name, value in vars(estimators).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and get_type_hints(value).items() >= {"rated": RatedResponses}.items()
        and [*inspect.signature(value).parameters] == ["rated"]
    }
    assert found == {*rl.ESTIMATORS}
    assert all(ESTIMATORS[name].__name__ == name for name in found)


OWN = """
import torch
from mindrl.algorithms.estimators import Estimate


def of_responses(rated):
    return rated.returns() * 2


def of_tokens(rated):
    return Estimate(advantages_BT=torch.ones(rated.mask_BT.shape), metrics={"advantage/own": 1.0})


def too_many(rated):
    return torch.zeros(3)


def no_tensor(rated):
    return [0.0] * 4


def broken(rated):
    return rated.rewards
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: f"{tmp_path}/own.py:{name}"


def test_a_function_of_ones_own_gives_a_number_a_response_or_all_there_is(
    own: Callable[[str], str],
) -> None:
    given = rated([0.0, 1.0], [0, 0])
    found = estimated(resolve_estimator(own("of_responses")), given)
    assert found.advantages_BT.tolist() == [[0, 0, 0, 0], [0, 2, 2, 2]]
    whole = estimated(resolve_estimator(own("of_tokens")), given)
    assert isinstance(whole, Estimate)
    assert whole.metrics == {"advantage/own": 1.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_many", r"ValueError .*: advantages have shape \[3\]; need \[4\] or \[4, 5\]"),
        ("no_tensor", "TypeError .*: advantages are a list; need a tensor"),
        ("broken", "AttributeError .*: 'RatedResponses' object has no attribute 'rewards'"),
        ("absent", "has no 'absent'"),
    ],
)
def test_what_does_not_estimate_is_refused_before_a_run(
    name: str, words: str, own: Callable[[str], str]
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_estimator(own(name))
    assert str(caught.value).startswith(f"rl_config.adv_estimator={own(name)!r}")
