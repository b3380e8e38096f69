"""Sequences sampled by the rollout engine.

Shapes: B sequences, T positions of the longest sequence, prompt and response together. A sequence
is its prompt, directly followed by its response, padded on the right. A response of several turns
contains tokens of its environment; the response mask leaves them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain
from typing import Any, Self, overload

import torch
from torch import Tensor
from torch.nn.functional import pad

from mindrl.batch.packing import Compact
from mindrl.batch.segments import Conversations
from mindrl.batch.sequences import Sequences

_OF_IMAGES = ("image_numbers_BI", "image_starts_BI")


@dataclass(frozen=True, kw_only=True, slots=True)
class Responses(Compact):
    """Responses of the rollout engine, concatenated: the N tokens of B responses.

    Tensors, not lists: a step of 67 million tokens must not create as many objects.
    """

    token_ids_N: Tensor
    """int64."""
    logprobs_N: Tensor
    """float32; the engine's log-prob of each sampled token, in nats."""
    lengths_B: Tensor
    """int64; number of tokens of each response."""
    finished_B: Tensor
    """bool; whether it ended by itself, not at the length limit."""

    def __post_init__(self) -> None:
        """Check that there is a log-prob per token, and that the lengths add up to the tokens."""
        assert len(self.token_ids_N) == len(self.logprobs_N), "one log-prob for each token"
        assert len(self.token_ids_N) == int(self.lengths_B.sum()), "lengths add up to the tokens"
        assert len(self.lengths_B) == len(self.finished_B), "each response ended or was cut"

    @classmethod
    def of(
        cls,
        token_ids: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        finished: Sequence[bool],
    ) -> Self:
        """Convert an engine's lists; all three have B entries."""
        return cls(
            token_ids_N=torch.tensor([*chain.from_iterable(token_ids)], dtype=torch.int64),
            logprobs_N=torch.tensor([*chain.from_iterable(logprobs)], dtype=torch.float32),
            lengths_B=torch.tensor([len(each) for each in token_ids], dtype=torch.int64),
            finished_B=torch.tensor(finished, dtype=torch.bool),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the responses of all replicas, in order."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def each(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tokens and the log-probs of each response."""
        lengths = self.lengths_B.tolist()
        tokens = torch.split(self.token_ids_N, lengths)
        return [*zip(tokens, torch.split(self.logprobs_N, lengths), strict=True)]

    def in_order(self, places: Sequence[int]) -> Self:
        """Return the responses permuted: response i moves to index `places[i]`."""
        rows = torch.tensor(places, dtype=torch.int64).argsort().tolist()
        each = self.each()
        return type(self)(
            token_ids_N=torch.cat([each[row][0] for row in rows]),
            logprobs_N=torch.cat([each[row][1] for row in rows]),
            lengths_B=self.lengths_B[rows],
            finished_B=self.finished_B[rows],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """Data of responses of several turns, for their N concatenated tokens."""

    written_N: Tensor
    """bool; tokens that the policy sampled. The others came from the environment."""
    rewards_N: Tensor
    """float32; reward of the environment for the turn that ends with a token, 0 elsewhere."""
    conversation_B: Tensor | None = None
    """int64; as of `Rollouts`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollouts(Sequences):
    """Sequences sampled from the current policy; the response is the sampled part."""

    rollout_logprobs_BT: Tensor
    """float32; nats where the response mask is true, 0 elsewhere."""
    group_B: Tensor
    """int64; index of the prompt of the step that a sequence answers."""
    finished_B: Tensor
    """bool; whether the response ended by itself."""
    ages_BT: Tensor | None = None
    """int64; steps between the step whose weights sampled a token and the step that trains on it.
    None if one step sampled all of them."""
    turn_rewards_BT: Tensor | None = None
    """float32; reward of the environment at the last token of each turn, 0 elsewhere. None without
    an environment."""
    conversation_B: Tensor | None = None
    """int64; equal for the sequences of a conversation, which are adjacent. None if each is one."""

    @classmethod
    def from_responses(
        cls, prompts: Sequence[Sequence[int]], responses: Responses, group: Sequence[int]
    ) -> Self:
        """Combine the token ids of prompts with B responses; `group` is the prompt of each."""
        prompts_P = [torch.tensor(prompt) for prompt in prompts]
        return cls.of_turns([prompts_P[index] for index in group], responses, group)

    @classmethod
    def of_turns(
        cls,
        prompts: Sequence[Tensor],
        responses: Responses,
        group: Sequence[int],
        turns: Turns | None = None,
    ) -> Self:
        """Combine the prompt of each response, as token ids, with the B responses.

        With `turns` the responses contain tokens of an environment.
        """
        assert len(group) == len(prompts) == len(responses.lengths_B), (
            "each response answers a prompt"
        )
        asked_B = torch.tensor([len(prompt) for prompt in prompts])
        lengths_B = asked_B + responses.lengths_B
        positions_T = torch.arange(int(lengths_B.max()))
        prompt_mask_BT = positions_T < asked_B[:, None]
        mask_BT = (positions_T < lengths_B[:, None]) & ~prompt_mask_BT
        # masked_scatter_ fills a mask row by row, so concatenated tokens reach their places.
        tokens_BT = torch.zeros(mask_BT.shape, dtype=torch.int64)
        tokens_BT.masked_scatter_(prompt_mask_BT, torch.cat([*prompts]))
        tokens_BT.masked_scatter_(mask_BT, responses.token_ids_N)
        rewards_BT, written_BT, group_B = None, mask_BT, torch.tensor(group)
        conversation_B = None if turns is None else turns.conversation_B
        if turns is not None:
            rewards_BT = torch.zeros(mask_BT.shape).masked_scatter_(mask_BT, turns.rewards_N)
            written_BT = torch.zeros_like(mask_BT).masked_scatter_(mask_BT, turns.written_N)
        return cls(
            tokens_BT=tokens_BT,
            lengths_B=lengths_B,
            response_mask_BT=written_BT,
            rollout_logprobs_BT=torch.zeros(mask_BT.shape).masked_scatter_(
                mask_BT, responses.logprobs_N
            ),
            group_B=group_B,
            finished_B=responses.finished_B,
            turn_rewards_BT=rewards_BT,
            conversation_B=conversation_B,
            tree_B=None if conversation_B is None else group_B,
        )

    def conversations(self) -> Conversations:
        """Return the conversations that the sequences belong to."""
        return Conversations(self.response_mask_BT, self.conversation_B)

    def after_prompts(self) -> Tensor:
        """Return the mask [B, T] of all tokens after the prompts, of policy and environment."""
        positions_T = torch.arange(self.tokens_BT.size(1))
        first_B = self.response_mask_BT.int().argmax(dim=1)
        first_B = torch.where(self.response_mask_BT.any(dim=1), first_B, self.lengths_B)
        return (positions_T >= first_B[:, None]) & (positions_T < self.lengths_B[:, None])

    def responses(self) -> Responses:
        """Return the responses without prompts, as from the engine, with environments' tokens."""
        mask_BT = self.after_prompts()
        return Responses(
            token_ids_N=self.tokens_BT[mask_BT],
            logprobs_N=self.rollout_logprobs_BT[mask_BT],
            lengths_B=mask_BT.sum(dim=1),
            finished_B=self.finished_B,
        )

    def with_ages(self, ages_N: Tensor) -> Self:
        """Set the age of each token after the prompts, given concatenated."""
        mask_BT = self.after_prompts()
        ages_BT = torch.zeros(mask_BT.shape, dtype=torch.int64).masked_scatter_(mask_BT, ages_N)
        return replace(self, ages_BT=ages_BT)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate batches; group indices continue from one batch to the next."""
        longest = max(part.tokens_BT.size(1) for part in parts)
        columns: dict[str, Any] = {}
        assert all(part.ages_BT is None for part in parts), "of one step"
        assert all(part.conversation_B is None for part in parts), "of one sequence each"
        for name in (field.name for field in fields(cls) if field.name != "ages_BT"):
            below = [getattr(part, name) for part in parts]
            if name in _OF_IMAGES and any(column is not None for column in below):
                below = [
                    part.group_B.new_zeros(len(part), 1) if column is None else column
                    for part, column in zip(parts, below, strict=True)
                ]
            if below[0] is None:
                continue
            if below[0].dim() > 1:
                below = [pad(column, (0, longest - column.size(1))) for column in below]
            columns[name] = torch.cat(below)
        first = [0, *accumulate(int(part.group_B.max()) + 1 for part in parts)]
        groups = [part.group_B + before for part, before in zip(parts, first, strict=False)]
        return cls(**columns | {"group_B": torch.cat(groups)})

    def sequences(self) -> Sequences:
        """Return only the sequences, as input of a model."""
        return self.into(Sequences)

    def response_tokens(self) -> "ResponseTokens":
        """Return the token ids that the policy sampled in each conversation."""
        talks = self.conversations()
        return ResponseTokens(talks.joined(self.tokens_BT), talks.mask())

    def metrics(self) -> dict[str, float]:
        """Return the lengths of the responses and the fraction that reached the limit."""
        talks = self.conversations()
        lengths_C = talks.mask().sum(dim=1).double()
        return {
            "rollout/response_tokens": lengths_C.sum().item(),
            "rollout/response_length_mean": lengths_C.mean().item(),
            "rollout/response_length_max": lengths_C.max().item(),
            "rollout/cut_fraction": 1.0 - talks.last(self.finished_B).double().mean().item(),
        }


@dataclass(frozen=True, eq=False)
class ResponseTokens(Sequence[list[int]]):
    """Token ids of responses, made lists on access: lists take 36 bytes a token."""

    tokens_CL: Tensor
    mask_CL: Tensor
    """bool; tokens of the response."""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.tokens_CL)

    @overload
    def __getitem__(self, row: int) -> list[int]: ...
    @overload
    def __getitem__(self, row: slice) -> list[list[int]]: ...
    def __getitem__(self, row: int | slice) -> list[int] | list[list[int]]:
        """Return the tokens of a response, or of several."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        tokens: list[int] = self.tokens_CL[row][self.mask_CL[row]].tolist()
        return tokens
