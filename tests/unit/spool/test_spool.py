"""The parts of a spool, one by one: agreement, leases, limits, weights, signals."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.observability.holder import Holder, this_process
from mindrl.spool.duties import Duties
from mindrl.spool.files import forget_building, sealed, unsealed, wait_for_room, write_new
from mindrl.spool.folder import Spool, SpoolLimits, SpoolProgress
from mindrl.spool.header import FORMAT
from mindrl.spool.leases import Leases
from mindrl.spool.reader import RecordReader
from mindrl.spool.records import PromptRange, Record
from mindrl.spool.requests import SpoolRequest

OURS = {"megatron_training.seed": 1, "model": "0a1b", "rl_config.max_staleness": 1}
IDS = ((3, 0), (3, 1))
FIRST = SpoolRequest(prompts=PromptRange(0, 1), step=1, step_first=0, part=0, version=0)
SECOND = replace(FIRST, prompts=PromptRange(1, 2), part=1)
THIRD = replace(FIRST, prompts=PromptRange(2, 4), step=2, step_first=2)
GONE = replace(this_process("a rollout job"), pid=2**22 - 1)
ELSEWHERE = Holder(host="other 1", pid=1, started=0.0, what="a rollout job")


def spool(root: Path, **limits: float) -> Spool:
    return Spool(root, SpoolLimits(**{"lease_seconds": 60.0, "poll_seconds": 0.01, **limits}))


def published(found: Spool, version: int, content: bytes = b"weights") -> str:
    def export(folder: Path) -> None:
        folder.mkdir()
        (folder / "model").write_bytes(content)

    return found.weights.publish(version, export).name


def record(prompts: PromptRange, weights: str, ids: tuple[tuple[int, int], ...] = IDS) -> Record:
    return Record(prompts=prompts, weights=weights, ids=ids, content=b"two responses")


def reader(found: Spool, told: list[str], **how: bool) -> RecordReader:
    leases = found.leases("the train job")
    return RecordReader(spool=found, leases=leases, notify=told.append, **how)


def test_weights_with_a_folder_are_published_and_checked_whole(tmp_path: Path) -> None:
    def export(folder: Path) -> None:
        (folder / "adapter").mkdir(parents=True)
        (folder / "model").write_bytes(b"weights")
        (folder / "adapter" / "model").write_bytes(b"factors")

    found = spool(tmp_path).weights.publish(3, export)
    assert [*found.files] == ["adapter/model", "model"]
    found.verify()
    (found.folder / "adapter" / "model").write_bytes(b"others")
    with pytest.raises(SpoolError, match="adapter/model is damaged"):
        found.verify()


def test_a_job_of_another_model_or_version_is_refused_in_words(tmp_path: Path) -> None:
    found = spool(tmp_path)
    found.agree(OURS)
    found.agree(dict(reversed(OURS.items())))
    with pytest.raises(SpoolError) as caught:
        found.agree({**OURS, "model": "ffff", "rl_config.max_staleness": 2})
    first, *others = str(caught.value).splitlines()
    assert first == f"{tmp_path} is the spool of other jobs:"
    assert others == [
        ' model is "ffff" here, but the spool was started with "0a1b"',
        " rl_config.max_staleness is 2 here, but the spool was started with 1",
    ]
    path = tmp_path / "spool.json"
    newer = {**json.loads(unsealed(path)), "format": FORMAT + 1, "prefetch": 3}
    path.write_bytes(sealed(json.dumps(newer).encode()))
    with pytest.raises(SpoolError, match=r"format is 2 here, .* with 3\n prefetch is none here"):
        found.agree(OURS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpoolError, match=r"spool.json is damaged"):
        found.agree(OURS)


@pytest.mark.parametrize("has_first", [False, True])
def test_a_section_that_one_job_alone_has_is_no_other_version(
    has_first: bool, tmp_path: Path
) -> None:
    jobs = [OURS, {**OURS, "environment_config.agent": "agent.py:play"}]
    first, second = reversed(jobs) if has_first else jobs
    found = spool(tmp_path)
    found.agree(first)
    ours, theirs = ("none", '"agent.py:play"')[:: 1 if has_first else -1]
    with pytest.raises(SpoolError) as caught:
        found.agree(second)
    assert str(caught.value).splitlines()[1:] == [
        f" environment_config.agent is {ours} here, but the spool was started with {theirs}"
    ]


def test_fingerprints_of_a_spool_are_compared_where_both_jobs_have_them(tmp_path: Path) -> None:
    found, key = spool(tmp_path), "content of rl_config.verifier_function"
    found.agree({**OURS, key: ["ab"]})
    found.agree(OURS)
    with pytest.raises(
        SpoolError, match=f'{key} is .*"cd".* here, but the spool was started with .*"ab"'
    ):
        found.agree({**OURS, key: ["cd"]})


def test_a_lease_is_taken_from_the_dead_alone(tmp_path: Path) -> None:
    leases = Leases(tmp_path, 0.1, this_process("a rollout job"))
    for name, holder in {"living": this_process("another"), "gone": GONE, "far": ELSEWHERE}.items():
        assert Leases(tmp_path, 0.1, holder).take(name) is None
    assert leases.take("gone") is None
    assert leases.holder_of("gone") == leases.holder
    first = leases.take("far")
    assert first == ELSEWHERE
    assert str(first) == "a rollout job, process 1 on other"
    # Only what is renewed lives, whatever the clocks of other machines say.
    os.utime(tmp_path / "far", (0, 0))
    assert leases.take("far") == ELSEWHERE
    time.sleep(0.12)
    assert [each.what for each in leases.living("f")] == []
    assert leases.take("far") is None
    again = Leases(tmp_path, 60.0, this_process("a third"))
    assert again.take("living") == this_process("another")
    with leases:
        time.sleep(0.1)
    assert {path.name for path in tmp_path.iterdir()} == {"living"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": "other 1"}', b"\xff"])
def test_a_damaged_lease_expires_and_is_reported_once(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leases = Leases(tmp_path, 60.0, this_process("a rollout job"))
    path = tmp_path / "step"
    path.write_bytes(content)
    other = leases.take("step")
    assert other is not None
    assert [str(each) for each in leases.living("s")] == [str(other)]
    leases.seconds = 0.1
    assert leases.take_or_wait("step") is None
    assert leases.holder_of("step") == leases.holder
    assert capsys.readouterr().err.count(f"{path} is damaged") == 1


def test_a_holder_makes_its_damaged_lease_again(tmp_path: Path) -> None:
    others = Leases(tmp_path, 10.0, ELSEWHERE)
    with Leases(tmp_path, 0.1, this_process("a rollout job")) as leases:
        assert leases.take("step") is None
        (tmp_path / "step").write_bytes(b"")
        deadline = time.monotonic() + 20
        while others.holder_of("step") != leases.holder:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [*tmp_path.iterdir()] == []


def test_a_job_of_another_machine_is_watched_before_it_is_refused_or_replaced(
    tmp_path: Path,
) -> None:
    leases = Leases(tmp_path, 1.0, this_process("the train job"))
    assert Leases(tmp_path, 1.0, ELSEWHERE).take("train") is None
    assert leases.take_or_wait("train") is None
    with Leases(tmp_path, 1.0, ELSEWHERE) as living:
        assert living.take("rollout") is None
        assert leases.take_or_wait("rollout") == ELSEWHERE


def test_a_lease_that_another_was_faster_to_take_stays_its_own(tmp_path: Path) -> None:
    """Both see that it is dead; the slower one finds a fresh lease where the dead one was."""
    slow, fast = (Leases(tmp_path, 0.1, this_process(what)) for what in ("slow", "fast"))
    assert Leases(tmp_path, 0.1, GONE).take("step") is None
    assert fast.take("step") is None
    slow._bury(tmp_path / "step", GONE)
    assert slow.holder_of("step") == fast.holder
    assert slow.take("step") == fast.holder


def test_a_record_is_there_once_and_whole(tmp_path: Path) -> None:
    records, prompts, others = spool(tmp_path).records, PromptRange(12, 16), PromptRange(12, 15)
    assert records.put(record(prompts, "v1"))
    assert not records.put(record(prompts, "v2"))
    assert records.read(prompts) == record(prompts, "v1")
    name = "prompts-00000012-00000016"
    assert records.nbytes() == (records.root / name).stat().st_size
    (records.root / name).rename(records.root / str(others))
    with pytest.raises(SpoolError, match=rf"-00000015 contains the record of {name}"):
        records.read(others)
    left = records.root / f".{name}.0.building"
    left.write_bytes(b"half")
    forget_building(records.root)
    assert left.exists(), "its writer may be at it"
    os.utime(left, (0, 0))
    records.forget(14)
    assert [path.name for path in records.root.iterdir()] == [str(others)]
    records.forget(15)
    assert records.answered() == []


def test_a_request_is_replaced_with_its_record_and_a_damaged_one_is_sent_again(
    tmp_path: Path,
) -> None:
    found, told = spool(tmp_path), list[str]()
    sender = reader(found, told)
    for request in (FIRST, THIRD, SECOND):
        sender.send(request, lambda: None)
    assert found.requests.all() == [FIRST, SECOND, THIRD]
    assert not found.requests.put(FIRST)
    for request in (FIRST, SECOND):
        found.records.put(record(request.prompts, "v0"))
    # The next step asks again, for responses of newer weights.
    again = replace(SECOND, step=2, step_first=1, part=0, version=1)
    sender.send(FIRST, lambda: None)
    sender.send(again, lambda: None)
    assert found.requests.all() == [FIRST, again, THIRD]
    assert found.records.answered() == [FIRST.prompts]
    path = found.requests.root / str(THIRD.prompts)
    path.write_bytes(path.read_bytes()[:-1])
    assert found.requests.all() == [FIRST, again]
    sender.send(THIRD, lambda: None)
    found.requests.forget(2)
    assert found.requests.all() == [THIRD]


def test_weights_are_there_with_their_marker_and_equal_ones_are_not_replaced(
    tmp_path: Path,
) -> None:
    found = spool(tmp_path).weights
    first = published(spool(tmp_path), 4)
    (found.root / ".v00000005.building").mkdir()
    assert found.versions() == [4]
    assert found.find(5) is None
    assert published(spool(tmp_path), 4) == first
    other = published(spool(tmp_path), 4, b"others")
    assert other != first
    assert {path.name for path in found.root.iterdir()} == {
        *(other, "v00000004.json", ".v00000005.building")
    }
    weights = found.find(4)
    assert weights is not None
    weights.verify()
    (weights.folder / "model").write_bytes(b"Others")
    with pytest.raises(SpoolError, match=r"model is damaged"):
        weights.verify()
    published(spool(tmp_path), 6)
    found.forget(6)
    assert found.versions() == [6]
    assert len([*found.root.iterdir()]) == 2


def test_what_other_weights_drew_is_set_aside(tmp_path: Path) -> None:
    """A train job that was killed has learned other weights of the same number since."""
    found, told = spool(tmp_path), list[str]()
    drawn, ours = published(found, 0, b"before"), published(found, 0)
    found.records.put(record(FIRST.prompts, drawn))
    with pytest.raises(StopRequestedError, match=r"step 1 in .* is incomplete"):
        reader(found, told, waits=False).take(FIRST, IDS, lambda: None)
    (line,) = told
    why = f"prompts-00000000-00000001 was generated with weights {drawn} instead of {ours};"
    assert line.startswith(why)
    found.records.put(record(FIRST.prompts, ours))
    assert reader(found, told).take(FIRST, IDS, lambda: None).ids == IDS


def test_other_responses_than_the_trainers_are_refused(tmp_path: Path) -> None:
    found = spool(tmp_path)
    with pytest.raises(SpoolError, match=r"no weights of step 0, which generate the responses"):
        reader(found, []).take(FIRST, IDS, lambda: None)
    weights = published(found, 0)
    for request, ids in ((FIRST, ((3, 0), (3, 0))), (SECOND, ((3, 0), (4, 0)))):
        found.records.put(record(request.prompts, weights, ids))
    with pytest.raises(SpoolError, match="has 2 responses, 1 of them different; 1 of the 2 that"):
        reader(found, []).take(FIRST, IDS, lambda: None)
    with pytest.raises(SpoolError, match="has 2 responses, 2 of them different; 1 of the 2 that"):
        reader(found, []).take(SECOND, IDS, lambda: None)


def test_a_train_job_reports_missing_rollout_jobs_once_and_obeys_signals(tmp_path: Path) -> None:
    found, told = spool(tmp_path), list[str]()
    published(found, 0)
    looks = iter(range(5))

    def check_interrupt() -> None:
        if next(looks) == 2:
            found.send("stop")

    reader_of_job = reader(found, told)
    with pytest.raises(StopRequestedError, match=r"stopped by .*signals/stop"):
        reader_of_job.take(FIRST, IDS, check_interrupt)
    assert len(told) == 1
    assert "start one with mindrl job rollout" in told[0]
    found.start()
    found.send("drain")
    with pytest.raises(StopRequestedError, match=r"step 1 in .* is incomplete"):
        reader_of_job.take(FIRST, IDS, lambda: None)


def test_duties_end_where_weights_are_missing_or_the_limit_is_reached(tmp_path: Path) -> None:
    found = spool(tmp_path, max_bytes=1)
    duties = Duties(spool=found, leases=found.leases("a rollout job"))
    assert duties.take() is None
    alone = f"; {found.root} has no running train job: start one with mindrl job train"
    assert duties.why_none == f"waits for requests of the train job{alone}"
    for request in (FIRST, SECOND, THIRD):
        found.requests.put(request)
    assert duties.take() is None
    waits = "step 1 waits for the weights of step 0"
    assert duties.why_none == f"{waits}{alone}"
    assert found.leases("the train job").take("train") is None
    assert duties.take() is None
    assert duties.why_none == waits
    name = published(found, 0)
    found.note(SpoolProgress(gathering=1, awaited=2))
    first, second = duties.take(), duties.take()
    assert first is not None
    assert second is not None
    assert (first.request, second.request) == (FIRST, SECOND)
    assert duties.take() is not None, "there are no records yet"
    duties.leases.give_back(str(THIRD.prompts))
    others = replace(duties, leases=Leases(duties.leases.root, 60.0, ELSEWHERE))
    for duty in (first, second):
        found.records.put(record(duty.request.prompts, name))
        duties.finish(duty)
    assert others.take() is None
    assert others.why_none.startswith("step 2 waits: the records")
    # What the trainer waits for is drawn all the same.
    found.note(SpoolProgress(gathering=2, awaited=4))
    third = others.take()
    assert third is not None
    assert third.request == THIRD
    assert third.weights.name == name
    # A checkpoint contains all that the other requests answer.
    found.records.forget(4)
    found.note(SpoolProgress(gathering=3, awaited=4, confirmed=2, trained=4))
    assert others.take() is None
    assert others.why_none == "waits for requests of the train job"


def test_any_other_error_of_a_disk_is_not_waited_for(tmp_path: Path) -> None:
    def write() -> bool:
        return write_new(tmp_path / "none/file", b"")

    with pytest.raises(FileNotFoundError):
        wait_for_room(write, pytest.fail, pytest.fail)
