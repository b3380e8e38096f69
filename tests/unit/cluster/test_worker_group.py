"""Where the workers of a run may be, and how an error names those that are silent."""

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError, RayTaskError

from mindrl.cluster import worker_group
from mindrl.cluster.call_limits import CallLimits, Limit
from mindrl.cluster.node_watch import ProcessKey
from mindrl.cluster.ray_calls import RayCalls
from mindrl.cluster.worker_group import (
    WorkerGroup,
    refuse_misplaced,
    traced_ranks,
)
from mindrl.cluster.worker_names import stages_now, start_lines, worker_names
from mindrl.cluster.worker_process import Identity, Reply
from mindrl.errors import ClusterError, WorkerDiedError

EIGHT_ON_TWO_NODES = [(node, device) for node in "ab" for device in "0123"]


def identities(places: list[tuple[str, str | None]]) -> list[Identity]:
    return [
        Identity(
            process=ProcessKey(rank, 0, 0),
            node=f"host-{node}",
            node_id=node,
            device=device,
            address=None,
        )
        for rank, (node, device) in enumerate(places)
    ]


@pytest.mark.parametrize(
    "places",
    [
        EIGHT_ON_TWO_NODES,
        EIGHT_ON_TWO_NODES[:6],
        [("b", "3"), ("b", "1"), ("b", "0"), ("b", "2"), ("a", "1")],
        # Ray does not name CPU slots.
        [("a", None)] * 4 + [("b", None)] * 4,
    ],
)
def test_ranks_that_are_node_by_node_are_taken_as_they_are(
    places: list[tuple[str, str | None]],
) -> None:
    refuse_misplaced(identities(places), 4)


@pytest.mark.parametrize(
    ("places", "rank"),
    [
        # Each rank one place further on: rank 3 is on the next node already.
        (EIGHT_ON_TWO_NODES[1:] + EIGHT_ON_TWO_NODES[:1], 3),
        ([*EIGHT_ON_TWO_NODES[:4], *EIGHT_ON_TWO_NODES[:4]], 4),
        ([("a", "0"), ("a", "1"), ("a", "0"), ("a", "2")], 2),
        ([("a", None)] * 4 + [("b", None)] * 3 + [("a", None)], 7),
    ],
    ids=["shifted", "one node", "one device", "last"],
)
def test_the_first_rank_on_a_wrong_node_or_on_a_peers_device_is_named(
    places: list[tuple[str, str | None]], rank: int
) -> None:
    first = rank - rank % 4
    with pytest.raises(
        ClusterError,
        match=rf"^rl_config\.actor_resource\.npus_per_node=4: ranks {first} to {first + 3} need "
        rf"their .* rank {rank} on node host-{places[rank][0]}, device {places[rank][1]}, ",
    ):
        refuse_misplaced(identities(places), 4)


def test_eight_workers_are_named_with_process_and_node_and_the_rest_is_counted() -> None:
    found = identities([("a", None)] * 20)
    assert worker_names([2, 7], found) == (
        "worker-2 (rank 2, process 2 on host-a), worker-7 (rank 7, process 7 on host-a)"
    )
    many = worker_names(range(20), found)
    assert many.count("worker-") == 8
    assert many.endswith("worker-7 (rank 7, process 7 on host-a), 12 more")
    # Before they have said where they are.
    assert worker_names([3], []) == "worker-3 (rank 3)"


class Call:
    """To a worker that answers at once with a value or an error, or is silent."""

    def __init__(self, answer: object) -> None:
        self.answer = answer


def group_of(
    answers: list[object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WorkerGroup, list[float]]:
    """Return workers that give these answers, None for silence, and the waits that follow."""
    waits: list[float] = []

    def wait(
        calls: list[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        waits.append(timeout)
        answered = [call for call in calls if call.answer is not None][:num_returns]
        time.sleep(0 if len(answered) == num_returns else timeout)
        return answered, []

    def get(calls: Call | list[Call]) -> object:
        if isinstance(calls, list):
            return [*map(get, calls)]
        if isinstance(calls.answer, Exception):
            raise calls.answer
        return calls.answer

    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(worker_group, "_GRACE_SECONDS", 0.01)
    group = object.__new__(WorkerGroup)
    group.name, group.calls = "worker", RayCalls(600)
    group.limits, group.watch = CallLimits(first_seconds=1, least_seconds=600), None
    group.meanwhile = lambda: None
    group.identities = identities([("a", None)] * len(answers))
    group.logs = [folder / f"worker_{rank}.log" for rank in range(len(answers))]
    for log in group.logs:
        log.write_text(f"the end of {log.stem}\n")
    group.handles = [
        SimpleNamespace(call=SimpleNamespace(remote=lambda *_, answer=answer, **__: Call(answer)))
        for answer in answers
    ]
    return group, waits


def test_a_call_waits_for_its_limit_and_no_longer_and_names_who_gave_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, waits = group_of(["fine", None, "fine", None], tmp_path, monkeypatch)
    meanwhile: list[str] = []
    group.meanwhile = lambda: meanwhile.append("something else")
    began = time.monotonic()
    with pytest.raises(WorkerDiedError) as caught:
        group.call_all("update")
    # All waits together last as long as the limit, however busy the machine is.
    assert time.monotonic() - began >= 1
    assert str(caught.value) == (
        "worker-1 (rank 1, process 1 on host-a), worker-3 (rank 3, process 3 on host-a) did not "
        "respond within 1 s (rl_config.worker_call_timeout_seconds)\n"
        f"during: update\nlast lines of {group.logs[1]}:\nthe end of worker_1"
    )
    # For the first answer, for those that arrive with it, and for the other two.
    assert (len(waits), meanwhile) == (3, ["something else"])
    assert waits[2] <= waits[0] <= 1
    assert waits[1] < 0.1


def test_answers_that_are_there_are_taken_at_once_in_the_order_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, waits = group_of([f"answer {rank}" for rank in range(64)], tmp_path, monkeypatch)
    references = {rank: Call(f"answer {rank}") for rank in range(64)}
    limit = Limit(seconds=1, description="1 s")
    assert group.answers(references, limit, "update") == [f"answer {rank}" for rank in range(64)]
    assert len(waits) == 2


def test_the_first_answer_to_separate_calls_ends_a_wait_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = Reply(ticks=0, result="fine", trace=None)
    group, waits = group_of([None, None, fine, fine, None], tmp_path, monkeypatch)
    calls = [group.begin("advance", [(1,)] * 2, first=first) for first in (0, 2)]
    assert group.answered(calls, 0.5) == [1]
    assert calls[1].wait() == ["fine", "fine"]
    # Others that have answered by then are known without a further wait.
    assert waits[:2] == [0.5, 0.0]
    meanwhile: list[str] = []
    group.meanwhile = lambda: meanwhile.append("something else")
    assert group.answered(calls[:1], 0.01) == []
    assert meanwhile == ["something else"]
    calls[0].limit.began -= 60
    with pytest.raises(WorkerDiedError, match=r"^worker-0 .*, worker-1 .* did not respond within"):
        group.answered(calls[:1], 0.01)


def test_a_separate_call_whose_rank_died_is_answered_and_raises_when_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = group_of([None, RayActorError()], tmp_path, monkeypatch)
    group.prefork = None
    calls = [group.begin("advance", [(1,)], first=first) for first in (0, 1)]
    assert group.answered(calls, 0.01) == [1]
    with pytest.raises(WorkerDiedError, match=r"^worker-1 \(rank 1, process 1 on host-a\)"):
        calls[1].wait()


def test_a_rank_that_died_is_named_before_those_that_failed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, died = RayTaskError("call", "", RuntimeError("Connection closed")), RayActorError()
    group, _ = group_of(["fine", failed, "fine", died, failed], tmp_path, monkeypatch)
    group.prefork = None
    monkeypatch.setattr(worker_group, "_GRACE_SECONDS", 1.0)
    with pytest.raises(WorkerDiedError, match=r"^worker-3 \(rank 3, process 3 on host-a\)"):
        group.call_all("update")


def test_a_rank_that_failed_because_it_waited_too_long_names_whom_it_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = RayTaskError("call", "", RuntimeError("Timed out"))
    group, _ = group_of([failed, None], tmp_path, monkeypatch)
    with pytest.raises(WorkerDiedError) as caught:
        group.call_all("update")
    assert str(caught.value).splitlines()[:3] == [
        "worker-0 (rank 0, process 0 on host-a) failed: RuntimeError: Timed out",
        "no response yet from worker-1 (rank 1, process 1 on host-a)",
        "during: update",
    ]


@pytest.mark.parametrize(("count", "traced"), [(1, 1), (16, 16), (17, 16), (4096, 16)])
def test_all_of_a_few_ranks_record_timelines_and_some_of_many(count: int, traced: int) -> None:
    found = sorted(traced_ranks(count))
    assert len(found) == traced
    assert {0, count - 1} <= {*found} <= {*range(count)}
    gaps = [later - sooner for sooner, later in pairwise(found)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1


def test_what_workers_do_while_they_start_is_said_by_what_they_do() -> None:
    stages = {0: "starts the engine", 1: "builds the models", 2: "starts the engine", 3: ""}
    assert stages_now(stages, "worker") == (
        "worker-0 worker-2 starts the engine, worker-1 builds the models, worker-3 waits"
    )
    assert stages_now(dict.fromkeys(range(10), "builds the models"), "rollout_0") == (
        " ".join(f"rollout_0-{rank}" for rank in range(8)) + " and 2 more builds the models"
    )


def test_what_a_start_took_is_said_of_each_worker_or_of_the_slowest_of_many() -> None:
    seconds = [{"builds the models": 1.04, "starts the engine": 0.5 + rank} for rank in range(9)]
    assert [*start_lines(seconds[:2], "worker")] == [
        "worker-0: builds the models 1.0 s, starts the engine 0.5 s",
        "worker-1: builds the models 1.0 s, starts the engine 1.5 s",
    ]
    assert [*start_lines(seconds, "worker")] == [
        "slowest of 9 workers in each stage: builds the models 1.0 s, starts the engine 8.5 s"
    ]
