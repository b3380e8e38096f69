"""Environments of gymnasium: with texts, or with numbered actions.

environment: mindrl.environments.adapters.gymnasium:Gymnasium
arguments: {name: FrozenLake-v1, actions: {left: 0, down: 1, right: 2, up: 3}}
"""

import re
from collections.abc import Mapping
from typing import Any

from mindrl.environments.adapters.foreign import as_text, library, row_seed

gymnasium = library("gymnasium", "gymnasium")

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


class Gymnasium:
    """A text game from an environment with actions that are texts or numbers."""

    def __init__(
        self,
        name: str,
        actions: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an environment.

        Args:
            name: Its id, such as `FrozenLake-v1`.
            actions: Words for its action numbers; the last word in a turn counts. None: the last
                number counts.
            options: Keyword arguments of `gymnasium.make`.
        """
        given = dict(options or {})
        made = gymnasium.make(name, **given)
        if "render_mode" not in given and "ansi" in made.metadata.get("render_modes", ()):
            made = gymnasium.make(name, **given, render_mode="ansi")
        self._made, self._actions = made, dict(actions or {})
        self._reads_text = isinstance(made.action_space, gymnasium.spaces.Text)

    def reset(self, **row: Any) -> str:
        """Begin, and describe the actions."""
        observation, _ = self._made.reset(seed=row_seed(row))
        return "\n".join(filter(None, (self._shown(observation), self._rule())))

    def step(self, text: str) -> tuple[str, float, bool]:
        """Act; a turn without an action changes nothing."""
        action = text if self._reads_text else self._number(text)
        if action is None:
            return self._rule(), 0.0, False
        observation, reward, terminated, truncated, _ = self._made.step(action)
        return self._shown(observation), float(reward), bool(terminated or truncated)

    def _shown(self, observation: object) -> str:
        if self._made.render_mode != "ansi":
            return as_text(observation)
        drawn = _COLOURED.sub(r"[\1]", self._made.render()).strip("\n")
        return f"{drawn}\nobservation: {as_text(observation)}"

    def _rule(self) -> str:
        if self._reads_text:
            return ""
        if self._actions:
            return f"Answer with one of: {', '.join(self._actions)}."
        return f"Answer with a number of {self._made.action_space}."

    def _number(self, text: str) -> int | None:
        words = {word.lower(): number for word, number in self._actions.items()} or None
        pattern = r"-?\d+" if words is None else rf"\b(?:{'|'.join(map(re.escape, words))})\b"
        if not (found := re.findall(pattern, text.lower())):
            return None
        action = int(found[-1]) if words is None else words[found[-1]]
        return action if self._made.action_space.contains(action) else None
