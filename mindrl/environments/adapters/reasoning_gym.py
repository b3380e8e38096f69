"""Tasks of reasoning-gym, with several attempts at each.

environment: mindrl.environments.adapters.reasoning_gym:ReasoningGym
arguments: {name: leg_counting, attempts: 3}
"""

from collections.abc import Mapping
from typing import Any

from mindrl.environments.adapters.foreign import library, row_seed

reasoning_gym = library("reasoning_gym", "reasoning-gym")


class ReasoningGym:
    """A text game: one task, whose answer is between <answer> tags or a whole turn."""

    def __init__(
        self, name: str, attempts: int = 1, options: Mapping[str, Any] | None = None
    ) -> None:
        """Set the data set.

        Args:
            name: Its name, such as `leg_counting`.
            attempts: Most answers to a task.
            options: Its configuration, besides `seed` and `size`.
        """
        self._name, self._attempts, self._options = name, attempts, dict(options or {})

    def reset(self, **row: Any) -> str:
        """Return the question that belongs to the seed."""
        self._tasks = reasoning_gym.create_dataset(
            self._name, seed=row_seed(row), size=1, **self._options
        )
        self._task, self._left = self._tasks[0], self._attempts
        return str(self._task["question"])

    def step(self, text: str) -> tuple[str, float, bool]:
        """Score an answer; the last score is the reward."""
        found = reasoning_gym.utils.extract_answer(text)
        answer = text.strip() if found is None else found
        score = float(self._tasks.score_answer(answer, self._task))
        self._left -= 1
        if score >= 1.0 or not self._left:
            return "", score, True
        return f"The answer is not right; its score is {score:.2f}. Try again.", 0.0, False
