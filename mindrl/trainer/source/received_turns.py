"""Conversations of another job, which this job reads from records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindrl.batch.prompts import Prompt
from mindrl.observability.metrics import Metrics
from mindrl.trainer.source.conversation_metrics import conversation_metrics
from mindrl.trainer.source.group import OpenGroup, OpenSequence
from mindrl.trainer.source.turns import ConversationTurns, ResponseKey


@dataclass(kw_only=True)
class ReceivedTurns(ConversationTurns):
    """Conversations that arrive when they have ended: no environment runs here."""

    def forget(self) -> None:
        """Do nothing: the other job ends its environments."""

    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:
        """Do nothing: the other job begins conversations when it reads a request."""

    def drawn(
        self,
        row: ResponseKey,  # noqa: ARG002
        sequence: OpenSequence,
        prompt: Prompt,  # noqa: ARG002
    ) -> OpenSequence:
        """Return the response as it is: no environment runs here."""
        return sequence

    def is_answering(self) -> bool:
        """Return False: records are waited for elsewhere."""
        return False

    def answers(self, seconds: float) -> Sequence[tuple[ResponseKey, Any]]:  # noqa: ARG002
        """Return no answers."""
        return ()

    def answered(
        self,
        row: ResponseKey,  # noqa: ARG002
        sequence: OpenSequence,
        prompt: Prompt,  # noqa: ARG002
        answer: Any,  # noqa: ARG002
    ) -> OpenSequence:
        """Return the response as it is: `answers` returns none."""
        return sequence

    def lost_processes(self) -> int:
        """Return 0: the other job has the processes."""
        return 0

    def metrics(self, groups: Sequence[OpenGroup]) -> Metrics:
        """Return metrics about finished groups; the other job knows about its processes."""
        return conversation_metrics(groups)
