"""Real parts of an endpoint for tests, and an engine whose answers are written here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Protocol

from mindrl.agents.chat import RunSampling
from mindrl.agents.routes import AgentCallLimits, AgentRoutes, PolicyText
from mindrl.agents.sessions import PendingCall, Sessions
from mindrl.data.agent_chat import AgentChat
from mindrl.tiny.chat_model import build_tokenizer

OWNER = "training"
STEP = 7
_TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\ntools: ' -}}"
    "{%- for tool in tools -%}{{- tool['function']['name'] + ' ' -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] -}}"
    "{%- for call in m['tool_calls'] or [] -%}"
    "{{- '<tool_call>' + (call['function'] | tojson) + '</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
TOKENIZER = build_tokenizer()
TOKENIZER.chat_template = _TEMPLATE
END = int(TOKENIZER.eos_token_id)
CONTROLS = {*map(int, TOKENIZER.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]))}
CHAT = AgentChat(TOKENIZER, [END], longest=4000)
VOCABULARY = len(TOKENIZER)


def letters(text: str) -> list[int]:
    """Return the ids of single letters, as a policy may draw words that have a token."""
    return [token for letter in text for token in CHAT.encode(letter)]


def made_routes(**limits: int) -> AgentRoutes:
    """Return routes with the tokenizer of the tiny model."""
    of_run = {"context_tokens": 4000, "answer_tokens": 200, "vocabulary": VOCABULARY} | limits
    made = AgentCallLimits(**of_run)
    return AgentRoutes(
        sessions=Sessions(made.calls),
        text=PolicyText(
            render=CHAT.render,
            after_turn=CHAT.after_turn,
            decode=CHAT.decode,
            encode=CHAT.encode,
            end=CHAT.end,
        ),
        sampling=RunSampling(values={"temperature": 1.0, "top_p": 0.9}, stop_token_ids=(END,)),
        limits=made,
        tool_format="tagged_json",
    )


class Answered(Protocol):
    """What asks the engine: a host, or the sessions alone."""

    def requests(self, owner: str, seconds: float) -> list[PendingCall]: ...

    def reply(self, *given: Any) -> None: ...


@dataclass
class SessionsAlone:
    """Sessions in the place of a host, without a process of agents."""

    sessions: Sessions

    def requests(self, owner: str, seconds: float) -> list[PendingCall]:
        with self.sessions.changed:
            if not (found := self.sessions.take(owner)):
                self.sessions.changed.wait(seconds)
                found = self.sessions.take(owner)
            return found

    def reply(self, key: Any, number: int, *given: Any) -> None:
        from mindrl.agents.host import sampled_call

        self.sessions.reply(key, number, lambda asked: sampled_call(asked, *given))


@dataclass
class Engine:
    """Answers each call by a function of the text of its prompt, in a thread."""

    source: Answered
    answer: Callable[[str], str] = lambda prompt: f"{len(prompt)} letters"
    asked: list[PendingCall] = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.is_over = True
        self.thread.join()

    def run(self) -> None:
        while not self.is_over:
            for each in self.source.requests(OWNER, 0.05):
                self.asked.append(each)
                self.source.reply(each.key, each.call_number, *self.sampled(each))

    def sampled(self, asked: PendingCall) -> tuple[list[int], list[float], int, str]:
        """Return token ids, log-probs, the step and the ending."""
        text = self.answer(TOKENIZER.decode(asked.prompt_ids))
        ids = [*letters(text), END]
        cut = ids[: asked.max_tokens]
        logprobs = [-0.5 - at for at in range(len(cut))]
        return cut, logprobs, STEP, "stop" if cut == ids else "length"
