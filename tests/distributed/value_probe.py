"""What the tests of value heads call in prepared processes; see forked_workers.run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import archon_probe
import torch
import torch.distributed as dist
from torch import Tensor
from training_messages import Case
from training_probe import copied, join, known, logprobs, policy, settings, share
from transfer_probe import Shards, prepared
from value_messages import Cast, Evening, Judged, Played, ValueTrial

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences, SequenceScores, Values
from mindrl.checkpoint.export import ExportedModel, exported_model
from mindrl.errors import ModelError
from mindrl.models.sharding import full_sharding
from mindrl.training.engine import TrainingEngine
from mindrl.training.megatron.engine import MegatronEngine
from mindrl.training.megatron.parallel import ParallelGroups
from mindrl.training.packs import Pack
from mindrl.training.reading import Reader

CUT = MicroBatching(sequences=3)


def judged(trials: list[ValueTrial], sequences: Sequences) -> list[Judged]:
    """Build each model; returns what it says of this rank's share, and of its updates."""
    return [_judged(trial, sequences) for trial in trials]


def _judged(trial: ValueTrial, sequences: Sequences) -> Judged:
    case, course = trial.case, trial.course
    optimizer = None if course is None else course.optimizer
    model: TrainingEngine
    if case.backend == "megatron":
        model = value_model(case, join(case.layout), optimizer, head_seed=trial.head_seed)
    else:
        of_values = replace(case, settings={**case.settings, "head": "value"})
        model = archon_probe.build(of_values, optimizer, head_seed=trial.head_seed)
    ours = share(case, sequences)
    values = values_of(model, ours)
    read = model.forward(ours, CUT, at_end=True)
    rewards = None if read is None else SequenceScores(rewards_B=read[0].sum(dim=1))
    local = model.local_tensors()
    names = [name for name in local if name.endswith(("output_layer.weight", "score.weight"))]
    head = local[names[0]].clone() if names else None
    metrics = []
    if course is not None:
        metrics = [
            model.train_step(share(case, minibatch), course.micro_batching, course.loss)
            for minibatch in course.minibatches
        ]
    if trial.export_to is not None:
        export(model, Path(trial.export_to))
    return Judged(values=values, rewards=rewards, head=head, metrics=metrics, weights=copied(model))


def scored_packs(
    case: Case, sequences: Sequences, micro_batching: MicroBatching
) -> tuple[Tensor, list[int]]:
    """Return the rewards of a sole rank, and the tokens of each pack that it read for them."""
    model, sizes = value_model(case, join(case.layout)), list[int]()
    run = model._run_forward

    def noted(packs: Sequence[Pack[Any]], read: Reader) -> list[Tensor]:
        sizes.extend(pack.tokens_1S.size(1) for pack in packs)
        return run(packs, read)

    model._run_forward = noted  # type: ignore[method-assign]
    read = model.forward(sequences, micro_batching, at_end=True)
    assert read is not None
    return read[0].sum(dim=1), sizes


def value_model(
    case: Case,
    groups: ParallelGroups,
    optimizer: Mapping[str, Any] | None = None,
    *,
    head_seed: int | None = None,
) -> MegatronEngine:
    """Build a model with a value head on groups of its layout; with an optimizer it learns."""
    made = replace(settings(case, groups, optimizer), head="value")
    return MegatronEngine(
        case.folder,
        made,
        known(case.folder, made),
        updates=None if optimizer is None else optimizer["updates"],
        head_seed=head_seed,
    )


def values_of(model: TrainingEngine, sequences: Sequences) -> Values | None:
    read = model.forward(sequences, CUT)
    return None if read is None else Values(values_BT=read[0])


def export(model: TrainingEngine, folder: Path) -> None:
    """Write a model to a Hugging Face folder, by rank 0."""
    ranks = dist.get_world_size()
    whole = full_sharding(
        model.description, world_size=ranks, holders=[0], dtype="float32", head="value"
    )
    transfer = prepared(model.sharding, whole, 1 << 20, folder.name)
    weights, table = Shards(model.local_tensors()), whole.table(dist.get_rank())
    if not table:
        transfer.run(weights, ExportedModel(folder, {}))
        return
    with exported_model(model.folder, folder, table, dtype="float32") as sink:
        transfer.run(weights, sink)


def refusal(case: Case) -> str:
    """Return why a folder cannot be a reward model."""
    try:
        value_model(case, join(case.layout))
    except ModelError as error:
        return str(error)
    return ""


def evening(cast: Cast, sequences: Sequences) -> Evening:
    """Let each role play alone, then all of them in turns, in one process."""
    # As an engine in the same process has its own.
    others, _ = dist.new_subgroups(group_size=2)
    alone = Played()
    _play(cast, sequences, {"actor": _actor(cast, join(cast.actor.layout))}, alone)
    _play(cast, sequences, {"critic": _critic(cast, join(cast.critic.layout))}, alone)
    reference = policy(cast.reference, join(cast.reference.layout))
    _play(cast, sequences, {"reference": reference}, alone)
    groups_of = cache(partial(ParallelGroups, seed=1, timeout_minutes=10))
    roles = {
        "actor": _actor(cast, groups_of(cast.actor.layout)),
        "critic": _critic(cast, groups_of(cast.critic.layout)),
        "reference": policy(cast.reference, groups_of(cast.reference.layout)),
    }
    made = dist.distributed_c10d._world.pg_map
    before = len(made)
    assert groups_of(replace(cast.actor.layout)) is groups_of(cast.actor.layout)
    together = Played()
    _play(cast, sequences, roles, together)
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total, group=others)
    return Evening(
        alone=alone,
        together=together,
        groups_of_an_equal_layout=len(made) - before,
        sum_of_others=float(total),
    )


def _play(
    cast: Cast, sequences: Sequences, roles: Mapping[str, MegatronEngine], played: Played
) -> None:
    """Ask those roles that are there, in the order of PPO's steps."""
    actor, critic, reference = (roles.get(name) for name in ("actor", "critic", "reference"))
    pairs = zip(cast.actor_course.minibatches, cast.critic_course.minibatches, strict=True)
    for minibatch, critic_minibatch in pairs:
        if reference:
            ours = share(cast.reference, sequences)
            played.ref_logprobs.append(logprobs(reference, ours, CUT))
        if actor:
            played.logprobs.append(logprobs(actor, share(cast.actor, sequences), CUT))
        if critic:
            played.values.append(values_of(critic, share(cast.critic, sequences)))
            loss = cast.critic_course.loss
            critic_metrics = critic.train_step(share(cast.critic, critic_minibatch), CUT, loss)
            played.critic_metrics.append(critic_metrics)
        if actor:
            actor_loss = cast.actor_course.loss
            metrics = actor.train_step(share(cast.actor, minibatch), CUT, actor_loss)
            played.actor_metrics.append(metrics)


def _actor(cast: Cast, groups: ParallelGroups) -> MegatronEngine:
    return policy(cast.actor, groups, cast.actor_course.optimizer)


def _critic(cast: Cast, groups: ParallelGroups) -> MegatronEngine:
    return value_model(cast.critic, groups, cast.critic_course.optimizer, head_seed=1)
