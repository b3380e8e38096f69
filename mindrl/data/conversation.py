"""What a person and a model have said to each other, as the model reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage
from mindrl.data.tokenizer import plain_prefix
from mindrl.errors import DataError


@dataclass(kw_only=True)
class Conversation:
    """Messages in the tokenizer's chat template, or text behind text where there is none."""

    tokenizer: PreTrainedTokenizerBase
    is_plain: bool = False
    system: str | None = None
    """What the model is told first."""
    messages: list[ChatMessage] = field(default_factory=list)

    def ask(self, text: str) -> Sequence[int]:
        """Add what a person says; returns all of it as token ids.

        Raises:
            DataError: The chat template refuses it, or it is no text.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            rendered = self._rendered()
            rendered.encode()
        except TemplateError as error:
            self.take_back()
            raise DataError(f"the chat template refuses the prompt: {error}") from error
        except UnicodeEncodeError as error:
            self.take_back()
            raise DataError(f"the prompt is no text ({error})") from error
        # As the prompts of a training are read.
        first = plain_prefix(self.tokenizer) if self.is_plain else []
        token_ids: list[int] = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return [*first, *token_ids]

    def hear(self, answer: str) -> None:
        """Add what the model has answered."""
        self.messages.append({"role": "assistant", "content": answer})

    def take_back(self) -> None:
        """Forget what was said last."""
        self.messages.pop()

    def reset(self) -> None:
        """Forget all that was said."""
        self.messages.clear()

    def _rendered(self) -> str:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        if self.is_plain:
            return "".join(each["content"] for each in [*first, *self.messages])
        text: str = self.tokenizer.apply_chat_template(
            [*first, *self.messages], add_generation_prompt=True, tokenize=False
        )
        return text
