"""When checkpoints are begun and committed, which stay, and how a trainer goes on from one."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from memory_roles import PROMPTS, MemoryRoles, config, data, rewards, run_log

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.checkpoint.commits import Commits, SavedFiles, WrittenFile, write_synced
from mindrl.errors import (
    CallbackError,
    OutputError,
    SkippedUpdatesError,
    StopRequestedError,
    WorkerDiedError,
)
from mindrl.launch.callbacks import Callbacks, StepView
from mindrl.rewards.scores import Scores
from mindrl.trainer.policy_trainer import PolicyTrainer


def build(
    root: Path, roles: MemoryRoles, test: Sequence[Prompt] = (), **changes: object
) -> PolicyTrainer:
    settings = config(**{"train_iters": 5, "save_interval": 2, **changes})
    log = run_log(root, 5)
    return PolicyTrainer(settings, data(test), roles, rewards(roles), log, max_logprob_gap=None)


def commits(root: Path) -> Commits:
    return Commits(root / "checkpoints")


def lines(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


def test_a_checkpoint_is_written_in_the_step_behind_it_and_one_at_the_end(tmp_path: Path) -> None:
    build(tmp_path, MemoryRoles()).run()
    assert commits(tmp_path).steps() == [5, 4]
    written = [line["step"] for line in lines(tmp_path) if "seconds/checkpoint_write" in line]
    assert written == [3, 5]
    newest = commits(tmp_path).read(5)
    assert newest.state()["updates"] == {"actor": 7}
    assert newest.state()["config"]["megatron_training.save_interval"] == 2
    assert newest.state()["summary"]["steps"] == 5


@pytest.mark.parametrize(
    ("last", "every", "kept"),
    [(1, 0, {9}), (2, 0, {9, 8}), (1, 4, {9, 8, 4}), (3, 5, {9, 8, 6, 5})],
)
def test_the_newest_stay_and_multiples_of_a_step(
    last: int, every: int, kept: set[int], tmp_path: Path
) -> None:
    trainer = build(tmp_path, MemoryRoles(), keep_last=last, keep_every=every)
    assert trainer.checkpoints.kept([9, 8, 6, 5, 4, 2]) == kept


class Learner(MemoryRoles):
    """Answers the held-out prompt right behind steps 2, 4 and 6, of which 4 has two of two."""

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        scores, step = super().score(responses, answers), len(self.minibatches) // 2
        right = tuple(float(place < {2: 1, 4: 2, 6: 1}.get(step, 0)) for place in (0, 1))
        greedy = len(responses) == 2
        return replace(scores, rewards=right, components={"exact": right}) if greedy else scores


@pytest.mark.parametrize(("best", "kept"), [(True, [9, 8, 4]), (False, [9, 8])])
def test_the_checkpoint_behind_the_best_evaluation_stays(
    best: bool, kept: list[int], tmp_path: Path
) -> None:
    keys = {"train_iters": 9, "test_freq": 2, "keep_best": best, "test": PROMPTS[:2]}
    trainer = build(tmp_path, Learner(), **keys)
    trainer.run()
    assert commits(tmp_path).steps() == kept
    found = commits(tmp_path).read(8).state()["best"]
    assert found == ([4, 1.0] if best else None)
    again = build(tmp_path, Learner(), **keys)
    again.resume(8, {"best": found})
    assert again.checkpoints.kept([9, 8, 4]) == {*kept}


def test_the_best_is_chosen_anew_where_the_best_so_far_is_not_there(tmp_path: Path) -> None:
    trainer = build(tmp_path, MemoryRoles(), keep_best=True)
    trainer.resume(8, {"best": [4, 0.9]})
    checkpoints = trainer.checkpoints
    for step, accuracy in ((10, 0.5), (12, 0.5), (14, None), (16, 0.6)):
        checkpoints.begin(step, {}, accuracy)
        checkpoints.finish()
    assert commits(tmp_path).steps() == [16, 14]
    assert checkpoints.best == (16, 0.6)
    checkpoints.begin(18, {}, 0.1)
    # The checkpoint says what is the best once it is there.
    assert checkpoints.pending is not None
    assert checkpoints.pending[1] == {"best": (16, 0.6)}


def test_a_run_that_is_stopped_leaves_the_state_behind_its_last_whole_step(tmp_path: Path) -> None:
    trainer = build(tmp_path, MemoryRoles())

    def check_interrupt() -> None:
        if trainer.run_log.summary.steps == 3:
            raise StopRequestedError("stopped by SIGTERM")

    with pytest.raises(StopRequestedError):
        trainer.run(check_interrupt)
    assert commits(tmp_path).steps() == [3, 2]


def test_where_a_callback_raises_its_step_is_written_whole_saved_and_exported(
    tmp_path: Path,
) -> None:
    def judge(view: StepView) -> None:
        if view.step == 3:
            raise ZeroDivisionError("by the callback")

    callbacks, roles = Callbacks([judge]), MemoryRoles()
    trainer = build(tmp_path, roles)
    trainer.run_log.trackers = [callbacks, *trainer.run_log.trackers]
    with pytest.raises(CallbackError, match="ZeroDivisionError after step 3") as caught:
        trainer.run(callbacks.check_interrupt)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert commits(tmp_path).steps() == [3, 2]
    assert (roles.records[-1], trainer.run_log.close()["model_step"]) == ({"step": 3}, 3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_worker_that_dies_while_a_stopped_run_is_saved_leaves_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise WorkerDiedError("worker-1 died")

    monkeypatch.setattr(MemoryRoles, "export", die)
    trainer = build(tmp_path, MemoryRoles())

    def check_interrupt() -> None:
        if trainer.run_log.summary.steps == 1:
            raise StopRequestedError("stopped by SIGTERM")

    with pytest.raises(StopRequestedError) as caught:
        trainer.run(check_interrupt)
    assert isinstance(caught.value.__cause__, WorkerDiedError)
    assert commits(tmp_path).steps() == [1]


def test_what_all_ranks_have_written_is_committed_while_they_are_at_other_work(
    tmp_path: Path,
) -> None:
    class EarlyWriter(MemoryRoles):
        """Two ranks that write during the rollout; in the fifth step they die behind it."""

        found: ClassVar[list[tuple[int, list[int]]]] = []

        def generate_sequences(self, *asked: Any, step: int, **more: Any) -> Rollouts:
            for rank in (0, 1) if step in (3, 5) else ():
                self.look(step)
                written = write_synced(self.saves[-1] / f"actor-{rank:05}.safetensors", [b"part"])
                saved(written).report(self.saves[-1], rank=rank, ranks=2)
            self.look(step)
            return super().generate_sequences(*asked, step=step, **more)

        def look(self, step: int) -> None:
            trainer.checkpoints.commit_written()
            self.found.append((step, commits(tmp_path).steps()))

        def finish_save(self) -> list[SavedFiles]:
            if len(self.saves) == 2:
                raise WorkerDiedError("worker-1 died")
            return [saved(), saved()]

    def saved(*files: WrittenFile) -> SavedFiles:
        return SavedFiles(files=files, updates={"actor": 7}, seconds=0.5, waited_seconds=0.1)

    trainer = build(tmp_path, EarlyWriter(), train_iters=6)
    with pytest.raises(WorkerDiedError):
        trainer.run()
    third, fifth = [[], [], [2]], [[2], [2], [4, 2]]
    expected = [(1, []), (2, []), *((3, each) for each in third), (4, [2])]
    assert EarlyWriter.found == [*expected, *((5, each) for each in fifth)]
    committed = commits(tmp_path).read(4)
    assert [each.name for each in committed.files][:2] == [
        "actor-00000.safetensors",
        "actor-00001.safetensors",
    ]
    assert {each.name for each in committed.folder.iterdir()} == {
        *(each.name for each in committed.files),
        "manifest.json",
    }
    assert [line["step"] for line in lines(tmp_path) if "bytes/checkpoint" in line] == [3]


def test_without_an_interval_there_is_none(tmp_path: Path) -> None:
    build(tmp_path, MemoryRoles(), save_interval=0, train_iters=3).run()
    assert not (tmp_path / "checkpoints").exists()


def test_a_trainer_goes_on_with_the_prompts_the_deals_and_the_counts_of_the_first(
    tmp_path: Path,
) -> None:
    whole = MemoryRoles()
    build(tmp_path / "whole", whole, shuffle_mini_batch=True).run()

    first = build(tmp_path / "first", MemoryRoles(), shuffle_mini_batch=True, save_interval=3)

    def check_interrupt() -> None:
        if first.run_log.summary.steps == 3:
            raise StopRequestedError("stopped by SIGTERM")

    with pytest.raises(StopRequestedError):
        first.run(check_interrupt)
    found = commits(tmp_path / "first").read(3)
    roles = MemoryRoles()
    second = build(tmp_path / "second", roles, shuffle_mini_batch=True)
    second.resume(found.step, found.state())
    second.run()

    assert roles.asked == whole.asked[3:]
    prompts = [each.tokens_BT.tolist() for each in roles.minibatches]
    assert prompts == [each.tokens_BT.tolist() for each in whole.minibatches[-len(prompts) :]]
    assert [line["step"] for line in lines(tmp_path / "second")] == [4, 5]
    assert second.run_log.summary.response_tokens == 5 * 8


def test_reward_functions_continue_with_the_scores_of_the_steps_before(tmp_path: Path) -> None:
    first, state = MemoryRoles(), {"": {"exact": -3.0}}
    trainer = build(tmp_path / "first", first, train_iters=2)
    first.load_state(state)
    trainer.run()
    # They outlive the workers: without a checkpoint the next trainer starts from none.
    build(tmp_path / "anew", first)
    assert first.state() == {}
    found, roles = commits(tmp_path / "first").read(2), MemoryRoles()
    build(tmp_path / "second", roles).resume(found.step, found.state())
    assert roles.state() == state


def test_the_bytes_and_seconds_of_a_restore_belong_to_no_step(tmp_path: Path) -> None:
    build(tmp_path / "first", MemoryRoles(), train_iters=2).run()
    found, roles = commits(tmp_path / "first").read(2), MemoryRoles()
    build(tmp_path / "second", roles).resume(found.step, found.state())
    assert roles.calls == ["flush"]


def test_steps_without_an_update_are_counted_on(tmp_path: Path) -> None:
    """Three of them end a run: here two before it was stopped, and the first behind that."""

    def roles() -> MemoryRoles:
        return MemoryRoles(grad_norm=lambda _: math.nan)

    first = build(tmp_path / "first", roles())

    def check_interrupt() -> None:
        if first.run_log.summary.steps == 2:
            raise StopRequestedError("stopped by SIGTERM")

    with pytest.raises(StopRequestedError):
        first.run(check_interrupt)
    found = commits(tmp_path / "first").read(2)
    second = build(tmp_path / "second", roles())
    second.resume(found.step, found.state())
    with pytest.raises(SkippedUpdatesError, match=r"^step 3: all updates of the actor"):
        second.run()


def test_a_checkpoint_is_complete_although_an_older_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune, failed = Commits.prune, list[int]()

    def fail_once(self: Commits, keep: Iterable[int]) -> None:
        if len(self.steps()) > 1 and not failed:
            failed.append(self.steps()[0])
            raise OutputError("step-00000002: Directory not empty")
        prune(self, keep)

    monkeypatch.setattr(Commits, "prune", fail_once)
    build(tmp_path, MemoryRoles(), keep_last=1).run()
    assert failed == [4]
    assert commits(tmp_path).steps() == [5]


@pytest.mark.parametrize(("last", "kept"), [(1, [5]), (2, [5, 4])])
def test_checkpoints_after_the_restored_one_are_damaged_and_count_for_nothing(
    last: int, kept: list[int], tmp_path: Path
) -> None:
    """A start skips a damaged checkpoint; the next steps may have other numbers than that one."""
    build(tmp_path, MemoryRoles(), train_iters=6, save_interval=2, keep_last=3).run()
    assert commits(tmp_path).steps() == [6, 4, 2]
    (tmp_path / "checkpoints/step-00000006/manifest.json").write_text("{}")
    found, _ = commits(tmp_path).newest_complete()
    assert found is not None
    again = build(tmp_path, MemoryRoles(), train_iters=5, save_interval=1, keep_last=last)
    again.resume(found.step, found.state())
    again.run()
    assert commits(tmp_path).steps() == kept
    assert [commits(tmp_path).read(step).step for step in kept] == kept


def test_the_checkpoint_before_stays_where_the_next_cannot_be_committed(tmp_path: Path) -> None:
    class ShortFile(MemoryRoles):
        def finish_save(self) -> list[SavedFiles]:
            saved = super().finish_save()
            if len(self.saves) == 2:
                (self.saves[-1] / saved[0].files[0].name).write_bytes(b"wei")
            return saved

    with pytest.raises(OutputError, match="has 3 bytes, but 7 were written"):
        build(tmp_path, ShortFile(), keep_last=1).run()
    assert commits(tmp_path).steps() == [2]


def test_a_new_run_folder_has_none_of_the_models_that_the_other_has_exported(
    tmp_path: Path,
) -> None:
    counts = {"seconds": 3.0, "steps": 4, "model_step": 4, "model_best_step": 2}
    state = {"summary": {**counts, "accuracy_best": 0.5}}
    here, there = (build(tmp_path / name, MemoryRoles()) for name in ("here", "there"))
    for folder in ("model", "model_best"):
        (tmp_path / "there" / folder).mkdir()
    for trainer in (here, there):
        trainer.resume(4, state)
    kept = [
        (each.run_log.summary.model_step, each.run_log.summary.accuracy_best)
        for each in (here, there)
    ]
    assert kept == [(None, None), (4, 0.5)]
    assert (here.first_step, here.run_log.summary.steps) == (5, 4)
