"""What travels between the tests of the rollout side and the process that they fork.

Without vLLM: the test process must be able to read it.
"""

from dataclasses import dataclass

from mindrl.batch.rollouts import Responses
from mindrl.rollout.engine import Sampling

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the engine is asked at once."""

    prompts: tuple[Tokens, ...]
    sampling: Sampling
    seeds: tuple[int, ...]

    def only(self, *rows: int) -> "Question":
        """Take some of the prompts, in this order, with their seeds."""
        return Question(
            prompts=tuple(self.prompts[row] for row in rows),
            sampling=self.sampling,
            seeds=tuple(self.seeds[row] for row in rows),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """Storage of an engine on the device."""

    weights: int
    packed_layers: int
    """Layers that hold a second copy of their weights, in the order that the kernels like."""
    kv_cache: int
    """As the engine counts it."""
    kv_pages: int
    """Its pages that are in memory: one is allocated when it is first used."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """What an engine said and held, from its start to its second set of weights."""

    answers: list[Responses]
    """To each question, with the weights of the first folder."""
    later_answers: list[Responses]
    """To each question, with those of the second folder, after a sleep in between."""
    device_bytes: dict[str, DeviceBytes]
    random_state_kept: bool
    """The generators of this process are where they were before the engine was started."""
    steps_with_own_seeds: bool
    """In each step of the engine the generator had another seed than in this process."""
    megatron_timeouts: dict[str, float]
    """Seconds that a collective may last, for each of the groups that Megatron made."""
    engine_timeouts: set[float]
    """The same of the engine's own groups."""
    refused: dict[str, str]
    """What the engine raised when it was asked in a bad moment."""
    answer_behind: Responses
    """To the first question, behind all that."""
    in_rounds: list[Responses]
    """To the first question in rounds of engine steps: without a break, and taken back each time;
    to the sampled one without a break, and with three that come in the second round; to the last
    three with five that come in the second round, when the others are complete."""
