"""Tasks of reasoning-gym, with several attempts."""

import pytest
from playing import ADAPTERS, played, texts

from mindrl.environments.messages import EnvironmentAnswer

reasoning_gym = pytest.importorskip("reasoning_gym")
REASONING = f"{ADAPTERS}.reasoning_gym:ReasoningGym"
ROW = {"seed": 11}


def test_a_task_may_be_answered_again_until_it_is_right() -> None:
    task = reasoning_gym.create_dataset("leg_counting", seed=11, size=1)[0]
    turns = ("<answer>-1</answer>", f"So it is <answer>{task['answer']}</answer>.")
    opening, answers = played(REASONING, {"name": "leg_counting", "attempts": 3}, turns, ROW)
    assert opening == task["question"]
    assert "is not right; its score is 0.0" in texts(answers)[0]
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)


def test_the_last_attempt_ends_the_conversation_with_its_score() -> None:
    arguments = {"name": "leg_counting", "attempts": 2, "options": {"max_animals": 3}}
    _, answers = played(REASONING, arguments, ("-1", "-2"), ROW)
    assert [each.done for each in answers] == [False, True]
    assert answers[-1].reward < 0.1
