"""Orders of steps are laid out so that both sides fit, and can be run."""

import pytest
from proposal_tasks import asked

from mindrl.config.finding import Finding
from mindrl.propose.candidates import Task, refusals
from mindrl.propose.lengths import sampled_groups
from mindrl.propose.orders import PlacedOrder, placed_orders
from mindrl.propose.search import Proposal, search
from mindrl.propose.step_orders import Arrangement, Load

LOAD = Load(groups=sampled_groups(600, 2000, 2048, 8), prompts=32, prompt_tokens=300)


def laid_out(task: Task) -> tuple[Proposal, list[PlacedOrder]]:
    shared = search(task, 1, lambda _: None).proposals[0]
    tried: list[Arrangement] = []
    found = placed_orders(task, shared, LOAD, [2], tried.append)
    assert {each.way for each in found} <= {*tried}
    return shared, found


def said(placed: PlacedOrder) -> list[Finding]:
    return refusals(placed.task, placed.candidate, placed.settings)


@pytest.fixture(scope="module")
def orders() -> tuple[Proposal, list[PlacedOrder]]:
    """Orders of Qwen2.5-7B on 16 devices of 64 GB."""
    return laid_out(asked())


def test_every_order_has_its_devices_layouts_that_fit_and_keys_that_a_run_takes(
    orders: tuple[Proposal, list[PlacedOrder]],
) -> None:
    shared, found = orders
    names = {(each.way.order, each.way.is_apart) for each in found}
    assert names == {
        *(("in_turns", False), ("partial", False), ("in_turns", True)),
        *(("one_step_off", True), ("asynchronous", True)),
    }
    for each in found:
        assert said(each) == []
        training, rollout = each.candidate.training, each.candidate.rollout
        assert training.world_size == each.way.training
        assert rollout.tp * rollout.dp == each.way.rollout
        assert rollout.tp == shared.candidate.rollout.tp
        assert each.training.peak_bytes <= 0.9 * each.task.device.memory_bytes
        assert each.rollout.peak_bytes <= 0.9 * each.task.device.memory_bytes
        if each.way.is_apart:
            assert each.way.training + each.way.rollout == 16
            assert each.config["rl_config.rollout_resource.num_npus"] == each.way.rollout


def test_the_most_useful_comes_first_and_a_long_tail_pays_for_age(
    orders: tuple[Proposal, list[PlacedOrder]],
) -> None:
    _, found = orders
    worth = {(each.way.order, each.way.is_apart): each.worth.useful for each in found}
    assert list(worth.values()) == sorted(worth.values(), reverse=True)
    assert worth["asynchronous", True] > worth["one_step_off", True] > worth["in_turns", True]


@pytest.mark.nightly
def test_a_side_without_room_gets_more_devices() -> None:
    """Of 32B on 32 devices 24 that generate are worth most, but 8 others cannot train it.

    Each weight takes 20 bytes with its gradient, its optimizer and the reference's, 655 GB in all.
    """
    _, found = laid_out(asked("Qwen2.5-32B", devices=32))
    ways = {each.way.order: each.way for each in found if each.way.is_apart}
    assert (ways["one_step_off"].training, ways["one_step_off"].rollout) == (16, 16)
