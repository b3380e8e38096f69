"""The endpoint's answers on each route."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from mindrl.agents.answers import MODEL, Sampled, streamed
from mindrl.agents.chat import (
    Body,
    RunSampling,
    answer_message,
    fingerprints,
    messages_of,
    tools_of,
)
from mindrl.agents.record import Call
from mindrl.agents.sessions import RefusedError, Session, Sessions

Messages = Sequence[Mapping[str, Any]]
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class PolicyText:
    """The tokenizer and chat template of the policy.

    One thread at a time calls the functions; they raise ValueError for input that cannot be
    encoded.
    """

    render: Callable[[Messages, Messages], list[int]]
    """Token ids of a whole history with tools, up to the start of an answer."""
    after_turn: Callable[[Messages], list[int] | None]
    """Token ids of messages after the end token of an answer, up to the next answer; the agent's
    text has no control token. None if they cannot follow: the history is rendered."""
    decode: Callable[[list[int]], str]
    """Text of token ids without special tokens."""
    encode: Callable[[str], list[int]]
    """Token ids of a text as it is."""
    end: int | None
    """The token that ends an answer in the chat template; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class AgentCallLimits:
    """Limits of the requests of agents."""

    context_tokens: int
    """Most tokens of a prompt and its answer."""
    answer_tokens: int
    """Most tokens of one answer."""
    vocabulary: int
    """Number of token ids."""
    calls: int = 1000
    """Most calls of a session."""
    body_bytes: int = 8 << 20
    """Most bytes of a request."""


@dataclass(kw_only=True)
class AgentRoutes:
    """Answers requests of sessions; used by many threads."""

    sessions: Sessions
    text: PolicyText
    sampling: RunSampling
    limits: AgentCallLimits
    tool_format: str
    """A key of `TOOL_FORMATS`."""
    _lock: Lock = field(default_factory=Lock, init=False)
    """Tokenizers are not safe in threads."""

    def chat(self, session: Session, body: Body, is_awaited: Callable[[], bool]) -> dict[str, Any]:
        """Answer a chat request. Raises RefusedError, as all routes do."""
        messages, tools = messages_of(body), tools_of(body)
        prompt_ids = self._chat_ids(session, messages, tools)
        number, call = self._call(session, prompt_ids, body, is_awaited)
        text = self._answer_text(call)
        message = answer_message(text, self.tool_format if tools else None, number)
        if call.token_ids and call.token_ids[-1] == self.text.end:
            returned = messages_of({"messages": [message]})
            mark = fingerprints([*messages, *returned], tools)[-1]
            session.turns[mark] = (*call.prompt_ids, *call.token_ids)
        return self._sampled(session, number, call, body).chat(message)

    def completion(
        self, session: Session, body: Body, is_awaited: Callable[[], bool]
    ) -> dict[str, Any]:
        """Complete a text or token ids."""
        given = body.get("prompt")
        ids = self._encoded(given) if isinstance(given, str) else self._ids(given, "prompt")
        number, call = self._call(session, tuple(ids), body, is_awaited)
        return self._sampled(session, number, call, body).completion(self._answer_text(call))

    def generate(
        self, session: Session, body: Body, is_awaited: Callable[[], bool]
    ) -> dict[str, Any]:
        """Answer the token route: ids in, ids out."""
        for name in ("features", "content_parts"):
            if body.get(name) is not None:
                raise RefusedError(400, f"{name} is not supported; send token ids", param=name)
        if body.get("output_mode", "tokens") != "tokens":
            raise RefusedError(400, "output_mode must be tokens", param="output_mode")
        ids = self._ids(body.get("token_ids"), "token_ids")
        number, call = self._call(session, tuple(ids), parameters_of(body), is_awaited)
        return self._sampled(session, number, call, body).tokens()

    def tokenize(self, body: Body) -> dict[str, Any]:
        """Return the token ids of messages or of a text."""
        if isinstance(prompt := body.get("prompt"), str):
            ids = self._encoded(prompt)
        elif body.get("add_generation_prompt") is False or body.get("continue_final_message"):
            raise RefusedError(400, "messages are tokenized up to the start of an answer only")
        else:
            ids = self._rendered(messages_of(body), tools_of(body))
        found = {"count": len(ids), "max_model_len": self.limits.context_tokens, "tokens": ids}
        if body.get("return_token_strs"):
            found["token_strs"] = [self._decoded([each]) for each in ids]
        return found

    def models(self) -> dict[str, Any]:
        """Return the list of models: the policy."""
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "mindrl"}
        length = {"max_model_len": self.limits.context_tokens}
        return {"object": "list", "data": [{**model, **length}]}

    def _chat_ids(self, session: Session, messages: Messages, tools: Messages) -> tuple[int, ...]:
        """Return the prompt: recorded ids and what is new, or the whole history rendered.

        Recorded ids are used if the request begins with the session's messages and unchanged
        answer.
        """
        marks = fingerprints(messages, tools)
        for length in range(len(messages) - 1, 0, -1):
            if (known := session.turns.get(marks[length - 1])) is None:
                continue
            with self._lock:
                following = _checked(self.text.after_turn, messages[length:])
            if following is not None:
                return (*known, *following)
            break
        return tuple(self._rendered(messages, tools))

    def _call(
        self,
        session: Session,
        prompt_ids: tuple[int, ...],
        body: Body,
        is_awaited: Callable[[], bool],
    ) -> tuple[int, Call]:
        """Wait for the policy."""
        left = self.limits.context_tokens - len(prompt_ids)
        if left < 1 or not prompt_ids:
            text = f"the prompt has {len(prompt_ids)} tokens; at least one token, and at most"
            text = f"{text} {self.limits.context_tokens} with its answer, are possible"
            raise RefusedError(400, text, param="messages", code="context_length_exceeded")
        most = min(left, self.limits.answer_tokens)
        for name in ("max_completion_tokens", "max_tokens"):
            if (wanted := body.get(name)) is not None:
                if type(wanted) is not int or wanted < 1:
                    raise RefusedError(400, f"{name} must be a positive integer", param=name)
                most = min(most, wanted)
        return self.sessions.call(session, prompt_ids, most, is_awaited=is_awaited)

    def _sampled(self, session: Session, number: int, call: Call, body: Body) -> Sampled:
        name = f"{session.name}-{number}"
        return Sampled(name=name, call=call, body=body, decode=self._decoded)

    def _answer_text(self, call: Call) -> str:
        ids = [*call.token_ids]
        if ids and ids[-1] == self.text.end:
            ids.pop()
        return self._decoded(ids)

    def _ids(self, given: object, name: str) -> list[int]:
        """Return token ids of a request."""
        vocabulary = self.limits.vocabulary
        if not isinstance(given, list) or not all(
            type(each) is int and 0 <= each < vocabulary for each in given
        ):
            need = f"must be a list of token ids from 0 to {vocabulary - 1}"
            raise RefusedError(400, f"{name} {need}", param=name)
        return given

    def _rendered(self, messages: Messages, tools: Messages) -> list[int]:
        with self._lock:
            return _checked(self.text.render, messages, tools)

    def _encoded(self, text: str) -> list[int]:
        with self._lock:
            return _checked(self.text.encode, text)

    def _decoded(self, ids: list[int]) -> str:
        with self._lock:
            return self.text.decode(ids)


def parameters_of(body: Body) -> Mapping[str, Any]:
    """Return the sampling parameters of a request to the token route.

    Raises:
        RefusedError: They are no object.
    """
    given = body.get("sampling_params") or {}
    if not isinstance(given, dict):
        raise RefusedError(400, "sampling_params must be an object", param="sampling_params")
    return given


def in_form(answer: Mapping[str, Any], body: Body) -> tuple[str, bytes | None]:
    """Return the content type of an answer, and its content if it is a stream."""
    if body.get("stream"):
        return "text/event-stream", streamed(answer, body)
    return "application/json", None


def _checked(find: Callable[..., _Found], *given: object) -> _Found:
    try:
        return find(*given)
    except ValueError as error:
        text = f"the chat template or the tokenizer refuses the request: {error}"
        raise RefusedError(400, text) from error
