"""What the tests of frozen towers call in a prepared process; see forked_workers.run."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from archon_probe import build, lives
from training_messages import Case, Course, Life

from mindrl.batch.sequences import Sequences
from mindrl.training.archon.engine import ArchonEngine
from mindrl.training.archon.state_bytes import archon_trained_bytes
from mindrl.training.engine import StatePart

_PARTS = (StatePart.PARAMETERS, StatePart.GRADIENTS, StatePart.OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class CountedLife:
    """What a rank read and learned, with what its tower did."""

    life: Life
    pictures: list[int]
    """Pictures in each call of the tower."""
    state_bytes: tuple[int, ...]
    """Bytes of weights, gradients and moments."""
    planned_bytes: tuple[int, ...]


def counted_life(case: Case, course: Course, sequences: Sequences) -> CountedLife:
    """Read, and learn; count what the tower reads."""
    pictures: list[int] = []
    built: list[ArchonEngine] = []

    def counted(case: Case, optimizer: Any) -> ArchonEngine:
        model = build(case, optimizer)
        network: Any = model.networks[0]
        tower = network.tower.network
        read = tower.forward

        def counting(pixels_PD: Any, grid_thw: Any) -> Any:
            pictures.append(len(grid_thw))
            return read(pixels_PD, grid_thw)

        tower.forward = counting
        built.append(model)
        return model

    (life,) = lives([(case, course)], sequences, counted)
    (model,) = built
    planned = archon_trained_bytes(model.sharding)[dist.get_rank()]
    return CountedLife(
        life=life,
        pictures=pictures,
        state_bytes=tuple(
            sum(each.untyped_storage().nbytes() for each in model.state(part)) for part in _PARTS
        ),
        planned_bytes=(planned.weights, planned.gradients, planned.optimizer),
    )
