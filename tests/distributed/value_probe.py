"""What the tests of value heads call in prepared processes; see forked_workers.run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training_messages import Case
from training_probe import copied, join, settings, share
from transfer_probe import Shards, prepared
from value_messages import Cast, CriticCourse, Evening, Judged, Played, ValueTrial

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Sequences
from mindrl.checkpoint.export import ExportedModel
from mindrl.errors import ModelError
from mindrl.models.sharding import whole_sharding
from mindrl.training.megatron.actor import TrainedActor
from mindrl.training.megatron.critic import TrainedCritic
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.parallel import GroupsByLayout, ParallelGroups
from mindrl.training.megatron.scoring import ScoringModel
from mindrl.training.megatron.value import ValueModel

CUT = MicroBatching(sequences=3)


def judged(trials: list[ValueTrial], sequences: Sequences) -> list[Judged]:
    """Build each model; returns what it says of this rank's share, and of its updates."""
    return [_judged(trial, sequences) for trial in trials]


def _judged(trial: ValueTrial, sequences: Sequences) -> Judged:
    case = trial.case
    model = ValueModel(case.folder, settings(case, join(case.layout)), head_seed=trial.head_seed)
    ours = share(case, sequences)
    values = model.compute_values(ours, CUT)
    rewards = model.compute_rewards(ours, CUT)
    names = [name for name in model.table if name.endswith("output_layer.weight")]
    head = model.local_tensors()[names[0]].clone() if names else None
    metrics = []
    if trial.course is not None:
        critic = trained(model, trial.course)
        metrics = [
            critic.update(share(case, minibatch), trial.course.micro_batching)
            for minibatch in trial.course.minibatches
        ]
    if trial.export_to is not None:
        export(model, Path(trial.export_to))
    return Judged(values=values, rewards=rewards, head=head, metrics=metrics, weights=copied(model))


def trained(model: ValueModel, course: CriticCourse) -> TrainedCritic:
    return TrainedCritic(model, OptimizerSettings(**course.optimizer), course.loss)


def export(model: ValueModel, folder: Path) -> None:
    """Write a model to a Hugging Face folder, by rank 0."""
    ranks = dist.get_world_size()
    whole = whole_sharding(
        model.description, world_size=ranks, holders=[0], dtype="float32", head="value"
    )
    transfer = prepared(model.sharding, whole, 1 << 20, folder.name)
    table = whole.table(dist.get_rank())
    with ExportedModel(model.folder, folder, table, dtype="float32") as sink:
        transfer.run(Shards(model.local_tensors()), sink)


def refusal(case: Case) -> str:
    """Return why a folder cannot be a reward model."""
    try:
        ValueModel(case.folder, settings(case, join(case.layout)), head_seed=None)
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
    _play(
        cast, sequences, {"reference": _scoring(cast.reference, join(cast.reference.layout))}, alone
    )
    groups = GroupsByLayout(seed=1, timeout_minutes=10)
    roles = {
        "actor": _actor(cast, groups.of(cast.actor.layout)),
        "critic": _critic(cast, groups.of(cast.critic.layout)),
        "reference": _scoring(cast.reference, groups.of(cast.reference.layout)),
    }
    made = dist.distributed_c10d._world.pg_map
    before = len(made)
    assert groups.of(replace(cast.actor.layout)) is groups.of(cast.actor.layout)
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


def _play(cast: Cast, sequences: Sequences, roles: Mapping[str, Any], played: Played) -> None:
    """Ask those roles that are there, in the order of PPO's steps."""
    actor, critic, reference = (roles.get(name) for name in ("actor", "critic", "reference"))
    pairs = zip(cast.actor_course.minibatches, cast.critic_course.minibatches, strict=True)
    for minibatch, critic_minibatch in pairs:
        if reference:
            scored = reference.compute_logprobs(share(cast.reference, sequences), CUT)
            played.ref_logprobs.append(scored)
        if actor:
            ours = share(cast.actor, sequences)
            played.logprobs.append(actor.model.compute_logprobs(ours, CUT))
        if critic:
            ours = share(cast.critic, sequences)
            played.values.append(critic.model.compute_values(ours, CUT))
            ours = share(cast.critic, critic_minibatch)
            played.critic_metrics.append(critic.update(ours, CUT))
        if actor:
            played.actor_metrics.append(actor.update(share(cast.actor, minibatch), CUT))


def _actor(cast: Cast, groups: ParallelGroups) -> TrainedActor:
    course = cast.actor_course
    optimizer = OptimizerSettings(**course.optimizer)
    return TrainedActor(_scoring(cast.actor, groups), optimizer, course.loss)


def _critic(cast: Cast, groups: ParallelGroups) -> TrainedCritic:
    model = ValueModel(cast.critic.folder, settings(cast.critic, groups), head_seed=1)
    return trained(model, cast.critic_course)


def _scoring(case: Case, groups: ParallelGroups) -> ScoringModel:
    return ScoringModel(case.folder, settings(case, groups), temperature=case.temperature)
