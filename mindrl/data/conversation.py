"""Messages of a user and a model, rendered as the model's input."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage
from mindrl.data.tokenizer import plain_prefix
from mindrl.errors import DataError


@dataclass(kw_only=True)
class Conversation:
    """Messages in the tokenizer's chat template, or concatenated if `is_plain`."""

    tokenizer: PreTrainedTokenizerBase
    is_plain: bool = False
    system: str | None = None
    """System prompt."""
    messages: list[ChatMessage] = field(default_factory=list)

    def add_question(self, text: str) -> Sequence[int]:
        """Append a user message; return the whole conversation as token ids.

        Raises:
            DataError: The chat template refuses it, or it is not valid text.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            rendered = self._rendered()
            rendered.encode()
        except TemplateError as error:
            self.take_back()
            raise DataError(f"the chat template rejects the prompt: {error}") from error
        except UnicodeEncodeError as error:
            self.take_back()
            raise DataError(f"the prompt is not valid text ({error})") from error
        # Tokenised like the prompts of a training run.
        first = plain_prefix(self.tokenizer) if self.is_plain else []
        token_ids: list[int] = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return [*first, *token_ids]

    def add_answer(self, answer: str) -> None:
        """Append an answer of the model."""
        self.messages.append({"role": "assistant", "content": answer})

    def take_back(self) -> None:
        """Remove the last message."""
        self.messages.pop()

    def reset(self) -> None:
        """Remove all messages."""
        self.messages.clear()

    def _rendered(self) -> str:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        if self.is_plain:
            return "".join(each["content"] for each in [*first, *self.messages])
        text: str = self.tokenizer.apply_chat_template(
            [*first, *self.messages], add_generation_prompt=True, tokenize=False
        )
        return text
