"""Environments of SkyRL-Gym.

environment: mindrl.environments.adapters.skyrl_gym:SkyrlGym
arguments: {name: gsm8k_multi_turn, max_turns: 5}
"""

from collections.abc import Mapping
from typing import Any

from mindrl.environments.adapters.foreign import as_text, library

skyrl_gym = library("skyrl_gym", "skyrl-gym")


class SkyrlGym:
    """A text game from an environment with `init(prompt)` and `step(action)`."""

    def __init__(
        self,
        name: str,
        env_config: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Set the environment.

        Args:
            name: Its id, or a class of yours as `package.module:Class`.
            env_config: Its configuration.
            max_turns: Passed with the row, as by SkyRL's generator. None: the row's.
        """
        self._spec = skyrl_gym.envs.registration.EnvSpec(id=name, entry_point=name)
        self._spec = skyrl_gym.envs.registration.registry.get(name, self._spec)
        self._config = library("omegaconf", "omegaconf").OmegaConf.create(dict(env_config or {}))
        self._extras = {} if max_turns is None else {"max_turns": max_turns}

    def reset(self, **row: Any) -> str | None:
        """Begin with a row, which has the column `prompt`; return what `init` adds to it."""
        self._made = skyrl_gym.make(
            self._spec, env_config=self._config, extras={**row, **self._extras}
        )
        given = row.get("prompt") or []
        prompt = [{"role": "user", "content": given}] if isinstance(given, str) else [*given]
        messages, _ = self._made.init([*prompt])
        if [*messages][: len(prompt)] != prompt:
            raise ValueError("init changed messages of the prompt; it can only add some")
        return as_text([*messages][len(prompt) :]) or None

    def step(self, text: str) -> tuple[str, float, bool]:
        """Act; several observations are one message."""
        found = self._made.step(text)
        return as_text(found["observations"]), float(found["reward"]), bool(found["done"])
