"""Environments of SkyRL-Gym: the multi-turn gsm8k environment."""

import pytest
from playing import ADAPTERS, played, texts

from mindrl.environments.messages import EnvironmentAnswer

pytest.importorskip("skyrl_gym")
SKYRL = f"{ADAPTERS}.skyrl_gym:SkyrlGym"
ROW = {
    "prompt": [{"role": "user", "content": "2 + 3?"}],
    "reward_spec": {"method": "rule", "ground_truth": "5"},
    "extra_info": {"max_turns": 3},
}


def test_gsm8k_in_several_turns_rewards_each_of_them() -> None:
    arguments = {"name": "gsm8k_multi_turn"}
    opening, answers = played(SKYRL, arguments, ("I think", "#### 4", "#### 5"), ROW)
    assert opening is None
    assert [each.reward for each in answers] == [0.0, pytest.approx(0.2 / 3), 1.0]
    first, second = texts(answers)
    assert first.startswith("Please provide your step-by-step reasoning")
    assert second.startswith("Now provide only the final numeric answer")
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)


def test_a_class_is_named_by_its_module_and_max_turns_comes_before_the_rows() -> None:
    place = "skyrl_gym.envs.gsm8k.multi_turn_env:GSM8kMultiTurnEnv"
    _, answers = played(SKYRL, {"name": place, "max_turns": 1}, ("#### 4",), ROW)
    assert answers == [EnvironmentAnswer(reward=0.2, done=True)]
