"""A run is planned once: the driver orders the ranks, each worker asks for what is left."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from checked_runs import ROLLOUT_TP, TRAIN_TP

from mindrl.preflight import memory_plan, run_shardings, shipped
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.programs.compose import composed_config
from mindrl.resharding import plan as reshard
from mindrl.resharding import routes
from mindrl.training import planning

PLANNERS: tuple[tuple[Any, str], ...] = (
    (shipped, "read_description"),
    (planning, "megatron_sharding"),
    (run_shardings, "rollout_sharding"),
    (run_shardings, "choose_orders"),
    (reshard, "cut_into_slices"),
    (reshard, "choose_senders"),
    (routes, "assign_rounds"),
    (memory_plan, "region_bytes"),
)
RUN = "grpo_deepseek_r1_671b"
"""Of 288 ranks."""
CAPACITY = 64 << 30


@contextmanager
def counted() -> Iterator[Callable[[], Counter[str]]]:
    """Count the calls of each planner from here on."""
    with ExitStack() as stack:
        mocks = {
            name: stack.enter_context(patch.object(module, name, wraps=getattr(module, name)))
            for module, name in PLANNERS
        }
        yield lambda: Counter({name: mock.call_count for name, mock in mocks.items()})


@pytest.fixture(scope="module")
def planned() -> RunShardings:
    """The run as its driver plans it."""
    return unordered_shardings(composed_config(RUN, [])).ordered


def test_the_driver_orders_288_ranks_and_plans_no_reshard() -> None:
    with counted() as calls:
        plan = unordered_shardings(composed_config(RUN, [])).ordered.plan
        once = ("read_description", "megatron_sharding", "rollout_sharding", "choose_orders")
        assert +calls() == Counter([*once, "cut_into_slices"])
    assert plan.layouts["actor"].world_size == 288
    assert plan.layouts["actor"] == plan.layouts["ref"]


@pytest.mark.nightly
def test_a_worker_of_288_plans_the_rest_once_whoever_asks_for_it(planned: RunShardings) -> None:
    plan = pickle.loads(pickle.dumps(planned.plan))
    with counted() as calls:
        worker = RunShardings(plan=plan)
        for _ in range(2):
            memory = memory_plan.memory_plan(worker, CAPACITY)
            assert worker.training["actor"] is worker.training["ref"]
            assert worker.reshard.of_rank(0)
            assert memory.world_size == 288
        found = +calls()
    assert found.pop("region_bytes") == 2, "memory is planned by one who asks once"
    once = (
        "megatron_sharding",
        "rollout_sharding",
        "cut_into_slices",
        "choose_senders",
        "assign_rounds",
    )
    assert found == Counter(once)
    assert worker.reshard.digest == planned.reshard.digest


@pytest.mark.nightly
def test_what_is_sent_to_each_worker_is_small(planned: RunShardings) -> None:
    """Sizes, layouts and orders; no tables and no cells."""
    assert planned.reshard.rounds > 0
    assert len(pickle.dumps(planned.plan)) < 64 << 10


def test_roles_of_one_layout_take_one_order_and_without_rank_map_none_is_looked_for() -> None:
    wider = [f"{TRAIN_TP}=2", f"{ROLLOUT_TP}=4"]
    chosen = unordered_shardings(composed_config("grpo_qwen25_7b", wider)).ordered.plan
    assert chosen.layouts["actor"].order is not None
    assert chosen.layouts["actor"] == chosen.layouts["ref"]
    config = composed_config("grpo_qwen25_7b", [*wider, "generate_config.rank_map=default"])
    with counted() as calls:
        plain = unordered_shardings(config).ordered.plan
        assert +calls() == Counter(["read_description"])
    assert plain.layouts["actor"] == plain.layouts["ref"] == config.layout("actor")
