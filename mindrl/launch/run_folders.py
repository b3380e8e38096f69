"""The folders of a run: what they must not hold yet, and the room that their disks must have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mindrl.config.run import RunConfig
from mindrl.errors import OutputError
from mindrl.launch.layouts import train_dtype
from mindrl.models.decoder import whole_side
from mindrl.models.description import read_description
from mindrl.models.rank_files import table_bytes
from mindrl.observability.run_folder import Need, check_room
from mindrl.trainer.journal import best_folder

LOG_BYTES = 64 << 20
"""Free space that logs and samples want, besides the exported models."""
Exported = Literal["actor", "critic"]


def export_folders(config: RunConfig, root: Path) -> dict[Exported, Path]:
    """Return the folder of each model that the run exports, which must not hold anything.

    Raises:
        OutputError: One holds files.
    """
    asked: dict[Exported, str | Path] = {"actor": config.actor_config.save or root / "model"}
    if config.critic_config is not None:
        asked["critic"] = config.critic_config.save or root / "critic"
    folders = {role: Path(folder).resolve() for role, folder in asked.items()}
    for role, folder in (*folders.items(), ("actor", best_folder(folders["actor"]))):
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                f"{role}_config.save={folders[role]}: {folder} holds files already, and an export "
                "would replace them; name a new folder"
            )
    return folders


def check_folders(config: RunConfig, root: Path, exports: Mapping[Exported, Path]) -> None:
    """Make the folders of a run, and compare what it will write with what their disks have free.

    Raises:
        OutputError: A folder cannot be written, or a disk is too small.
    """
    training = config.megatron_training
    # An export stands beside the one before it until it is whole, and beside the best one.
    several = 0 < training.save_interval < training.train_iters
    copies = {"actor": 3 if training.test_data_path else 2, "critic": 2} if several else {}
    needs = [Need(folder=root, needed_bytes=LOG_BYTES, what="logs and samples")]
    needs += [
        Need(
            folder=folder.parent,
            needed_bytes=copies.get(role, 1) * export_bytes(config, role),
            what=f"{copies.get(role, 1)} x the exported {role}",
        )
        for role, folder in exports.items()
    ]
    check_room(needs)


def export_bytes(config: RunConfig, role: Exported) -> int:
    """Count the bytes of an exported model's weights."""
    side = whole_side(
        read_description(config.model_path(role)),
        world_size=1,
        holders=[0],
        dtype=train_dtype(config),
        head="value" if role == "critic" else "vocabulary",
    )
    return table_bytes(side.table(0), side.dtype)
