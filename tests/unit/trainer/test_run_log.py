"""The files that a run leaves for persons and programs."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindrl.algorithms.success_rates import Rate
from mindrl.errors import OutputError
from mindrl.observability.console import StepConsole
from mindrl.observability.samples import Sample
from mindrl.observability.trackers import JsonlTracker
from mindrl.rewards.scores import Failure, FailureKind, Failures
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

SAMPLE = Sample(
    prompt="2+2=?",
    response="5",
    reference="4",
    reward=0.1,
    parts={"math_verify": 0.0, "boxed_format": 1.0},
    finished=True,
    response_tokens=1,
)

RATE = Rate(0.25, 0.1, 0.4)
HALF = Rate(0.5, 0.4, 0.6)
ENDS = (("", 0.25), ("_low", 0.1), ("_high", 0.4))


def open_run_log(root: Path, stream: io.StringIO | None = None) -> RunLog:
    folder = RunFolder(root=root)
    return RunLog(
        folder,
        RunSummary(exports={"actor": root / "model"}),
        StepConsole(10, stream or io.StringIO()),
        [JsonlTracker(folder.metrics)],
    )


def metrics(*, tokens: float, seconds: float, gap: float) -> dict[str, float]:
    return {
        "rollout/response_tokens": tokens,
        "seconds/step": seconds,
        "logprob_gap/mean": gap,
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_all_files_of_a_run_lie_below_its_folder() -> None:
    folder = RunFolder(root=Path("/runs/1"))
    assert (folder.metrics, folder.samples, folder.evaluations, folder.summary) == (
        Path("/runs/1/metrics.jsonl"),
        Path("/runs/1/samples.jsonl"),
        Path("/runs/1/evaluations.jsonl"),
        Path("/runs/1/summary.json"),
    )
    assert (folder.logs, folder.tensorboard) == (Path("/runs/1/logs"), Path("/runs/1/tensorboard"))


def test_each_step_and_each_evaluation_is_a_line_of_its_file(tmp_path: Path) -> None:
    run_log = open_run_log(tmp_path)
    run_log.evaluation(0, RATE, [SAMPLE, SAMPLE])
    run_log.step(1, metrics(tokens=100.0, seconds=2.0, gap=1e-6), [SAMPLE])
    run_log.close()

    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 0, **{f"evaluation/accuracy{end}": value for end, value in ENDS}},
        {"step": 1, **metrics(tokens=100.0, seconds=2.0, gap=1e-6)},
    ]
    assert [line["step"] for line in lines(tmp_path / "evaluations.jsonl")] == [0, 0]
    (sample,) = lines(tmp_path / "samples.jsonl")
    assert (sample["step"], sample["response"], sample["reward"]) == (1, "5", 0.1)


def test_a_step_is_on_the_disk_before_the_journal_is_closed(tmp_path: Path) -> None:
    run_log = open_run_log(tmp_path)
    run_log.step(1, metrics(tokens=1.0, seconds=1.0, gap=0.0), [SAMPLE])
    assert len(lines(tmp_path / "metrics.jsonl")) == len(lines(tmp_path / "samples.jsonl")) == 1
    run_log.close()


def test_the_summary_says_what_became_of_the_run(tmp_path: Path) -> None:
    run_log = open_run_log(tmp_path)
    run_log.evaluation(0, RATE, [])
    run_log.step(1, metrics(tokens=100.0, seconds=2.0, gap=3e-6), [])
    run_log.step(2, metrics(tokens=200.0, seconds=4.0, gap=1e-6), [])
    run_log.evaluation(2, Rate(0.75, 0.6, 0.9), [])
    run_log.summary.status = "completed"
    run_log.summary.model_step = 2
    run_log.summary.model_best_step = 1
    run_log.summary.accuracy_best = 0.8
    run_log.summary.provenance = {"seed": 1, "commit": None, "versions": {"python": "3.11"}}
    summary = run_log.close()

    assert summary == json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["seconds"] >= 0  # type: ignore[operator]
    assert {name: value for name, value in summary.items() if name != "seconds"} == {
        "status": "completed",
        "accuracy_before": 0.25,
        "accuracy_after": 0.75,
        "evaluations": {},
        "logprob_gap_max_mean": 3e-6,
        "steps": 2,
        "skipped_updates": 0,
        "skipped_checkpoints": 0,
        "restarts": 0,
        "steps_without_signal": 0,
        "reward_failures": {},
        "response_tokens_per_second": 50.0,
        "run_dir": str(tmp_path),
        "logs": str(tmp_path / "logs"),
        "tensorboard": str(tmp_path / "tensorboard"),
        "metrics": str(tmp_path / "metrics.jsonl"),
        "samples": str(tmp_path / "samples.jsonl"),
        "report": None,
        "advice": [],
        "trackers": {},
        "model": str(tmp_path / "model"),
        "model_step": 2,
        "model_best": str(tmp_path / "model_best"),
        "model_best_step": 1,
        "model_best_accuracy": 0.8,
        "seed": 1,
        "commit": None,
        "versions": {"python": "3.11"},
    }


def test_a_run_that_ended_before_its_first_step_has_a_summary_without_numbers(
    tmp_path: Path,
) -> None:
    summary = open_run_log(tmp_path).close()
    assert (summary["status"], summary["steps"]) == ("failed", 0)
    assert summary["accuracy_before"] is summary["accuracy_after"] is summary["model"] is None
    assert summary["response_tokens_per_second"] == 0.0


def failed(kind: FailureKind, count: int) -> Failures:
    first = Failure(kind=kind, detail="'KeyError: 1' (/rewards.py:3)")
    return Failures(function="rewards.py:score", count=count, first=first, response=0)


def test_failing_rewards_are_told_once_for_each_kind_and_counted(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)
    for step in (0, 1, 2):
        run_log.reward_failures(step, [failed("exception", 8), failed("timeout", 1)])
    said = stream.getvalue().splitlines()
    assert said == [
        f"warning: step 0: rewards.py:score did not score {count} response(s): {kind}: "
        "'KeyError: 1' (/rewards.py:3); details are in driver.log, and the summary counts all"
        for count, kind in ((8, "exception"), (1, "timeout"))
    ]
    assert run_log.close()["reward_failures"] == {
        "rewards.py:score": {"exception": 24, "timeout": 3}
    }


def test_later_steps_do_not_change_counts_that_a_checkpoint_still_has_to_record(
    tmp_path: Path,
) -> None:
    run_log = open_run_log(tmp_path)
    run_log.reward_failures(1, [failed("exception", 8)])
    counts = run_log.summary.counts()
    before = json.dumps(counts)
    run_log.reward_failures(2, [failed("exception", 4), failed("timeout", 1)])
    flat = {"update/grad_norm": 0.0}
    run_log.step(2, metrics(tokens=1.0, seconds=1.0, gap=0.0) | flat, [])
    run_log.summary.evaluations["test"] = {"after": {"accuracy": 1.0}}
    assert json.dumps(counts) == before


def test_steps_without_signal_are_told_once_and_counted(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)
    equal, flat = {"advantage/zero_fraction": 1.0}, {"update/grad_norm": 0.0}
    some = {"advantage/zero_fraction": 0.5, "update/grad_norm": 0.1}
    for step, signal in enumerate((some, equal, flat, equal, {}), start=1):
        run_log.step(step, metrics(tokens=1.0, seconds=1.0, gap=0.0) | signal, [])
    of_signal, of_gradient = (line for line in stream.getvalue().splitlines() if "warning" in line)
    assert of_signal.startswith("warning: step 2 did not change the policy: the responses to")
    assert of_gradient.startswith("warning: step 3 did not change the policy: the gradient is 0")
    assert run_log.close()["steps_without_signal"] == 3


@pytest.mark.parametrize("step", [0, 3])
def test_an_evaluation_is_shown_with_its_accuracy(step: int, tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)
    run_log.evaluation(step, HALF, [SAMPLE])
    run_log.close()
    assert f"eval  {step}/10  accuracy 0.500" in stream.getvalue()


def test_an_evaluation_shows_an_answer_that_became_another_one(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)

    def shown(*changed: Sample) -> str:
        """Evaluate four prompts, the last of which have these answers; return what is shown."""
        stream.seek(0)
        stream.truncate()
        same = [replace(SAMPLE, response=f"answer {at}") for at in range(4 - len(changed))]
        run_log.evaluation(1, HALF, [*same, *changed])
        return stream.getvalue()

    assert "answer 0" in shown()
    reworded, better = replace(SAMPLE, response="other words"), replace(SAMPLE, reward=1.0)
    # What is rewarded otherwise says more than what only reads otherwise.
    assert "reward 1.000" in shown(reworded, better)
    assert "answer 2" in shown(better)
    assert "answer 0" in shown(better)
    run_log.close()


def test_on_a_full_disk_the_run_goes_on_tells_each_file_once_and_leaves_its_summary(
    tmp_path: Path,
) -> None:
    program = (
        "import io, json, resource, sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_run_log import RATE, SAMPLE, metrics, open_run_log\n"
        "from mindrl.observability.logs import configure_logging\n"
        "from mindrl.observability.tensorboard import TensorboardTracker\n"
        "folder = Path(sys.argv[1]); shown = io.StringIO()\n"
        "configure_logging(folder / 'driver.log')\n"
        "run_log = open_run_log(folder, shown)\n"
        "run_log.trackers.append(TensorboardTracker(folder / 'tensorboard'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
        "for step in range(1, 41):\n"
        "    run_log.evaluation(step, RATE, [SAMPLE])\n"
        "    run_log.step(step, metrics(tokens=1.0, seconds=1.0, gap=0.0), [SAMPLE])\n"
        "summary = run_log.close()\n"
        "assert summary == json.loads((folder / 'summary.json').read_text())\n"
        "told = [line for line in shown.getvalue().splitlines() if 'cannot' in line]\n"
        "print(summary['steps'], *told, sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    steps, *told = done.stdout.splitlines()
    assert steps == "40"
    files = [
        re.sub(r"^warning: (.*) cannot be written: .*; the run continues without it$", r"\1", each)
        for each in told
    ]
    assert sorted(re.sub(r"tfevents.*", "tfevents", file) for file in files) == [
        f"{tmp_path}/evaluations.jsonl",
        f"{tmp_path}/metrics.jsonl",
        f"{tmp_path}/samples.jsonl",
        f"{tmp_path}/tensorboard/events.out.tfevents",
    ]


def test_a_summary_that_cannot_be_written_is_told_and_returned_all_the_same(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)
    (tmp_path / "summary.json").mkdir()
    assert run_log.close()["status"] == "failed"
    assert f"{tmp_path}/summary.json cannot be written: Is a directory" in stream.getvalue()


def test_pictures_of_all_samples_get_thumbnails_and_a_lost_one_ends_no_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = open_run_log(tmp_path, stream)
    shown: list[str] = []

    def show(names: Iterable[str]) -> None:
        shown.extend(names)
        if "2" * 16 in shown:
            raise OutputError("thumbnail: the picture has changed")

    run_log.show_pictures = show
    first, second, third = (replace(SAMPLE, pictures=(f"{at}" * 16,)) for at in (1, 2, 3))
    run_log.evaluation(0, RATE, [first])
    run_log.evaluation_of("other", 0, {"accuracy": RATE}, [third])
    run_log.step(1, metrics(tokens=1.0, seconds=1.0, gap=0.0), [second, SAMPLE])
    run_log.close()
    assert shown == [f"{at}" * 16 for at in (1, 3, 2)]
    assert "thumbnail: the picture has changed" in stream.getvalue()
    rows = lines(tmp_path / "samples.jsonl")
    assert rows[0]["pictures"] == ["2" * 16]
    assert "pictures" not in rows[1]
