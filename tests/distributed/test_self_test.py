"""The self-test's trials in two processes: they pass, and each fault shows in its trial."""

import pytest
from forked_workers import ForkedWorkers

from mindrl.platform.device import PLATFORMS
from mindrl.preflight.run_shardings import RunPlan
from mindrl.self_test.plan import make_model, self_test_plan

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    folder = tmp_path_factory.mktemp("self_test")
    make_model(folder)
    return self_test_plan(folder, PLATFORMS["cpu"], 2)


def differences(
    workers: ForkedWorkers, plan: RunPlan, build: str, *methods: str
) -> list[list[float]]:
    group = workers.start(plan, build)
    found = [group.call_all(method) for method in methods]
    group.stop()
    return [[each["max_difference"] for each in answers] for answers in found]


def test_what_two_ranks_are_asked_first_is_right_to_the_bit(
    forked_workers: ForkedWorkers, plan: RunPlan
) -> None:
    build = "mindrl.self_test.worker:TestedWorker"
    found = differences(forked_workers, plan, build, "collectives", "copies", "region")
    assert found == [[0.0, 0.0]] * 3


def test_copies_that_do_not_arrive_show_in_copies_and_in_regions(
    forked_workers: ForkedWorkers, plan: RunPlan
) -> None:
    build = "self_test_probe:copies_nothing"
    copied, region = differences(forked_workers, plan, build, "copies", "region")
    assert min(*copied, *region) > 0


def test_an_exchange_that_reaches_nobody_shows_in_the_collectives(
    forked_workers: ForkedWorkers, plan: RunPlan
) -> None:
    build = "self_test_probe:keeps_to_itself"
    (found,) = differences(forked_workers, plan, build, "collectives")
    # What two ranks send differs by 1024, and by what their own numbers do.
    assert min(found) > 1000
