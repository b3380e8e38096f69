"""Games of TextArena, for one player, or for two with a scripted opponent.

environment: mindrl.environments.adapters.textarena:TextArena
arguments: {name: TicTacToe-v0, opponent: random}
"""

import random
import re
from typing import Any

from mindrl.config.own_functions import named_function
from mindrl.environments.adapters.foreign import library, row_seed

textarena = library("textarena", "textarena")


def listed_move(text: str) -> str:
    """Return a random one of the moves that a game lists as available.

    Raises:
        ValueError: It lists none.
    """
    parts = re.split("available ", text, flags=re.IGNORECASE)
    moves: list[str] = re.findall(r"\[[^\[\]]+\]", parts[-1].partition("\n")[0])
    if len(parts) == 1 or not moves:
        raise ValueError("this game lists no moves; name a function as the opponent")
    return random.choice(moves)


class TextArena:
    """A text game in which the policy is one player."""

    def __init__(self, name: str, opponent: str | None = None, player: int = 0) -> None:
        """Set the game.

        Args:
            name: Its id, such as `GuessTheNumber-v0`.
            opponent: `random`, or your function from its observations to a move, as
                `file.py:function`. None: a game for one player.
            player: Number of the policy.
        """
        self._name, self._player = name, player
        self._opponent: Any = None
        if opponent is not None:
            key, known = "environment_config.arguments.opponent", {"random": listed_move}
            self._opponent = named_function(key, opponent, known, "opponent")

    def reset(self, **row: Any) -> str:
        """Begin, up to the policy's turn."""
        self._game = textarena.make(self._name)
        self._game.reset(num_players=1 if self._opponent is None else 2, seed=row_seed(row))
        self._shown: dict[int, str] = {}
        return self._until_turn(is_over=False) or ""

    def step(self, text: str) -> tuple[str, float, bool]:
        """Move; the reward comes when the game is over."""
        is_over, _ = self._game.step(action=text)
        if (observation := self._until_turn(is_over)) is not None:
            return observation, 0.0, False
        rewards, _ = self._game.close()
        return "", float((rewards or {}).get(self._player, 0.0)), True

    def _until_turn(self, is_over: bool) -> str | None:
        """Let the opponent move; return new text for the policy, None when the game is over."""
        while not is_over:
            player, whole = self._game.get_observation()
            if player == self._player:
                # Games repeat all that was said before; the conversation has it already.
                new = whole.removeprefix(self._shown.get(player, ""))
                self._shown[player] = whole
                return str(new).strip()
            is_over, _ = self._game.step(action=self._opponent(whole))
        return None
