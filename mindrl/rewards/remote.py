"""Rewards from a server, with one request per response."""

import asyncio
import json
import time
from http.client import HTTPException
from urllib.request import Request

from mindrl.observability.units import quoted
from mindrl.platform.environment import variable_named
from mindrl.platform.http_exchange import HttpStatusError, exchange, timed_opener
from mindrl.rewards.functions import ScoreRange

SCHEMES = ("http://", "https://")
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes after which a retry may succeed."""
_MOST_BYTES = 1 << 20
"""Maximum bytes of an answer."""


_OPENER = timed_opener()


class RemoteReward:
    """Requests scores from a server, which answers with a number or `{"score": number}`.

    The request is a JSON object of response, reference, prompt and data_source.
    """

    def __init__(
        self,
        url: str,
        *,
        token_variable: str | None = None,
        seconds: float = 4.0,
        tries: int = 4,
        concurrency: int = 8,
        score_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Set address and limits; the parameters are `verifier_kwargs`.

        Args:
            url: Starts with http:// or https://.
            token_variable: Environment variable with the bearer token of each request.
            seconds: For one response, all tries; less than `rl_config.verifier_timeout`.
            tries: After a failed try there is a pause, which doubles each time.
            concurrency: Maximum concurrent requests of one reward process.
            score_range: Minimum and maximum score.

        Raises:
            ValueError: The variable does not exist.
        """
        self.url, self.seconds, self.tries = url, seconds, tries
        self.concurrency, self.score_range = concurrency, ScoreRange(*score_range)
        self._headers = {"Content-Type": "application/json"}
        if token_variable is not None:
            if not (token := variable_named(token_variable)):
                raise ValueError(f"the environment variable {token_variable} is not set")
            self._headers["Authorization"] = f"Bearer {token}"

    async def __call__(
        self, response: str, reference: str, prompt: str, data_source: str
    ) -> object:
        """Return the server's answer.

        Raises:
            OSError, HTTPException, ValueError: It gave no answer, or no JSON.
        """
        asked = {
            "response": response,
            "reference": reference,
            "prompt": prompt,
            "data_source": data_source,
        }
        body, ends = json.dumps(asked).encode(), time.monotonic() + self.seconds
        for number in range(1, self.tries + 1):
            try:
                return await asyncio.to_thread(self._once, body, ends - time.monotonic())
            except (OSError, HTTPException) as error:
                pause = 0.1 * 2**number
                lasting = isinstance(error, HttpStatusError) and error.status not in _AGAIN
                if lasting or number == self.tries or time.monotonic() + pause >= ends:
                    raise OSError(f"no score after {number} tries: {_error_text(error)}") from error
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _once(self, body: bytes, seconds: float) -> object:
        request = Request(self.url, body, self._headers)  # noqa: S310 - one of SCHEMES
        text = exchange(_OPENER, request, seconds=max(seconds, 0.01), most_bytes=_MOST_BYTES)
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"answered {quoted(text[:60])}, which is not JSON") from error


def _error_text(error: Exception) -> str:
    """Return an error as text, with its type unless it is an HTTP status."""
    return str(error) if isinstance(error, HttpStatusError) else f"{type(error).__name__}: {error}"
