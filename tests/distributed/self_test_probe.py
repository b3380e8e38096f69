"""Workers of the self-test in which something is wrong."""

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mindrl.platform.copies import Copies
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.self_test.worker import TestedWorker


def copies_nothing(plan: RunPlan, platform: Platform) -> TestedWorker:
    """Build a worker whose copies are done before they begin."""

    def start(
        _self: Copies, _pairs: Iterable[tuple[Tensor, Tensor]], then: Callable[[], object]
    ) -> None:
        then()

    Copies.start = start  # type: ignore[method-assign]
    return TestedWorker(plan, platform)


def keeps_to_itself(plan: RunPlan, platform: Platform) -> TestedWorker:
    """Build a worker that takes its own part of an exchange for those of all."""

    def to_itself(received: Tensor, sent: Tensor, *_: Any, **__: Any) -> None:
        received.copy_(sent)

    dist.all_to_all_single = to_itself
    return TestedWorker(plan, platform)
