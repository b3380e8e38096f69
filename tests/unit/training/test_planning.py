"""What a plan knows of each engine: who holds what, in which type, and what training takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.backends import TRAINING_BACKENDS, TrainingBackend
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.description import read_description
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.training.planning import Storage, planning_of

MakeConfig = Callable[..., RunConfig]
FOLDER = str(Path(__file__).parents[3] / "configs/models/Qwen2.5-7B")
MODEL = read_description(FOLDER)
WEIGHTS = 7_615_616_512
"""Of the model."""


def planned(run_config: MakeConfig, **changes: Any) -> RunShardings:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    given = {"rl_config.init_kl_coef": 0.1, "rl_config.actor_resource.num_npus": 4} | given
    return unordered_shardings(run_config(Path(FOLDER), given))


def test_weights_of_one_engine_are_float32_whatever_they_compute_in() -> None:
    found = [planning_of(each).weights_dtype("bfloat16") for each in TRAINING_BACKENDS]
    assert found == ["bfloat16", "float32", "float32"]
    assert {planning_of(each).weights_dtype("float32") for each in TRAINING_BACKENDS} == {"float32"}


@pytest.mark.parametrize("backend", ["archon", "fsdp"])
def test_ranks_share_weights_gradients_and_both_moments_in_float32(
    backend: TrainingBackend,
) -> None:
    planning, layout = planning_of(backend), TrainLayout(dp=4)
    sharding = planning.sharding(MODEL, layout, Storage(dtype="float32"))
    ranks = planning.trained_bytes(sharding, layout, distributed_optimizer=True)
    assert sum(rank.weights for rank in ranks) == 4 * WEIGHTS
    for rank in ranks:
        assert rank.gradients == rank.weights
        assert rank.optimizer == 2 * rank.weights


def test_copies_are_as_many_as_the_runs_of_ranks_that_share() -> None:
    layout, of_pairs = TrainLayout(dp=4), Storage(dtype="float32", fsdp_size=2)
    held = planning_of("archon").sharding(MODEL, layout, of_pairs).held_bytes()
    assert sum(held) == 2 * 4 * WEIGHTS


def test_ranks_that_share_rows_keep_their_order_in_every_other_order() -> None:
    """Of all orders of tp2 cp2 dp2 those that have cp before dp: 3 of 6."""
    own = RankOrder(digits=(("tp", 2), ("cp", 2), ("dp", 2), ("pp", 1)))

    def orders(backend: TrainingBackend) -> list[list[str]]:
        found = planning_of(backend).legal_orders(own, 8)
        return [[name for name, radix in each.digits if radix > 1] for each in found]

    assert sorted(orders("archon")) == [
        ["cp", "dp", "tp"],
        ["cp", "tp", "dp"],
        ["tp", "cp", "dp"],
    ]
    assert len(orders("megatron")) == 6


def test_a_run_has_the_tables_of_the_engine_of_each_role(run_config: MakeConfig) -> None:
    models = planned(
        run_config,
        actor_config__backend="archon:d4",
        ref_config__backend="megatron:d4",
        megatron_training__bf16=True,
    )
    actor, reference = models.training["actor"], models.training["ref"]
    assert (actor.dtype, reference.dtype) == ("float32", "bfloat16")
    assert sum(actor.held_bytes()) == 4 * WEIGHTS
    assert sum(reference.held_bytes()) == 4 * 2 * WEIGHTS
    assert models.plan.train_dtype == "bfloat16"
    alike = planned(run_config, actor_config__backend="archon:d4")
    assert alike.training["actor"] is alike.training["ref"]


def test_a_role_takes_the_order_of_the_actor_only_with_the_actors_engine(
    run_config: MakeConfig,
) -> None:
    sizes = {"actor_config.tensor_model_parallel_size": 2}
    wider = {"generate_config.infer_tensor_parallel_size": 4, "rl_config.init_kl_coef": 0.1}
    devices = {"rl_config.actor_resource.num_npus": 8, "actor_config.backend": "archon:d4t2"}
    config = run_config(Path(FOLDER), sizes | wider | devices)
    alike = unordered_shardings(config).ordered.plan
    assert alike.layouts["actor"].order is not None
    assert alike.layouts["ref"] == alike.layouts["actor"]
    own = {"ref_config.backend": "megatron:d4t2"}
    apart = unordered_shardings(run_config(Path(FOLDER), sizes | wider | devices | own)).ordered
    assert apart.plan.layouts["actor"].order is not None
    assert apart.plan.layouts["ref"].order is None
