"""The folder of a run: resumed with checkpoints alone, held by one process, kept when refused."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mindrl.checkpoint.commits import Commits
from mindrl.errors import ConfigError, OutputError
from mindrl.launch.callbacks import Callbacks
from mindrl.programs import train
from mindrl.programs.compose import composed, composed_config
from mindrl.programs.entry import start as start_program
from mindrl.programs.run_place import require_checkpoint, run_place
from mindrl.programs.train import Assumed, check_and_train, run_program
from mindrl.spool.folder import Spool

_HOLDS = """\
import sys
from functools import partial
from pathlib import Path
from mindrl.observability.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
Said = Callable[[list[str], Callable[[], int]], tuple[int, str]]


def committed(run: Path) -> None:
    commits = Commits(run / "checkpoints")
    commits.begin(4)
    commits.commit(4, [], {})


def contents(run: Path) -> dict[str, bytes]:
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of some steps, as `--resume` finds it."""
    (tmp_path / "run/.hydra").mkdir(parents=True)
    OmegaConf.save(composed("grpo_tiny_cpu", []), tmp_path / "run/.hydra/config.yaml")
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1}\n')
    return tmp_path / "run"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    def answer(arguments: list[str], start: Callable[[], int]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["train_grpo.py", *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        code = start()
        return code, capsys.readouterr().err

    return answer


def test_a_run_without_a_checkpoint_is_not_resumed_and_keeps_its_files(
    run: Path, said: Said
) -> None:
    for has_folder in (False, True):
        if has_folder:
            (run / "checkpoints").mkdir()
        before = contents(run)
        code, text = said(["--resume", str(run)], partial(start_program, "train-grpo"))
        assert code == 2
        assert f"error: --resume {run}: its checkpoints/ has no checkpoint" in text
        assert f"--config-name {run}/.hydra/config.yaml" in text
        assert contents(run) == before
    with pytest.raises(ConfigError):
        require_checkpoint("--resume", run)
    committed(run)
    require_checkpoint("--resume", run)


def test_a_job_without_checkpoints_resumes_all_the_same(
    run: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []
    monkeypatch.setattr(train, "check_and_train", lambda _, folder: found.append(folder))
    start = partial(run_program, Assumed(job="rollout"))
    assert said(["--resume", str(run)], start) == (0, "")
    # No character of a path is part of an override's syntax.
    other = run.rename(run.with_name("it's a=b, (1)"))
    assert said(["--resume", str(other)], start) == (0, "")
    assert found == [run, other]


def test_a_job_that_a_spool_refuses_ends_with_the_code_of_bad_input_and_all_reasons(
    run: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After this code the scheduler of two jobs does not start the job again."""

    def refused(*_: object) -> None:
        spool = Spool(tmp_path / "spool")
        for value in (1, 2):
            spool.agree({f"key_{number:02}": value for number in range(12)})

    monkeypatch.setattr(train, "check_and_train", refused)
    start = partial(run_program, Assumed(job="rollout"))
    code, text = said(["--resume", str(run)], start)
    assert code == 2
    head, *reasons = text.splitlines()
    assert head == f"error: {tmp_path}/spool is the spool of other jobs:"
    assert [line.split()[:3] for line in reasons] == [[f"key_{n:02}", "is", "2"] for n in range(12)]


@pytest.mark.parametrize("option", ["--resume", "hydra.run.dir"])
def test_a_folder_that_another_run_writes_into_is_refused_before_a_file_changes(
    option: str, run: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "check_and_train", lambda *_: pytest.fail("it began"))
    start = partial(run_program, Assumed())
    committed(run)
    arguments = [option, str(run)] if option == "--resume" else [f"{option}={run}"]
    command = [sys.executable, "-c", _HOLDS, str(run)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = contents(run)
        code, text = said([*arguments, "megatron_training.train_iters=5"], start)
        assert (code, contents(run)) == (1, before)
        assert f"is in use by a run, process {other.pid} on " in text


def test_a_run_that_is_refused_leaves_the_configuration_of_the_one_before(run: Path) -> None:
    before, other = contents(run), OmegaConf.create({"megatron_training": {"train_iters": 5}})
    with pytest.raises(OutputError), run_place(run, other, ["megatron_training.train_iters=5"]):
        raise OutputError("no room")
    assert contents(run)[".hydra/config.yaml"] == before[".hydra/config.yaml"]

    def begin() -> None:
        (run / "summary.json").write_text("{}")
        raise OutputError("it has begun")

    with pytest.raises(OutputError), run_place(run, other, []):
        begin()
    assert OmegaConf.load(run / ".hydra/config.yaml") == other


def test_a_start_that_is_refused_leaves_nothing_behind(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = "rl_config.mini_batch_size=7"
    for place in ([], ["hydra.run.dir=mine"]):
        code, text = said([wrong, *place], partial(start_program, "train-grpo"))
        assert code == 2
        assert wrong in text
        assert not [*tmp_path.iterdir()]


def test_a_start_that_is_refused_keeps_files_of_others(tmp_path: Path) -> None:
    def begin(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x")
        raise ConfigError("the rows cannot be used")

    def refused(*names: str) -> None:
        with pytest.raises(ConfigError), run_place(tmp_path, OmegaConf.create(), []):
            begin(*names)

    refused("data/train_dataset.jsonl", "logs/driver.log", "notes.txt")
    kept = contents(tmp_path)
    assert "notes.txt" in kept
    refused()
    assert contents(tmp_path) == kept


def test_a_start_that_fails_keeps_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError), run_place(tmp_path / "run", OmegaConf.create(), []):
        raise OutputError("no room")
    assert (tmp_path / "run/.hydra/config.yaml").is_file()


def test_a_job_of_a_spool_calls_no_callbacks_and_is_not_given_any(tmp_path: Path) -> None:
    config = composed_config("grpo_tiny_cpu", ["spool_config.job=train", "spool_config.folder=a"])
    with pytest.raises(ConfigError, match=r"spool_config.job=train: a job calls no callbacks"):
        check_and_train(config, tmp_path, Callbacks([lambda _: None]))
    assert not [*tmp_path.iterdir()]
