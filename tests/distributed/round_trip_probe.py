"""What the tests of the round trip call in forked ranks: import, and export as workers do."""

from pathlib import Path

import torch.distributed as dist
from reshard_messages import Way
from reshard_probe import LOSS, OPTIMIZER, transit_settings
from rollout_probe import settings, sleeping_engine
from training_messages import Case
from training_probe import build

from mindrl.training.megatron.actor import TrainedActor
from mindrl.workers.weight_sync import WeightSync


def exported(ways: list[Way], targets: list[str]) -> None:
    """Read each folder into its training layout, and write what the ranks hold to a new folder."""
    engine = sleeping_engine(settings(ways[0].folder))
    for way, target in zip(ways, targets, strict=True):
        model = TrainedActor(build(Case(folder=way.folder, layout=way.train)), OPTIMIZER, LOSS)
        settings_of_way = transit_settings(way, model, verify="off")
        transit = WeightSync(
            way.folder, model, engine, settings_of_way, on_last_read=None, name=target
        )
        transit.export(Path(target))
        # The next way reads what rank 0 wrote.
        dist.barrier()
