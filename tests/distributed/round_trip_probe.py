"""What the tests of the round trip call in forked ranks: import, and export as workers do."""

from pathlib import Path

import torch.distributed as dist
from reshard_messages import Way
from reshard_probe import LOSS, OPTIMIZER
from rollout_probe import settings, sleeping_engine
from training_messages import Case
from training_probe import build

from mindrl.training.actor import TrainedActor
from mindrl.workers.weights_in_transit import TransitSettings, WeightsInTransit


def exported(ways: list[Way], targets: list[str]) -> None:
    """Read each folder into its training layout, and write what the ranks hold to a new folder."""
    engine = sleeping_engine(settings(ways[0].folder))
    for way, target in zip(ways, targets, strict=True):
        model = TrainedActor(build(Case(folder=way.folder, layout=way.train)), OPTIMIZER, LOSS)
        transit_settings = TransitSettings(
            rollout=way.rollout,
            rollout_dtype="float32",
            ranks_per_node=dist.get_world_size(),
            bucket_bytes=way.bucket_bytes,
            timeout_seconds=60,
            verify="off",
        )
        transit = WeightsInTransit(
            way.folder, model, engine, transit_settings, leaves=None, name=target
        )
        transit.export(Path(target))
        # The next way reads what rank 0 wrote.
        dist.barrier()
