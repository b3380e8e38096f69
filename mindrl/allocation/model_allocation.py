"""One engine: its backend, the layout of its model and the part that it plays in a run."""

from dataclasses import dataclass, replace

from mindrl.allocation.backends import BACKENDS
from mindrl.allocation.grammar import Part, read_engine
from mindrl.allocation.part_layouts import rollout_layout, training_layout
from mindrl.allocation.refusals import AllocationError, missing_backend, unknown_backend
from mindrl.allocation.strings import rollout_string, training_string
from mindrl.layouts.layout import RolloutLayout, TrainLayout


@dataclass(frozen=True, kw_only=True)
class ModelAllocation:
    """What a backend string says; `str` spells it in the one canonical way."""

    backend: str
    """A key of `BACKENDS`."""
    layout: TrainLayout | RolloutLayout
    """The first for a backend that trains, the second for one that generates."""
    name: str | None = None
    """In brackets behind the backend."""

    def __post_init__(self) -> None:
        """Assert that the backend and the layout are of one side."""
        assert isinstance(self.layout, TrainLayout) == self.trains, self

    @property
    def trains(self) -> bool:
        """Whether the backend trains; otherwise it generates."""
        return BACKENDS[self.backend].trains

    @property
    def world_size(self) -> int:
        """Devices that the engine takes; expert parallelism adds none."""
        return self.layout.world_size

    @property
    def role(self) -> str:
        """The name; without one, what a backend of its side does: `actor` or `rollout`."""
        return self.name or ("actor" if self.trains else "rollout")

    def __str__(self) -> str:
        engine = f"{self.backend}[{self.name}]" if self.name else self.backend
        if isinstance(self.layout, TrainLayout):
            return training_string(self.layout, engine)
        return rollout_string(self.layout, engine)


def parse_backend(text: str, suggested: str = "megatron") -> ModelAllocation:
    """Read the backend string of one engine.

    Args:
        text: For example `megatron:(attn:d4p2t2c2|ffn:t4e2)`.
        suggested: The backend that errors propose where the text has none.

    Raises:
        AllocationError: The text is no such string, or its sizes do not fit.
    """
    part = read_engine(text, suggested)
    if part.backend is None:
        raise missing_backend(text, part.at, suggested)
    if part.joint == ".":
        fixed = f"{text[: part.joint_at]}:{text[part.joint_at + 1 :]}"
        raise AllocationError(text, part.joint_at, f"'.' is the old form; write {fixed}")
    return allocation_of(text, part)


def allocation_of(text: str, part: Part, default: str = "") -> ModelAllocation:
    """Judge one part of a string.

    Args:
        text: The whole string.
        part: Of it.
        default: The backend of a part that names none.

    Raises:
        AllocationError: An unknown backend, or sizes that do not fit.
    """
    backend = part.backend or default
    if backend not in BACKENDS:
        raise unknown_backend(text, part.at, backend)
    read = training_layout if BACKENDS[backend].trains else rollout_layout
    return ModelAllocation(
        backend=backend, layout=read(text, replace(part, backend=backend)), name=part.name
    )
