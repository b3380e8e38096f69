"""The folders of a run: what they must not hold yet, and the room that their disks must have."""

from collections.abc import Mapping
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.errors import OutputError
from mindrl.models.sharding import table_bytes, whole_sharding
from mindrl.observability.run_folder import Need, check_room
from mindrl.preflight.export_checks import Exported, export_findings, export_places
from mindrl.preflight.run_plan import RunPlan

LOG_BYTES = 64 << 20
"""Free space that logs and samples want, besides the exported models."""


def export_folders(config: RunConfig, root: Path) -> dict[Exported, Path]:
    """Return the folder of each model that the run exports, those in the run folder included.

    Raises:
        OutputError: One holds something, or lies in the other.
    """
    places = export_places(config, root)
    if found := [*export_findings(places)]:
        raise OutputError("\n".join(map(str, found)))
    return {role: Path(folder).resolve() for role, folder in places.items()}


def check_folders(plan: RunPlan, root: Path, exports: Mapping[Exported, Path]) -> None:
    """Make the folders of a run, and compare what it will write with what their disks have free.

    Raises:
        OutputError: A folder cannot be written, or a disk is too small.
    """
    training = plan.config.megatron_training
    # An export stands beside the one before it until it is whole, and beside the best one.
    several = 0 < training.save_interval < training.train_iters
    copies = {"actor": 3 if training.test_data_path else 2, "critic": 2} if several else {}
    needs = [Need(folder=root, needed_bytes=LOG_BYTES, what="logs and samples")]
    needs += [
        Need(
            folder=folder.parent,
            needed_bytes=copies.get(role, 1) * export_bytes(plan, role),
            what=f"{copies.get(role, 1)} x the exported {role}",
        )
        for role, folder in exports.items()
    ]
    check_room(needs)


def export_bytes(plan: RunPlan, role: Exported) -> int:
    """Count the bytes of an exported model's weights."""
    sharding = whole_sharding(
        plan.models[role],
        world_size=1,
        holders=[0],
        dtype=plan.train_dtype,
        head="value" if role == "critic" else "vocabulary",
    )
    return table_bytes(sharding.table(0), sharding.dtype)
