"""Interactive conversation with a model in the terminal."""

import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib import import_module

from mindrl.data.conversation import Conversation
from mindrl.errors import DataError, StopRequestedError
from mindrl.launch.interrupts import stop_requests
from mindrl.observability.terminal import note, printable, say
from mindrl.rollout.chat_engine import AnswerSampling, ChatEngine

_RESET = "/reset"


@dataclass(kw_only=True)
class Chat:
    """A conversation; text is printed as it arrives, without terminal control characters."""

    conversation: Conversation
    sampling: AnswerSampling
    longest: int
    """Limit of prompt and answer together, in tokens."""

    def add_question(self, text: str) -> Sequence[int]:
        """Add a user message; returns the whole conversation as token ids.

        Raises:
            DataError: The message is too long, no text, or the chat template does not accept it.
        """
        token_ids = self.conversation.add_question(text)
        if len(token_ids) >= self.longest:
            self.conversation.take_back()
            raise DataError(
                f"the conversation has {len(token_ids)} tokens; it must have less than "
                f"{self.longest}: raise --max-length up to the model's limit"
            )
        return token_ids

    def answer(self, engine: ChatEngine, token_ids: Sequence[int]) -> str:
        """Print the answers; returns the first.

        Raises:
            StopRequestedError: A signal ended it; the partial answer is kept in the conversation.
        """
        room = self.longest - len(token_ids)
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        texts, cut = [""] * sampling.samples, [False] * sampling.samples
        try:
            with (
                stop_requests() as check_interrupt,
                closing(engine.answers(token_ids, sampling)) as pieces,
            ):
                for piece in pieces:
                    texts[piece.answer] += piece.text
                    cut[piece.answer] |= piece.is_cut
                    # Pieces of several answers would be interleaved.
                    _write(piece.text * (sampling.samples == 1))
                    check_interrupt()
        finally:
            self.conversation.add_answer(texts[0])
            if sampling.samples == 1:
                _write("\n")
        if sampling.samples > 1:
            for number, text in enumerate(texts, start=1):
                say(f"--- answer {number} of {sampling.samples}", printable(text))
        if any(cut):
            limit = "--max-length" if room < self.sampling.max_tokens else "--max-tokens"
            note(f"cut off at {sampling.max_tokens} tokens ({limit})")
        return texts[0]

    def talk(self, engine: ChatEngine) -> None:
        """Answer stdin line by line until its end."""
        if sys.stdin.isatty():
            say(f"{_RESET} clears the conversation, Ctrl-C stops an answer, Ctrl-D quits")
            with suppress(ImportError):
                import_module("readline")
        while (line := _line()) is not None:
            if line.strip() == _RESET:
                self.conversation.reset()
                note("conversation cleared")
            elif line.strip():
                self._reply(engine, line)

    def _reply(self, engine: ChatEngine, line: str) -> None:
        try:
            self.answer(engine, self.add_question(line))
        except DataError as error:
            note(f"{error}, or clear the conversation with {_RESET}")
        except StopRequestedError:
            note("stopped")


def _line() -> str | None:
    """Read a line of stdin; returns None at its end."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        if sys.stdin.isatty():
            _write("\n")
        return None


def _write(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()
