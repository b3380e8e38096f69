"""Create the source of step data from the configuration, and check a checkpoint's groups."""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, cast

from mindrl.config.halves import steps_ahead
from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError
from mindrl.spool.reader import RecordReader
from mindrl.trainer.engines import SeparateEngines
from mindrl.trainer.source.bounds import PoolBounds
from mindrl.trainer.source.generated import GeneratedGroups
from mindrl.trainer.source.generation import Generation, InTurns
from mindrl.trainer.source.group_filter import GroupFilter
from mindrl.trainer.source.group_ratings import GroupRatings
from mindrl.trainer.source.interface import Answering, Gathered, Source
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.source.replicas import Replicas
from mindrl.trainer.source.spool import SpoolGeneration
from mindrl.trainer.source.stored import StoredGroups, stored_rollouts


def source_of(
    config: RunConfig, answering: Answering, warn: Callable[[str], None]
) -> Source[Gathered]:
    """Return the source of step data for a run."""
    rl, per_step = config.rl_config, answering.per_step
    if rl.debug == "train_only":
        return StoredGroups(stored_rollouts(config))
    pool, in_order = GroupPool(config, answering), rl.step_order == "one_step_off"
    generation: Generation
    # Environments rate conversations themselves.
    ratings = None if rl.blocking or answering.turns is not None else GroupRatings(pool)
    has_rounds = ratings is not None or answering.turns is not None
    if rl.step_order != "in_turns" or (config.is_apart and has_rounds):
        generation = _replicas(config, pool, ratings)
    else:
        round_steps = rl.rollout_round_steps if rl.partial_rollout else None
        generation = InTurns(pool=pool, round_steps=round_steps, ratings=ratings)
    steps_in_flight = {"in_turns": 1.0, "one_step_off": 1.0, "asynchronous": 1.0 + rl.max_staleness}
    times = rl.groups_in_flight if rl.partial_rollout else steps_in_flight[rl.step_order]
    bounds = PoolBounds(
        per_step=per_step,
        in_flight=ceil(times * per_step),
        max_staleness=config.max_staleness,
        last_step=config.megatron_training.train_iters,
        in_order=in_order,
    )
    return _generated(config, pool, bounds, generation, warn)


def complete(config: RunConfig, pool: GroupPool, step: int) -> None:
    """Generate until all responses of a pool are complete, with the weights of a step."""

    def check_interrupt() -> None:
        """Do nothing: an evaluation completes before the run ends."""

    if config.is_apart:
        replicas = _replicas(config, pool)
        replicas.begin(step, check_interrupt)
        replicas.generate(step, all, check_interrupt)
        replicas.stop()
    else:
        InTurns(pool=pool, round_steps=None).generate(step, all, check_interrupt)


def _replicas(config: RunConfig, pool: GroupPool, ratings: GroupRatings | None = None) -> Replicas:
    """Return the replicas on their own devices, each in rounds of its own.

    When one is lost, others complete its responses.
    """
    rl = config.rl_config
    return Replicas(
        cast("SeparateEngines", pool.answering.workers.engines),
        pool,
        round_steps=rl.rollout_round_steps,
        completes=rl.step_order != "asynchronous",
        ratings=ratings,
    )


def spool_source(
    config: RunConfig,
    answering: Answering,
    reader: RecordReader,
    committed: Callable[[], int],
    warn: Callable[[str], None],
) -> GeneratedGroups:
    """Return the source of a train job, whose responses come from rollout jobs.

    `committed` returns the last step that a checkpoint on disk contains.
    """
    pool, ahead = GroupPool(config, answering), steps_ahead(config)
    bounds = PoolBounds(
        per_step=answering.per_step,
        in_flight=(1 + ahead) * answering.per_step,
        max_staleness=ahead,
        last_step=config.megatron_training.train_iters,
        in_order=True,
    )
    generation = SpoolGeneration(config=config, pool=pool, reader=reader, committed=committed)
    return _generated(config, pool, bounds, generation, warn)


def _generated(
    config: RunConfig,
    pool: GroupPool,
    bounds: PoolBounds,
    generation: Generation,
    warn: Callable[[str], None],
) -> GeneratedGroups:
    rl, group_filter = config.rl_config, None
    if rl.filter_groups_enable:
        group_filter = GroupFilter(config, pool.answering, warn)
    return GeneratedGroups(pool, bounds, generation, group_filter, blocking=rl.blocking)


def source_state(config: RunConfig, step: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source's state after a step, from a checkpoint's state.

    Raises:
        CheckpointError: The run could not train on some open groups in time.
    """
    found: Mapping[str, Any] = state.get("source", {})
    groups, most = found.get("groups", ()), config.max_staleness
    # The first steps train on the oldest groups.
    ages = [
        step + 1 + index // config.megatron_training.global_batch_size - group["start_step"]
        for index, group in enumerate(groups)
    ]
    if late := sum(age > most for age in ages):
        raise CheckpointError(
            f"the checkpoint of step {step} has {len(groups)} open groups of responses, {late} of "
            f"which this run would train on more than {most} step(s) after the step that started "
            "them: continue with the rl_config.step_order, rl_config.partial_rollout and "
            "rl_config.max_staleness of the run that wrote it"
        )
    return found
