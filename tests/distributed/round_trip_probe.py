"""What the tests of the round trip call in forked ranks: import, and export as workers do."""

from pathlib import Path

import torch.distributed as dist
from reshard_messages import Way
from reshard_probe import LOSS, OPTIMIZER
from rollout_probe import settings
from training_messages import Case
from training_probe import build

from mindrl.rollout.engine import RolloutEngine
from mindrl.training.actor import TrainedModel
from mindrl.workers.weights_in_transit import TransitSettings, WeightsInTransit


def exported(ways: list[Way], targets: list[str]) -> None:
    """Read each folder into its training layout, and write what the ranks hold to a new folder."""
    engine = RolloutEngine(settings(ways[0].folder))
    for way, target in zip(ways, targets, strict=True):
        model = TrainedModel(build(Case(folder=way.folder, layout=way.train)), OPTIMIZER, LOSS)
        transit_settings = TransitSettings(
            rollout=way.rollout,
            rollout_dtype="float32",
            ranks_per_node=dist.get_world_size(),
            bucket_bytes=way.bucket_bytes,
            timeout_seconds=60,
            verify="off",
            release_source=False,
        )
        transit = WeightsInTransit(way.folder, model, engine, transit_settings, name=target)
        transit.export(Path(target))
        # The next way reads what rank 0 wrote.
        dist.barrier()
