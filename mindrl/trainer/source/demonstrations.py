"""The rows of supervised fine-tuning, step by step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindrl.batch.prompts import Prompt
from mindrl.data.order import MixedOrder, PromptOrder
from mindrl.trainer.source.interface import Source


@dataclass(frozen=True, kw_only=True)
class Demonstrations(Source[Sequence[Prompt]]):
    """Rows with their answers, in the order of the data."""

    prompts: Sequence[Prompt]
    order: PromptOrder | MixedOrder
    per_step: int
    """Rows that a step trains on."""

    def next(self, step: int, check_interrupt: Callable[[], None]) -> Sequence[Prompt]:  # noqa: ARG002
        """Return the rows of a step, without waiting."""
        rows = self.order.indices((step - 1) * self.per_step, self.per_step)
        return [self.prompts[row] for row in rows]
