"""A server of OpenEnv's own package: guess a digit that the seed chooses."""

from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    """What a player says."""

    text: str


class Heard(Observation):
    """What it hears."""

    text: str = ""
    steps: int = 0


class Guess(Environment):
    """A digit to be guessed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, low: int = 0, **_: Any) -> Heard:
        self.number, self.steps = (seed or 0) % 10, 0
        return Heard(text=f"guess {low} to 9", done=False, reward=0.0)

    def step(self, action: Say, *_: Any, **__: Any) -> Heard:
        self.steps += 1
        is_right = action.text == str(self.number)
        word = "yes" if is_right else "no"
        return Heard(text=word, steps=self.steps, done=is_right, reward=float(is_right))

    @property
    def state(self) -> State:
        return State(episode_id="guess", step_count=self.steps)


app = create_app(Guess, Say, Heard, env_name="guess", max_concurrent_envs=8)
