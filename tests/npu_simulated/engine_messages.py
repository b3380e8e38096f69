"""Messages between tests of an engine and the processes of simulated devices."""

from dataclasses import dataclass, field

from mindrl.batch.rollouts import Responses

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """A model in an engine."""

    folder: str
    tp: int = 1
    whole_experts: bool = False
    """The ranks of a replica share the experts; else each expert is cut."""
    graphs: bool = False
    """Whether decode steps are captured."""
    routes: bool = False
    """Whether the engine keeps the experts of its tokens."""


@dataclass(kw_only=True)
class GraphLife:
    """What an engine with graphs said, and how."""

    captured: int = 0
    """Graphs of its start."""
    replayed: list[int] = field(default_factory=list)
    """Graphs that each answer took."""
    asleep: int = 0
    """Bytes of the device beyond those before the engine, in its first sleep."""
    greedy: list[Responses] = field(default_factory=list)
    """With each set of weights."""
    sampled: list[Responses] = field(default_factory=list)
    """With each set of weights."""


@dataclass(kw_only=True)
class EngineLife:
    """What an engine on a device said and held."""

    shapes_agree: bool = False
    """What the engine expects is what mindrl's table says."""
    taken: list[dict[str, int]] = field(default_factory=list)
    """Bytes of the device beyond those before the engine: behind its start, and in each round."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of its weights and of its KV cache, as it says."""
    kept: list[bool] = field(default_factory=list)
    """Whether each wake-up brought the previous weights back."""
    random_states: int = 0
    """Number of different states of the device's random generator, read after each round."""
    moved: list[str] = field(default_factory=list)
    """Parameters that have another address behind a load."""
    read: list[float] = field(default_factory=list)
    """Log-probs of the first tokens of the last sampled responses, read as a next token's."""
    greedy: list[Responses] = field(default_factory=list)
    """Behind each wake."""
    sampled: list[Responses] = field(default_factory=list)
