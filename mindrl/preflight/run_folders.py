"""Folders of a run: those of earlier runs that it needs, and free ones with room for its output."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path

from mindrl.checkpoint.commits import CHECKPOINTS, Commits
from mindrl.checkpoint.earlier_runs import named_checkpoints, named_rollouts
from mindrl.checkpoint.step_names import step_name
from mindrl.config.finding import Finding, broken
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import MindrlError, OutputError
from mindrl.models.adapters import factor_shapes
from mindrl.models.decoder import logical_shapes
from mindrl.models.sharding import full_sharding, table_bytes
from mindrl.observability.run_folder import Need, best_folder, check_room
from mindrl.preflight.role_heads import role_head
from mindrl.preflight.run_shardings import RunPlan

Places = Mapping[Role, str]
"""Export folder of each model."""
_RECORD_TOKEN_BYTES = 12
"""Bytes of a response token in a record: its id, its log-prob, its text."""
LOG_BYTES = 64 << 20
"""Free space for logs and samples, besides the exported models."""


def earlier_run_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what the configuration takes from an earlier run that does not have it."""
    place, rl = config.megatron_training.begins_from, config.rl_config
    # A rollout job loads no checkpoint.
    if place is not None and config.spool_config.job != "rollout":
        try:
            named_checkpoints(place)
        except MindrlError as error:
            yield Finding(str(error), "megatron_training.resume", place, ("auto",))
    if rl.debug == "train_only" and rl.debug_rollouts is not None:
        try:
            named_rollouts(config)
        except MindrlError as error:
            yield Finding(str(error), "rl_config.debug_rollouts", rl.debug_rollouts)


def export_places(config: RunConfig, run_folder: Path | None = None) -> Places:
    """Return each model's export folder; without a run folder only the configured ones."""
    names: dict[Role, str] = {"actor": "model", "critic": "critic"}
    saves = {role: config.value_of(f"{role}_config.save") for role in names}
    if run_folder is None:
        return {role: str(save) for role, save in saves.items() if save}
    there = (role for role in names if role in config.roles)
    return {role: str(saves[role] or run_folder / names[role]) for role in there}


def export_findings(places: Places) -> Iterator[Finding]:
    """Yield a finding if an export would replace files, or the other model."""
    for role, place in places.items():
        key = f"{role}_config.save"
        if not Path(place).resolve().name:
            yield broken(key, place, "must be a folder with a name, such as ./exported", None)
            return
        for folder in _written(place):
            if trouble := _trouble(folder):
                which = f": {folder} " if folder != Path(place).resolve() else ""
                yield broken(key, place, f"{which}{trouble}; choose a new folder", None)
                break
    if len(places) > 1:
        # Each export replaces its whole folder, including subfolders.
        actor, critic = places["actor"], places["critic"]
        pairs = [*product(_written(actor), _written(critic))]
        if any(
            ours.is_relative_to(theirs) or theirs.is_relative_to(ours) for ours, theirs in pairs
        ):
            need = (
                f"and actor_config.save={actor} would replace each other's files; choose "
                "two folders, neither inside the other"
            )
            yield broken("critic_config.save", critic, need, None)


def export_folders(config: RunConfig, root: Path, *, goes_on: bool = False) -> dict[Role, Path]:
    """Return the folder of each model that the run exports, including those in the run folder.

    With `goes_on` the run replaces its exports.

    Raises:
        OutputError: One is not empty, or is inside the other.
    """
    places = export_places(config, root)
    if not goes_on and (found := [*export_findings(places)]):
        raise OutputError("\n".join(map(str, found)))
    return {role: Path(folder).resolve() for role, folder in places.items()}


def check_folders(plan: RunPlan, root: Path, exports: Mapping[Role, Path]) -> None:
    """Create the folders of a run, and compare its output with the free space of their disks.

    Raises:
        OutputError: A folder cannot be written, or a disk is too small.
    """
    training = plan.config.megatron_training
    # Until it is complete, an export exists in addition to the previous and the best one.
    several = 0 < training.exports_every < training.train_iters
    copies = (3 if plan.config.evaluates else 2) if several else 1
    needs = [Need(folder=root, needed_bytes=LOG_BYTES, what="logs and samples")]
    needs += [
        Need(
            folder=folder.parent,
            needed_bytes=_still_needed(
                copies, export_bytes(plan, role), [folder, best_folder(folder)]
            ),
            what=f"{copies} x the exported {role}",
        )
        for role, folder in exports.items()
    ]
    if training.save_interval:
        # One is written in addition to those that are kept.
        count = training.keep_last + training.keep_best + 1
        one = sum(state_bytes(plan, role) for role in plan.config.changing_roles)
        needed = _still_needed(count, one, _replaced_checkpoints(plan, root))
        needs.append(Need(folder=root, needed_bytes=needed, what=f"{count} checkpoints"))
    check_room([*needs, *spool_needs(plan)])


def _still_needed(copies: int, nbytes: int, there: Iterable[Path]) -> int:
    """Return the bytes of `copies`, minus those of the folders that they will replace.

    The next copy is always written in addition to them.
    """
    # A best model shares the files of the newest by hard links.
    found = {
        (entry.st_dev, entry.st_ino): entry.st_size
        for folder in there
        if folder.is_dir()
        for entry in (path.stat() for path in folder.rglob("*") if path.is_file())
    }
    return max(copies * nbytes - sum(found.values()), nbytes)


def _replaced_checkpoints(plan: RunPlan, root: Path) -> Iterator[Path]:
    """Yield the checkpoints of a run folder that are not kept permanently."""
    commits, every = Commits(root / CHECKPOINTS), plan.config.megatron_training.keep_every
    for step in commits.steps():
        if not every or step % every:
            yield commits.root / step_name(step)


def spool_needs(plan: RunPlan) -> Iterator[Need]:
    """Yield the room that a spool needs until a checkpoint releases its data.

    A spool already in use by a train job has part of it, and is not checked.
    """
    config, spool = plan.config, plan.config.spool_config
    if spool.job is None or spool.folder is None:
        return
    folder = Path(spool.folder).resolve()
    if (folder / "progress.json").exists():
        return
    # One step is trained while the checkpoint of the previous one is committed.
    steps = config.megatron_training.save_interval + config.rl_config.max_staleness + 2
    longest = config.generate_config.sampling_config.max_tokens
    step_bytes = config.sequences_per_step * longest * _RECORD_TOKEN_BYTES
    most = steps * step_bytes
    if spool.max_records_mib is not None:
        # Records that the train job waits for are always generated.
        most = min(most, (spool.max_records_mib << 20) + step_bytes)
    yield Need(
        folder=folder,
        needed_bytes=most,
        what=f"records of up to {steps} steps (spool_config.max_records_mib bounds them)",
    )
    versions = (steps - 1) // spool.publish_every + 1
    yield Need(
        folder=folder,
        needed_bytes=versions * export_bytes(plan, "actor"),
        what=f"{versions} versions of the weights",
    )


def export_bytes(plan: RunPlan, role: Role) -> int:
    """Return the bytes of an exported model's weights."""
    model, dtype, head = plan.models[role], plan.train_dtype, role_head(plan.config, role)
    sharding = full_sharding(model, world_size=1, holders=[0], dtype=dtype, head=head)
    return table_bytes(sharding.table(0), sharding.dtype)


def state_bytes(plan: RunPlan, role: Role) -> int:
    """Return the float32 bytes of a model in a checkpoint: weights, and moments if trained."""
    shapes = logical_shapes(plan.models[role], head=role_head(plan.config, role))
    if role == "actor" and plan.low_rank is not None:
        shapes = factor_shapes(plan.models[role], plan.low_rank)
    return (1 if role == "ref" else 3) * 4 * sum(map(prod, shapes.values()))


def _written(place: str) -> list[Path]:
    """Return the folders that a role writes: its best model is next to its newest."""
    folder = Path(place).resolve()
    return [folder, best_folder(folder)]


def _trouble(folder: Path) -> str | None:
    """Return why a folder cannot take an export, which needs a new or an empty one."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        return "is a file" if there == folder else f"cannot be made: {there} is a file"
    if there == folder and any(folder.iterdir()):
        return "is not empty, and an export would replace its files"
    return None
