"""Servers of OpenEnv, over WebSocket; the package of OpenEnv is not needed.

environment: mindrl.environments.adapters.openenv:OpenEnv
arguments: {url: "http://127.0.0.1:8000", action: message}
"""

import json
from collections.abc import Sequence
from typing import Any

from mindrl.environments.adapters.foreign import as_text, library, row_seed
from mindrl.environments.bounded_json import bounded_json

websockets = library("websockets.sync.client", "websockets")

_MOST_BYTES = 1 << 24


class OpenEnv:
    """A text game with a session of its own on a server."""

    def __init__(
        self,
        url: str,
        action: str | None = None,
        observation: str | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        """Connect.

        Args:
            url: Address of the server.
            action: Field of its action that has the policy's text. None: the text is a JSON object
                with all fields.
            observation: Field of its observation that is shown. None: all fields.
            columns: Columns of the row that `reset` gets, besides a seed.
        """
        address = url.rstrip("/").replace("http", "ws", 1) + "/ws"
        self._connection = websockets.connect(address, max_size=_MOST_BYTES)
        self._action, self._observation, self._columns = action, observation, columns

    def reset(self, **row: Any) -> str:
        """Begin."""
        given = {name: row[name] for name in self._columns}
        return self._shown(self._answer("reset", {"seed": row_seed(row), **given}))

    def step(self, text: str) -> tuple[str, float, bool]:
        """Act; a turn that is no JSON object changes nothing if the server needs one."""
        action = _json_object(text) if self._action is None else {self._action: text}
        if action is None:
            return "An action is a JSON object.", 0.0, False
        found = self._answer("step", action)
        return self._shown(found), float(found.get("reward") or 0.0), bool(found.get("done"))

    def _shown(self, found: dict[str, Any]) -> str:
        observation = found["observation"]
        return as_text(observation if self._observation is None else observation[self._observation])

    def _answer(self, kind: str, data: object) -> dict[str, Any]:
        self._connection.send(json.dumps({"type": kind, "data": data}))
        reply: dict[str, Any] = json.loads(self._connection.recv())
        found: dict[str, Any] = reply.get("data", {})
        if reply["type"] == "error":
            raise RuntimeError(f"{kind}: {found.get('message', 'error')}")
        return found


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = bounded_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
