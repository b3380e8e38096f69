"""Environments of gymnasium: words and numbers as actions, drawings as text, and texts."""

from pathlib import Path

import pytest
from playing import ADAPTERS, played, texts

from mindrl.environments.messages import EnvironmentAnswer

pytest.importorskip("gymnasium")
GYMNASIUM = f"{ADAPTERS}.gymnasium:Gymnasium"
LAKE = {
    "name": "FrozenLake-v1",
    "actions": {"left": 0, "down": 1, "right": 2, "up": 3},
    "options": {"is_slippery": False},
}


def test_a_lake_is_drawn_and_crossed_by_words() -> None:
    moves = ("Not up but down.", "down", "I am lost", "right", "right", "Down", "right")
    chosen = LAKE | {"options": {"is_slippery": False, "render_mode": "ansi"}}
    assert played(GYMNASIUM, chosen, moves) == played(GYMNASIUM, LAKE, moves)
    opening, answers = played(GYMNASIUM, LAKE, moves)
    assert opening is not None
    assert opening.startswith("[S]FFF\nFHFH\n")
    assert opening.endswith("observation: 0\nAnswer with one of: left, down, right, up.")
    found = texts(answers)
    assert "\n[F]HFH\n" in found[0]
    assert found[2] == "Answer with one of: left, down, right, up."
    assert [each.reward for each in answers[:-1]] == [0.0] * 6
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)


def test_the_last_number_is_the_action_and_others_are_refused() -> None:
    opening, answers = played(GYMNASIUM, {"name": "Taxi-v4"}, ("not 5, but 1", "17", "4"))
    assert opening is not None
    assert "observation: " in opening
    assert [each.reward for each in answers] == [-1.0, 0.0, -10.0]
    assert texts(answers)[1] == "Answer with a number of Discrete(6)."


def test_a_row_with_a_seed_gives_all_conversations_the_same_start() -> None:
    arguments = {"name": "Blackjack-v1", "actions": {"stick": 0, "hit": 1}}
    hands = [played(GYMNASIUM, arguments, ("stick",), {"seed": 3}, seed=seed)[0] for seed in (1, 2)]
    assert hands[0] == hands[1]
    others = {played(GYMNASIUM, arguments, ("stick",), seed=seed)[0] for seed in (1, 2, 3)}
    assert len(others) > 1


def test_an_environment_of_texts_gets_and_gives_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_echo.py").write_text(
        "import gymnasium\n"
        "class Echo(gymnasium.Env):\n"
        "    metadata = {'render_modes': []}\n"
        "    observation_space = action_space = gymnasium.spaces.Text(100)\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return 'say 3', {}\n"
        "    def step(self, action):\n"
        "        return f'you said {action}', 0.5, False, action == 'bye', {}\n"
        "gymnasium.register(id='Echo-v0', entry_point=Echo)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    opening, answers = played(GYMNASIUM, {"name": "my_echo:Echo-v0"}, ("3 words here", "bye"))
    assert opening == "say 3"
    assert texts(answers) == ["you said 3 words here"]
    assert answers[-1] == EnvironmentAnswer(reward=0.5, done=True)
