"""A train job and a rollout job over one spool, with roles that answer from memory."""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from memory_roles import (
    PROMPTS,
    ROLLOUT_LOGPROB,
    MemoryRoles,
    config,
    data,
    lines,
    rewards,
    run_log,
)

from mindrl.config.changed import with_value
from mindrl.config.finding import Finding
from mindrl.config.halves import published_version, steps_ahead
from mindrl.config.run import RunConfig
from mindrl.config.spool import SpoolConfig
from mindrl.config.spool_rules import spool_findings
from mindrl.config.validate import findings
from mindrl.errors import LogprobGapError, OutputError, SpoolError, StopRequestedError
from mindrl.spool.duties import Duties
from mindrl.spool.folder import Spool, SpoolLimits, SpoolProgress
from mindrl.spool.reader import RecordReader
from mindrl.spool.records import PromptRange
from mindrl.spool.requests import SpoolRequest
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.rollout_files import unpacked
from mindrl.trainer.source.choice import spool_source
from mindrl.trainer.source.generated import GeneratedGroups
from mindrl.trainer.spool_rollouts import SpoolRollouts

STEPS = 4
LIMITS = SpoolLimits(poll_seconds=0.01)


def nothing() -> None:
    """Do nothing."""


def of_job(job: str, **changes: object) -> RunConfig:
    spool = SpoolConfig(
        folder="there",
        job=job,
        publish_every=changes.pop("publish_every", 1),
        prompts_per_record=changes.pop("prompts_per_record", None),
    )
    return with_value(config(**{"train_iters": STEPS, **changes}), "spool_config", spool)


class SpoolRoles(MemoryRoles):
    """Roles whose engines take weights from folders."""

    def __init__(self) -> None:
        super().__init__(gap=0.01)
        self.loaded: list[int] = []
        self.rows_read: list[list[list[int]]] = []
        self.stale_by = 0.0

    def export(self, role: str, folder: Path, record: object) -> None:
        """Write how often has been learned."""
        del record
        if folder.name == "model":
            return
        assert role == "actor"
        folder.mkdir()
        (folder / "model.safetensors").write_text(str(self.calls.count("update")))

    def load_weights(self, folder: Path, version: int) -> None:
        assert (folder / "model.safetensors").exists()
        self.loaded.append(version)

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Answer for two engines, the second of which is off from its second load on."""
        assert temperature == 1.0
        self.rows_read.append([[*row] for row in rows])
        off = self.stale_by if len(self.loaded) > 1 else 0.0
        return [[ROLLOUT_LOGPROB - off * engine for _ in rows] for engine in range(2)]


def trainer_of(root: Path, chosen: RunConfig) -> tuple[PolicyTrainer, SpoolRoles]:
    roles = SpoolRoles()
    log = run_log(root, STEPS)
    return PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1), roles


def groups_of(
    trainer: PolicyTrainer, spool: Spool, committed: Callable[[], int] = lambda: 0
) -> GeneratedGroups:
    notify = trainer.run_log.warn
    reader = RecordReader(spool=spool, leases=spool.leases("the train job"), notify=notify)
    return spool_source(trainer.config, trainer.answering, reader, committed, notify)


def rollouts_of(root: Path, spool: Spool, chosen: RunConfig) -> tuple[SpoolRollouts, SpoolRoles]:
    trainer, roles = trainer_of(root, chosen)
    duties = Duties(spool=spool, leases=spool.leases("a rollout job"))
    written = Counter[str]()
    return SpoolRollouts(
        duties=duties, trainer=trainer, notify=lambda _: None, records=written
    ), roles


def test_both_jobs_go_through_all_steps_and_a_response_is_as_old_as_its_weights(
    tmp_path: Path,
) -> None:
    spool, changes = Spool(tmp_path / "spool", LIMITS), {"prompts_per_record": 1}
    trainer, learning = trainer_of(tmp_path / "train", of_job("train", **changes))
    trainer.source = groups_of(trainer, spool)
    loop, drawing = rollouts_of(tmp_path / "rollout", spool, of_job("rollout", **changes))
    other = Thread(target=loop.run, args=(nothing,))
    other.start()
    trainer.run()
    spool.note(SpoolProgress(done=True))
    other.join()
    assert "generate" not in learning.calls
    assert "score" not in learning.calls
    assert set(drawing.calls) == {"generate", "score", "flush"}
    # Two steps with the first weights, for the train job may be one behind.
    assert drawing.loaded == [0, 1, 2]
    # The steps that requested them.
    assert [step for _, _, step in drawing.asked] == [1, 1, 1, 1, 2, 2, 3, 3]
    assert loop.records == {"written": 8}
    rows = lines(tmp_path / "train/metrics.jsonl")
    assert [row["staleness/max"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    # Step 1 is judged by its own tokens. Those of step 2 have the weights that step 1 was judged
    # with, the others the weights that the rollout job compares when it loads them.
    assert [row.get("logprob_gap/probe_tokens") for row in rows] == [None, None, 8, 8]
    judged = [row["logprob_gap/mean"] for row in rows if "logprob_gap/mean" in row]
    assert judged == pytest.approx([0.01] * 3)
    assert "drift/mean" in rows[1]
    drawn = lines(tmp_path / "rollout/metrics.jsonl")
    assert drawn[-1]["logprob_gap/mean"] == pytest.approx(0.01)
    # Of four responses of two tokens behind two of a prompt: the first token of one, the second of
    # the next.
    assert [len(row) for row in drawing.rows_read[0]] == [3, 4, 3, 4]


@pytest.mark.parametrize("stale_by", [0.5, math.nan])
def test_an_engine_that_keeps_old_weights_ends_the_train_job(
    stale_by: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "spool", LIMITS)
    trainer, _ = trainer_of(tmp_path / "train", of_job("train"))
    trainer.checks.logprob_gap_steps = 2
    trainer.source = groups_of(trainer, spool)
    loop, drawing = rollouts_of(tmp_path / "rollout", spool, of_job("rollout"))
    drawing.stale_by = stale_by
    other = Thread(target=loop.run, args=(nothing,))
    other.start()
    with pytest.raises(LogprobGapError, match=r"^step 4: .*for 2 step\(s\) in a row"):
        trainer.run()
    spool.note(SpoolProgress(done=True))
    other.join()
    warned = [record.message for record in caplog.records if "log-probs" in record.message]
    assert [message.split(":")[0] for message in warned] == ["step 3"]


def test_the_weights_of_a_step_are_as_old_as_the_bound_allows() -> None:
    for staleness, every, versions in (
        (0, 1, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (2, 1, [0, 0, 0, 1, 2, 3]),
        (1, 2, [0, 0, 2, 2, 4, 4]),
        (3, 2, [0, 0, 0, 0, 2, 2]),
    ):
        chosen = of_job("train", max_staleness=staleness, publish_every=every)
        ahead = steps_ahead(chosen)
        found = [published_version(chosen, max(1, step - ahead)) for step in range(1, 100)]
        assert found[:6] == versions
        assert max(step - 1 - each for step, each in enumerate(found, 1)) == staleness


def test_records_hold_the_parts_of_a_step_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", LIMITS)
    chosen = of_job("rollout", prompts_per_record=1)
    loop, roles = rollouts_of(tmp_path / "rollout", spool, chosen)
    spool.weights.publish(0, lambda folder: roles.export("actor", folder, {}))
    for part in range(2):
        prompts = PromptRange(part, part + 1)
        spool.requests.put(
            SpoolRequest(prompts=prompts, step=1, step_first=0, part=part, version=0)
        )
    loop.run(lambda: spool.send("drain") if loop.records["written"] == 2 else None)
    first, second = (spool.records.read(prompts) for prompts in spool.records.answered())
    order = [PROMPTS[index].uid for index in loop.trainer.order.indices(0, 2)]
    assert first.ids == ((order[0], 0), (order[0], 1))
    assert second.ids == ((order[1], 0), (order[1], 1))
    batch = unpacked(second.content)
    assert batch.rewarded.responses == ["20 30", "20 31"]
    assert batch.rewarded.scores.rewards == (0.0, 1.0)
    assert batch.prompts[0].uid == order[1]


def test_weights_are_tried_again_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "spool", LIMITS)
    trainer, roles = trainer_of(tmp_path / "train", of_job("train"))
    groups, export, tries = groups_of(trainer, spool), roles.export, []

    def full(role: str, folder: Path, record: object) -> None:
        tries.append(folder)
        if len(tries) < 4:
            raise OutputError("the model could not be exported: No space left on device")
        export(role, folder, record)

    monkeypatch.setattr(roles, "export", full)
    assert groups.trained(1).keys() == {"seconds/publish"}
    assert (len(tries), spool.weights.versions()) == (4, [1])
    (told,) = (record.message for record in caplog.records)
    assert told.endswith("No space left on device; this job tries again until it can")
    tries.clear()
    spool.send("stop")
    with pytest.raises(StopRequestedError):
        groups.trained(2)


def test_what_a_checkpoint_holds_is_forgotten_and_weights_that_are_gone_are_named(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path / "spool", LIMITS)
    trainer, _ = trainer_of(tmp_path / "train", of_job("train"))
    saved = 0
    trainer.source = groups_of(trainer, spool, lambda: saved)
    loop, _ = rollouts_of(tmp_path / "rollout", spool, of_job("rollout"))
    other = Thread(target=loop.run, args=(nothing,))
    other.start()
    try:
        for step in (1, 2, 3):
            trainer.recorded_step(step)
        assert [each.step for each in spool.requests.all()] == [1, 1, 2, 3]
        saved, earlier = 3, trainer.source.state(2)
        trainer.recorded_step(4)
    finally:
        spool.send("drain")
        other.join()
    # Step 4 may be repeated; its responses have the weights of step 2.
    assert [each.step for each in spool.requests.all()] == [3]
    assert [each.first for each in spool.records.answered()] == [6]
    assert spool.weights.versions() == [2, 3, 4]
    assert spool.progress().confirmed == 3
    state = trainer.source.state(3)
    again = groups_of(trainer, spool)
    again.load_state(3, state)
    shutil.rmtree(spool.requests.root)
    spool.requests.root.mkdir()
    with pytest.raises(SpoolError, match=r"has no request for prompt 6 in the order of the data"):
        again.load_state(3, state)
    # The group that step 2 left open has old weights: it cannot be generated again.
    with pytest.raises(SpoolError, match=r"restore the checkpoint of step 3, or start a new run"):
        again.load_state(2, earlier)


def test_what_does_not_go_with_two_jobs_is_named() -> None:
    def found(job: str, **changes: object) -> list[Finding]:
        return [*spool_findings(of_job(job, **{"save_interval": 1, **changes}))]

    assert [*map(str, found("train"))] == []
    (one,) = found("train", publish_every=3, max_staleness=1)
    assert str(one).startswith("spool_config.publish_every=3 must be at most rl_config.max_stale")
    assert one.legal == (2,)
    (one,) = found("rollout", partial_rollout=True)
    assert str(one).startswith("rl_config.partial_rollout=true must be false: a rollout job")
    (one,) = found("train", on_save_failure="skip")
    assert str(one).startswith("megatron_training.on_save_failure=skip is not supported")
    (one,) = found("train", save_interval=0)
    assert str(one).startswith("megatron_training.save_interval=0 must be 1 or more: records stay")
    lone = with_value(of_job("train", save_interval=1), "spool_config.job", None)
    assert [each.field for each in findings(lone) if each in spool_findings(lone)] == [
        "spool_config.folder"
    ]
