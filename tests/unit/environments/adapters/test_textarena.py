"""Games of TextArena: alone, and with an opponent."""

from pathlib import Path

import pytest
from playing import ADAPTERS, played, texts

from mindrl.environments.messages import EnvironmentAnswer

textarena = pytest.importorskip("textarena")
TEXTARENA = f"{ADAPTERS}.textarena:TextArena"
OPPONENTS = str(Path(__file__).with_name("opponents.py"))


def test_a_game_for_one_player_is_won_by_its_hints_and_says_nothing_twice() -> None:
    game = textarena.make("GuessTheNumber-v0")
    game.reset(num_players=1, seed=3)
    target = game.state.game_state["game_number"]
    turns = (f"I guess [{target - 1}]", f"or [{target}]")
    opening, answers = played(TEXTARENA, {"name": "GuessTheNumber-v0"}, turns, {"seed": 3})
    assert opening is not None
    assert opening.startswith("[GAME] You are Player 0. You are playing Guess The Number.")
    (hint,) = texts(answers)
    assert hint.endswith("The target number is higher.")
    assert "You are playing Guess The Number" not in hint
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)


def test_a_scripted_opponent_moves_between_the_turns_of_the_policy() -> None:
    arguments = {"name": "TicTacToe-v0", "opponent": f"{OPPONENTS}:last_square"}
    opening, answers = played(TEXTARENA, arguments, ("[0]", "[1]", "[2]"))
    assert opening is not None
    assert "As Player 0" in opening
    assert "Player 1 placed their symbol (X) in cell 8" in texts(answers)[0]
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)
    lost = {**arguments, "player": 1}
    opening, answers = played(TEXTARENA, lost, ("[0]", "[1]", "[3]"))
    assert opening is not None
    assert "Player 0 placed their symbol (O) in cell 8" in opening
    assert answers[-1] == EnvironmentAnswer(reward=-1.0, done=True)


def test_a_random_opponent_draws_from_the_listed_moves_by_the_seed() -> None:
    arguments = {"name": "TicTacToe-v0", "opponent": "random"}
    replies = [
        texts(played(TEXTARENA, arguments, ("[4]",), {"seed": seed})[1])[0] for seed in (1, 2, 3)
    ]
    assert len(set(replies)) > 1
    assert all("Player 1 placed their symbol (X)" in each for each in replies)
    with pytest.raises(AssertionError, match="this game lists no moves"):
        played(TEXTARENA, {**arguments, "name": "ConnectFour-v0"}, ("[col 3]",))
