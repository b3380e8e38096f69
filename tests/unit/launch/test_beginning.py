"""A run begins from its own checkpoints, else from those that its configuration names."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mindrl.checkpoint.commits import Commits, write_synced
from mindrl.checkpoint.search import find_checkpoints
from mindrl.config.resume import recorded_config
from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError
from mindrl.launch.attempts import RunFiles
from mindrl.launch.beginning import Beginning, beginning
from mindrl.observability.console import StepConsole
from mindrl.trainer.run_log import RunFolder

Begin = Callable[..., Beginning | None]
STEPS = {"megatron_training.train_iters": 50}
PARTS = {"summary": {"steps": 20}, "checks": {}, "minibatches": "ff"}


@pytest.fixture
def begin(tmp_path: Path, run_config: Callable[..., RunConfig]) -> Begin:
    """Begin the run in `new`, with the configuration of the run in `old` but for some keys."""

    def call(damaged: Mapping[Path, str] = {}, **changes: Any) -> Beginning | None:
        keys = {f"megatron_training.{key}": value for key, value in changes.items()}
        config = run_config(Path("model"), STEPS | keys)
        return beginning(config, RunFolder(root=tmp_path / "new"), {}, damaged)

    before = recorded_config(run_config(Path("model"), STEPS))
    for step in (10, 20):
        save(tmp_path / "old", step, before)
    return call


def save(run: Path, step: int, config: dict[str, Any], **state: Any) -> Path:
    commits = Commits(run / "checkpoints")
    files = [write_synced(commits.begin(step) / "actor-00000.safetensors", [b"weights"])]
    record = {**PARTS, **state, "config": config, "updates": {"actor": 2 * step}}
    return commits.commit(step, files, record).folder


@pytest.mark.parametrize(
    ("named", "step"),
    [
        ("old", 20),
        ("old/checkpoints", 20),
        ("old/checkpoints/step-00000010", 10),
        ("old/checkpoints/step-00000020", 20),
    ],
)
def test_a_new_run_goes_on_from_the_run_or_the_checkpoint_that_is_named(
    named: str, step: int, begin: Begin, tmp_path: Path
) -> None:
    found = begin(resume=str(tmp_path / named))
    assert found is not None
    assert (found.step, found.updates) == (step, {"actor": 2 * step})
    assert found.folder == tmp_path / f"old/checkpoints/step-{step:08}"
    assert found.state.items() >= PARTS.items()
    assert str(found) == f"continues after step {step}, from {found.folder}"


def test_its_own_checkpoints_come_first_and_are_taken_over_whole(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    old = str(tmp_path / "old")
    # It was killed before its first commit.
    Commits(tmp_path / "new/checkpoints").begin(30)
    found = begin(resume=old)
    assert found is not None
    assert found.step == 20
    own = save(tmp_path / "new", 30, recorded_config(run_config(Path("model"), STEPS)))
    for changes in ({}, {"finetune": True}, {"no_load_optim": True}):
        found = begin(resume=old, **changes)
        assert found is not None
        assert (found.folder, found.step, found.updates) == (own, 30, {"actor": 60})


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(begin: Begin, tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "new")
    folder.checkpoints.mkdir(parents=True)
    folder.metrics.write_text('{"step": 3}\n')
    # It was killed before its first checkpoint.
    assert begin(save_interval=3) is None
    for resume in ("auto", str(tmp_path / "old")):
        with pytest.raises(CheckpointError, match=r"is empty, but .*metrics.jsonl has 3 steps"):
            begin(save_interval=2, resume=resume)
    folder.checkpoints.rmdir()
    assert begin(save_interval=2) is None
    for make in (Path.touch, lambda path: path.symlink_to("nowhere")):
        make(folder.checkpoints)
        with pytest.raises(CheckpointError, match=r"^cannot list .*checkpoints"):
            begin(save_interval=2)
        folder.checkpoints.unlink()


def test_a_damaged_checkpoint_of_the_other_run_is_passed_over_and_one_that_is_named_is_not(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = tmp_path / "old/checkpoints/step-00000020"
    damaged = {newest: f"{newest}/actor-00000.safetensors is damaged"}
    found = begin(damaged, resume=str(tmp_path / "old"))
    assert found is not None
    assert found.step == 10
    assert "step-00000020/actor-00000.safetensors is damaged; skipping" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged"):
        begin(damaged, resume=str(newest))


def test_the_driver_reads_manifests_and_no_weights(begin: Begin, tmp_path: Path) -> None:
    """671B has 8 TB of weights and moments, which would pass through one process."""
    old, weights = tmp_path / "old", bytes(64 << 20)
    commits = Commits(old / "checkpoints")
    state = commits.read(20).state()
    files = [write_synced(commits.begin(30) / "actor-00000.safetensors", [weights])]
    commits.commit(30, files, state)
    before = read_bytes()
    found = begin(resume=str(old))
    assert found is not None
    assert found.step == 30
    assert read_bytes() - before < 1 << 20


def read_bytes() -> int:
    """Return the bytes that this process has read, from disks and from caches."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_weights_alone_leave_steps_and_updates_behind_and_all_keys_but_the_model_free(
    begin: Begin, tmp_path: Path
) -> None:
    old = str(tmp_path / "old")
    found = begin(resume=old, finetune=True, seed=7, train_iters=5)
    assert found is not None
    assert (found.step, found.updates, found.state) == (0, {"actor": 0}, {})
    assert str(found).startswith("starts with the weights of ")
    with pytest.raises(CheckpointError, match=r"megatron_training\.seed=7 differs"):
        begin(resume=old, seed=7)


def test_open_groups_in_the_form_of_an_earlier_version_are_refused_and_not_dropped(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    old, before = tmp_path / "old", recorded_config(run_config(Path("model"), STEPS))
    # Steps in turns stored nothing.
    save(old, 30, before, gathering={})
    found = begin(resume=str(old))
    assert found is not None
    assert found.step == 30
    for state in ({"place": 242, "groups": [{"index": 3, "born": 30}]}, {"place": 245}):
        save(old, 40, before, gathering=state)
        with pytest.raises(CheckpointError, match=r"step-00000040: an earlier version of mindrl"):
            begin(resume=str(old))
        found = begin(resume=str(old), finetune=True)
        assert found is not None
        assert (found.step, found.state) == (0, {})


def test_an_evaluation_before_the_first_step_is_forgotten_where_weights_alone_are_taken(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    folder, exports = RunFolder(root=tmp_path / "new"), {"actor": tmp_path / "model"}
    files = RunFiles(folder, exports, StepConsole(50, io.StringIO()))
    folder.root.mkdir()
    for weights_alone, left in ((False, '{"step": 0}\n{"step": 20}\n'), (True, "")):
        folder.metrics.write_text('{"step": 0}\n{"step": 20}\n{"step": 21}\n')
        found = begin(resume=str(tmp_path / "old"), finetune=weights_alone)
        files.open(run_config(Path("model")), found).close()
        assert folder.metrics.read_text() == left


def test_a_damaged_line_of_a_resumed_run_is_reported(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    folder, text = RunFolder(root=tmp_path / "new"), io.StringIO()
    folder.root.mkdir()
    lines = '{"step": 1}\n{"st\n{"loss": 1}\n{"step": 2}\n'
    folder.metrics.write_text(lines)
    files = RunFiles(folder, {"actor": tmp_path / "model"}, StepConsole(50, text))
    files.open(run_config(Path("model")), begin(resume=str(tmp_path / "old"))).close()
    assert folder.metrics.read_text() == lines
    said = " ".join(text.getvalue().split())
    for line in (2, 3):
        assert f"metrics.jsonl, line {line}: not a record with an integer step" in said


def test_what_was_being_written_when_a_run_was_killed_is_gone_when_it_goes_on(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    folder, exports = RunFolder(root=tmp_path / "new"), {"actor": tmp_path / "model"}
    for file in (folder.rollouts / "step-00000020.parquet", folder.summary):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(b"old")
        to_be_killed = (
            "import os, pathlib, signal, sys\n"
            "from mindrl.observability.output_files import replace_file\n"
            "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
            "replace_file(pathlib.Path(sys.argv[1]), b'new')\n"
        )
        killed = subprocess.run([sys.executable, "-c", to_be_killed, str(file)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len([*file.parent.glob(f".{file.name}*")]) == 1
    found = begin(resume=str(tmp_path / "old"))
    files = RunFiles(folder, exports, StepConsole(50, io.StringIO()))
    files.open(run_config(Path("model")), found).close()
    assert not [*folder.root.rglob(".*.tmp")]
    assert (folder.rollouts / "step-00000020.parquet").read_bytes() == b"old"


@pytest.mark.nightly
def test_a_run_that_begins_again_behind_a_fault_tells_its_trackers_no_step_twice(
    tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    tracker = f"{Path(__file__).parents[1]}/tracking/user_trackers.py:FileTracker"
    config = run_config(Path("model"), {"rl_config.tracking.trackers": [tracker]})
    folder, exports = RunFolder(root=tmp_path), {"actor": tmp_path / "model"}
    files = RunFiles(folder, exports, StepConsole(50, io.StringIO()))
    for last, is_again in ((1, False), (2, True), (1, False)):
        run_log = files.open(config, None, is_again=is_again)
        for step in range(1, last + 1):
            run_log.trackers[0].log(step, {"loss": 0.5})
        run_log.close()
    (kept,) = folder.trackers.glob("*/kept.txt")
    records = [line.split()[:2] for line in kept.read_text().splitlines()]
    told = [(opened, int(step)) for opened, step in records if step != "-1"]
    assert told == [("run+", 1), ("run++", 2), ("run+", 1)]


def test_the_optimizer_or_the_random_state_can_be_left_out(begin: Begin, tmp_path: Path) -> None:
    old = str(tmp_path / "old")
    found = begin(resume=old, no_load_optim=True)
    assert found is not None
    assert (found.step, found.updates) == (20, {"actor": 0})
    assert "minibatches" in found.state
    found = begin(resume=old, no_load_rng=True)
    assert found is not None
    assert found.updates == {"actor": 40}
    assert found.state.keys() & PARTS.keys() == {"summary", "checks"}


def test_a_run_without_minibatches_can_leave_the_random_state_out(
    begin: Begin, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    """Runs on the answers of rows have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(PARTS, "minibatches")
        save(tmp_path / "other", 30, recorded_config(run_config(Path("model"), STEPS)))
    found = begin(resume=str(tmp_path / "other"), no_load_rng=True)
    assert found is not None
    assert (found.step, "minibatches" in found.state) == (30, False)


def test_weights_of_another_model_are_refused(
    tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    save(tmp_path / "old", 20, recorded_config(run_config(Path("model"))))
    keys = {"resume": str(tmp_path / "old"), "finetune": True}
    other = run_config(Path("other"), {f"megatron_training.{key}": keys[key] for key in keys})
    with pytest.raises(CheckpointError, match=r"actor_config\.load=other differs"):
        beginning(other, RunFolder(root=tmp_path / "new"), {})


def test_a_run_that_has_nothing_left_to_do_says_what_to_raise(begin: Begin, tmp_path: Path) -> None:
    change = {"resume_allow": ("megatron_training.train_iters",), "train_iters": 20}
    with pytest.raises(CheckpointError, match=r"train_iters=20 must be above 20"):
        begin(resume=str(tmp_path / "old"), **change)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("odl", "no such folder; did you mean {}/old?"),
        ("old/logs", "no such folder; did you mean {}/old?"),
        ("old/checkpoints/step-00000017", "the nearest is of step 20"),
        ("empty", "it holds none; did you mean {}/old?"),
        ("empty/auto", "must be auto, never, a run folder with checkpoints or one of them"),
    ],
)
def test_a_folder_without_checkpoints_is_refused_with_the_nearest_that_has_some(
    named: str, said: str, begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError) as error:
        begin(resume=str(tmp_path / named))
    assert said.format(tmp_path) in str(error.value)
    assert str(error.value).startswith(f"megatron_training.resume={tmp_path / named} must be")


def test_where_no_run_is_near_none_is_named(tmp_path: Path) -> None:
    alone = tmp_path / "a/b"
    alone.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"^it holds none$"):
        find_checkpoints(alone)
