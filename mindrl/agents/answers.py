"""Answers of the endpoint, in the forms of OpenAI's protocol and of the token route."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mindrl.agents.record import Call
from mindrl.agents.sessions import RefusedError

MODEL = "policy"
"""Name of the model."""
_Decode = Callable[[list[int]], str]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """An answer of the policy to one request."""

    name: str
    """Id of the request."""
    call: Call
    body: Mapping[str, Any]
    """The request."""
    decode: _Decode

    @property
    def usage(self) -> dict[str, int]:
        """Counts of tokens."""
        prompt, drawn = len(self.call.prompt_ids), len(self.call.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
        }

    def chat(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chat completion with this message."""
        ending = "tool_calls" if "tool_calls" in message else self.call.ending
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending}
        if self.body.get("logprobs"):
            choice["logprobs"] = {"content": [*map(self._of_chat, *self._pairs())]}
        found = self._head("chat.completion") | {"choices": [choice]}
        if self.body.get("return_token_ids"):
            choice["token_ids"] = [*self.call.token_ids]
            found["prompt_token_ids"] = [*self.call.prompt_ids]
        return found

    def completion(self, text: str) -> dict[str, Any]:
        """Return a text completion."""
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": self.call.ending}
        choice["logprobs"] = self._of_completion() if self.body.get("logprobs") else None
        if self.body.get("return_token_ids"):
            choice["token_ids"] = [*self.call.token_ids]
            choice["prompt_token_ids"] = [*self.call.prompt_ids]
        return self._head("text_completion") | {"choices": [choice]}

    def tokens(self) -> dict[str, Any]:
        """Return the answer of the token route."""
        # Newer clients read `token_id`, older ones `token`.
        of_tokens = [
            {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "rank": None}
            for token, logprob in self._items()
        ]
        content = [{**each, "top_logprobs": [each]} for each in of_tokens]
        end = len(self.call.token_ids)
        choice = {
            "index": 0,
            "finish_reason": self.call.ending,
            "stop_reason": None,
            "token_ids": [*self.call.token_ids],
            "logprobs": {"content": content},
            "weight_versions": [{"version": str(self.call.step), "start": 0, "end": end}],
        }
        found = {
            "request_id": self.body.get("request_id") or self.name,
            "model": self.body.get("model") or MODEL,
            "created": int(time.time()),
            "usage": self.usage,
            "output_mode": "tokens",
            "choices": [choice],
        }
        if self.body.get("return_token_ids"):
            found["prompt_token_ids"] = [*self.call.prompt_ids]
        return found

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": kind,
            "created": int(time.time()),
            "model": self.body.get("model") or MODEL,
            "usage": self.usage,
        }

    def _items(self) -> list[tuple[int, float]]:
        return [*zip(self.call.token_ids, self.call.logprobs, strict=True)]

    def _pairs(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        return self.call.token_ids, self.call.logprobs

    def _of_chat(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token)
        found = {"token": text, "logprob": logprob, "bytes": [*text.encode("utf-8", "replace")]}
        return {**found, "top_logprobs": [found] if self.body.get("top_logprobs") else []}

    def _of_completion(self) -> dict[str, Any]:
        texts = [self._token_text(token) for token, _ in self._items()]
        starts = [*accumulate(map(len, texts), initial=0)][:-1]
        logprobs = [*self.call.logprobs]
        top = [{text: logprob} for text, logprob in zip(texts, logprobs, strict=True)]
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": starts,
        }

    def _token_text(self, token: int) -> str:
        if self.body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return self.decode([token])


def streamed(whole: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    """Return an answer as server-sent events: the whole text at once, then its end."""
    chunks = [*_chunks(whole)]
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        usage = whole["usage"]
        chunks = [{**chunk, "usage": None} for chunk in chunks]
        chunks.append({**chunks[0], "choices": [], "usage": usage})
    lines = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _chunks(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    head = {name: value for name, value in whole.items() if name not in {"choices", "usage"}}
    (choice,) = whole["choices"]
    if "message" not in choice:
        # A completion or the token route: one chunk has all.
        return [{**head, "choices": [choice]}]
    head["object"] = "chat.completion.chunk"
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{**each, "index": at} for at, each in enumerate(delta["tool_calls"])]
    rest = {name: value for name, value in choice.items() if name != "message"}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    return [
        {**head, "choices": [{**rest, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [last]},
    ]


def error_body(error: RefusedError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    values = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": values}
