"""Sampled sequences, as they come from the rollout engine.

Shapes: B sequences, T positions of the longest sequence, prompt and response together.
A sequence is its prompt followed at once by its response, padded on the right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mindrl.batch.experience import Sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One response of the rollout engine."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The engine's log-prob of each of its own tokens, in nats."""
    finished: bool
    """It ended by itself rather than at the length limit."""

    def __post_init__(self) -> None:
        """Check that each token has its log-prob."""
        assert len(self.token_ids) == len(self.logprobs), "one log-prob for each token"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollouts:
    """Sequences sampled from the current policy."""

    tokens_BT: Tensor
    """int64; 0 behind a sequence's end."""
    lengths_B: Tensor
    """int64; prompt and response tokens."""
    response_mask_BT: Tensor
    """bool; True where the policy chose the token."""
    rollout_logprobs_BT: Tensor
    """float32; nats under the response mask, 0 elsewhere."""
    group_B: Tensor
    """int64; which prompt of the step a sequence answers."""
    finished_B: Tensor
    """bool; the response ended by itself."""

    @classmethod
    def from_responses(
        cls,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Response],
        group: Sequence[int],
    ) -> Self:
        """Lay out prompts with their responses; all three sequences have B entries."""
        lengths = [
            len(prompt) + len(response.token_ids)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        B, T = len(lengths), max(lengths)
        tokens_BT = torch.zeros(B, T, dtype=torch.int64)
        mask_BT = torch.zeros(B, T, dtype=torch.bool)
        logprobs_BT = torch.zeros(B, T, dtype=torch.float32)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            start, end = len(prompt), lengths[row]
            tokens_BT[row, :end] = torch.tensor([*prompt, *response.token_ids])
            mask_BT[row, start:end] = True
            logprobs_BT[row, start:end] = torch.tensor(response.logprobs)
        return cls(
            tokens_BT=tokens_BT,
            lengths_B=torch.tensor(lengths),
            response_mask_BT=mask_BT,
            rollout_logprobs_BT=logprobs_BT,
            group_B=torch.tensor(group),
            finished_B=torch.tensor([response.finished for response in responses]),
        )

    def sequences(self) -> Sequences:
        """Return the sequences alone, as a model scores them."""
        return Sequences(
            tokens_BT=self.tokens_BT,
            lengths_B=self.lengths_B,
            response_mask_BT=self.response_mask_BT,
        )

    def response_tokens(self, row: int) -> list[int]:
        """Return the response of one sequence as token ids."""
        chosen: list[int] = self.tokens_BT[row][self.response_mask_BT[row]].tolist()
        return chosen

    def metrics(self) -> dict[str, float]:
        """Say how long the responses are and how many ran into the limit."""
        response_lengths_B = self.response_mask_BT.sum(dim=1).double()
        return {
            "rollout/response_tokens": response_lengths_B.sum().item(),
            "rollout/response_length_mean": response_lengths_B.mean().item(),
            "rollout/response_length_max": response_lengths_B.max().item(),
            "rollout/cut_fraction": 1.0 - self.finished_B.double().mean().item(),
        }
