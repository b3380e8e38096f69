"""Groups that stay open over several steps.

Shapes: N tokens of a response.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenSequence:
    """A possibly incomplete response."""

    sample: int
    """Its number among the responses to its prompt in the step that started it."""
    tokens_N: Tensor
    """int64."""
    logprobs_N: Tensor
    """float32; under the weights that sampled each token."""
    steps_N: Tensor
    """int64; step of those weights."""
    finished: bool = False
    """Whether it ended by itself."""

    @classmethod
    def begun(cls, sample: int) -> Self:
        """Create a response without tokens."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(sample=sample, tokens_N=none, logprobs_N=torch.zeros(0), steps_N=none)

    def is_whole(self, longest: int) -> bool:
        """Return whether it is complete."""
        return self.finished or len(self.tokens_N) == longest

    def with_more(self, tokens_N: Tensor, logprobs_N: Tensor, *, step: int, finished: bool) -> Self:
        """Append tokens sampled in a step."""
        return replace(
            self,
            tokens_N=torch.cat([self.tokens_N, tokens_N]),
            logprobs_N=torch.cat([self.logprobs_N, logprobs_N]),
            steps_N=torch.cat([self.steps_N, torch.full_like(tokens_N, step)]),
            finished=finished,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenGroup:
    """The possibly incomplete responses to a prompt."""

    index: int
    """Index of the prompt in the data."""
    born: int
    """Step that started it."""
    sequences: tuple[OpenSequence, ...]

    def is_whole(self, longest: int) -> bool:
        """Return whether it can be trained on."""
        return not self.open_places(longest)

    def open_places(self, longest: int) -> list[int]:
        """Return the indices of incomplete responses."""
        each = enumerate(self.sequences)
        return [place for place, sequence in each if not sequence.is_whole(longest)]

    def with_more(
        self, place: int, drawn: tuple[Tensor, Tensor], *, step: int, finished: bool
    ) -> Self:
        """Append to a response the tokens and log-probs, [N] each, sampled in a step."""
        sequences = [*self.sequences]
        sequences[place] = sequences[place].with_more(*drawn, step=step, finished=finished)
        return replace(self, sequences=tuple(sequences))


_COLUMNS = {"tokens_N": np.int64, "logprobs_N": np.float32, "steps_N": np.int64}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupPool:
    """State after a step."""

    place: int
    """Index of the next prompt in the order of the data."""
    groups: tuple[OpenGroup, ...] = ()
    """Open groups, the oldest first."""

    def state(self) -> dict[str, Any]:
        """Return it as JSON values, bitwise exact."""
        return {
            "place": self.place,
            "groups": [
                {
                    "index": group.index,
                    "born": group.born,
                    "sequences": [_as_json(each) for each in group.sequences],
                }
                for group in self.groups
            ],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(
            place=state["place"],
            groups=tuple(
                OpenGroup(
                    index=group["index"],
                    born=group["born"],
                    sequences=tuple(map(_of_json, group["sequences"])),
                )
                for group in state["groups"]
            ),
        )


def _as_json(sequence: OpenSequence) -> dict[str, Any]:
    columns = {name: getattr(sequence, name).numpy().tobytes() for name in _COLUMNS}
    texts = {name: b64encode(content).decode() for name, content in columns.items()}
    return {"sample": sequence.sample, "finished": sequence.finished, **texts}


def _of_json(values: Mapping[str, Any]) -> OpenSequence:
    columns = {
        name: torch.from_numpy(np.frombuffer(b64decode(values[name]), kind).copy())
        for name, kind in _COLUMNS.items()
    }
    return OpenSequence(sample=values["sample"], finished=values["finished"], **columns)
