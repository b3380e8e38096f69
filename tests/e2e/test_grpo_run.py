"""The quickstart's run as a user starts it, whole, interrupted and hurt."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from house_run import Process, read_processes
from program import CHECKOUT, ENTRIES, TEN_STEPS, Program, fresh_answers, gone, start_program
from timelines import check_step

from mindrl.report.run_state import RunState

pytestmark = pytest.mark.e2e

TRACED = ("reward/mean", "update/policy_loss", "update/grad_norm", "logprob_gap/mean")


def test_the_model_learns_from_under_half_to_most_answers_right(whole_run: Program) -> None:
    summary = whole_run.summary()
    assert summary["status"] == "completed"
    assert 0.15 <= summary["accuracy_before"] <= 0.55
    assert summary["accuracy_after"] >= 0.75
    assert summary["accuracy_after"] >= summary["accuracy_before"] + 0.35


@pytest.mark.nightly
def test_in_thirty_steps_it_learns_nearly_all_answers(tiny_model: Path, tmp_path: Path) -> None:
    program = start_program(tmp_path / "run", [f"actor_config.load={tiny_model}"])
    assert program.process.wait(timeout=600) == 0, program.text()
    summary = program.summary()
    assert summary["steps"] == 30
    assert summary["advice"] == []
    assert summary["accuracy_after"] >= 0.85
    assert summary["logprob_gap_max_mean"] < 1e-4
    check_worked(program)


def test_the_weights_arrive_in_every_step(whole_run: Program) -> None:
    steps = whole_run.steps()
    assert whole_run.summary()["logprob_gap_max_mean"] < 1e-4
    assert max(step["logprob_gap/mean"] for step in steps) < 1e-4
    # Equal to the bit would mean that both numbers came from the same place.
    assert max(step["logprob_gap/max"] for step in steps) > 0


def test_no_service_of_the_run_listens_beyond_loopback(
    watched_run: tuple[Program, set[str]],
) -> None:
    _, listening = watched_run
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_nothing_is_printed_behind_the_summary(whole_run: Program) -> None:
    assert whole_run.text().rstrip().splitlines()[-1].startswith("╰─")


def test_each_process_plans_once(whole_run: Program) -> None:
    """The memory timeline plans nothing, and only an export has a plan beside the run's."""
    processes = read_processes(whole_run.folder.with_name(ENTRIES), CHECKOUT)
    driver, *workers = (each for each in processes if each.name.startswith(("driver", "worker")))
    assert [each.name for each in (driver, *workers)] == ["driver", "worker 1", "worker 2"]
    for process in (driver, *workers):
        assert process.calls
        assert len({call[:2] for call in process.calls}) == len(process.calls), process.calls
    assert set(counts(driver).values()) == {1}
    for worker in workers:
        for_export = {"cut_into_slices", "slices_for_bucket", "plan_reshard"}
        for_export |= {"choose_senders", "assign_rounds"}
        assert "choose_orders" not in counts(worker)
        assert {name for name, count in counts(worker).items() if count > 1} <= for_export


def counts(process: Process) -> Counter[str]:
    """Count the calls of each planner."""
    return Counter(name for name, *_ in process.calls)


def test_every_step_tells_its_stage_times_bytes_and_memory(whole_run: Program) -> None:
    into_rollout = ("reshard", "release_actor_weights", "bring_kv_cache")
    for step in whole_run.steps():
        for stage in ("rollout", "reward", "update", "step"):
            assert step[f"seconds/{stage}"] > 0
        for swap in ("release_rollout", "bring_actor_weights", "bring_actor_optimizer"):
            assert step[f"seconds/swap_{swap}"] > 0
        # Behind an evaluation the engine is awake, with these very weights.
        behind_evaluation = step["step"] in (1, 6)
        for swap in into_rollout:
            assert (f"seconds/swap_{swap}" in step) is not behind_evaluation
        assert step["bytes/to_device_actor_weights"] > 0
        assert step["memory/rss_bytes_min"] > 1 << 20


def test_the_timelines_of_two_steps_and_of_one_on_request_tell_what_the_metrics_tell(
    whole_run: Program,
) -> None:
    steps = sorted(int(path.stem[5:]) for path in (whole_run.folder / "trace").iterdir())
    assert steps[:2] == [1, 2]
    (asked,) = steps[2:]
    assert asked > 2
    for step in steps:
        timeline = check_step(whole_run, step)
        assert timeline.processes() == ["driver", "worker-0", "worker-1"]
        assert timeline.about["clock_shift_ns"] == dict.fromkeys(timeline.processes(), 0)
        assert timeline.named("driver", "reward call")
        for worker in timeline.processes()[1:]:
            for name in ("engine step", "forward", "backward", "optimizer step"):
                assert timeline.named(worker, name), name
            # Behind an evaluation the engine is awake, with these very weights.
            assert bool(timeline.named(worker, "reshard round")) is (step not in (1, 6))
            phases = [event.name for event in timeline.tracks[worker, "phase"]]
            assert {"rollout", "swap to train", "train"} <= {*phases}


def test_final_answers_are_worked_and_not_a_format_trick(whole_run: Program) -> None:
    check_worked(whole_run)


def check_worked(program: Program) -> None:
    last = program.evaluations(program.summary()["steps"])
    for row in random.Random(5).sample(last, 40):
        if row["parts"]["math_verify"] == 1.0:
            left, right = re.search(r"(\d+)\+(\d+)=\?", row["prompt"]).groups()
            worked, boxed = row["response"].split("\\boxed{")
            # The units column is worked out, with the digits of this very question.
            units = int(left[-1]) + int(right[-1])
            assert f"{left[-1]}+{right[-1]}={units}" in worked, row
            assert int(boxed.rstrip("}")) == int(left) + int(right)


@pytest.mark.nightly
def test_the_exported_model_answers_alike_in_vllm_and_transformers(whole_run: Program) -> None:
    summary = whole_run.summary()
    expected = [row["response"] for row in whole_run.evaluations(summary["steps"])]
    answers = fresh_answers(summary["model"], count=32)
    assert answers["vllm"] == expected
    assert answers["transformers"] == expected[:32]


@pytest.mark.nightly
def test_measured_alone_the_exported_model_answers_as_in_the_runs_last_evaluation(
    whole_run: Program, tmp_path: Path
) -> None:
    run, output = Path(whole_run.summary()["run_dir"]), tmp_path / "measured"
    command = [sys.executable, "cli/evaluate.py", str(run), "--output", str(output)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (output / "evaluations.jsonl").read_text().splitlines()]
    assert found == whole_run.evaluations(whole_run.summary()["steps"])
    (measured,) = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert measured == [row for row in rows if "evaluation/accuracy" in row][-1]


def test_the_plan_predicts_to_the_byte_what_the_steps_measure(whole_run: Program) -> None:
    """Behind an evaluation more is there already, and less is copied; most steps have none."""
    state = RunState(whole_run.folder)
    state.update()
    found = [*state.planned.found()]
    assert len(found) == 4
    assert [each for each in found if each.planned != each.median] == []


def test_the_exported_models_say_what_they_are(whole_run: Program) -> None:
    summary = whole_run.summary()
    record = json.loads((Path(summary["model"]) / "mindrl_export.json").read_text())
    made_with = ("seed", "commit", "versions")
    assert record == {"step": 10, **{name: summary[name] for name in made_with}}
    assert summary["versions"]["mindrl"]
    # The one export of the run is the best one, and takes its room once.
    assert (summary["model_step"], summary["model_best_step"]) == (10, 10)
    assert summary["model_best_accuracy"] == summary["accuracy_after"]
    newest, best = (Path(summary[key]) / "model.safetensors" for key in ("model", "model_best"))
    assert newest.samefile(best)


def test_the_run_leaves_readable_files(whole_run: Program) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole_run.folder / "tensorboard"))
    events.Reload()
    rewards = [event.value for event in events.Scalars("reward/mean")]
    assert rewards == pytest.approx([step["reward/mean"] for step in whole_run.steps()])
    samples = (whole_run.folder / "samples.jsonl").read_text().splitlines()
    assert {"prompt", "response", "reference", "reward"} <= json.loads(samples[0]).keys()
    assert "run completed" in whole_run.text()


@pytest.mark.nightly
def test_sigterm_ends_the_run_whole_and_the_same_seed_gives_the_same_bits(
    whole_run: Program, tiny_model: Path, tmp_path: Path
) -> None:
    program = start_program(tmp_path / "run", [f"actor_config.load={tiny_model}", *TEN_STEPS])
    program.wait_for_steps(3)
    started = program.descendants()
    program.process.send_signal(signal.SIGTERM)

    assert program.process.wait(timeout=60) == 130, program.text()
    assert gone(started, timeout_seconds=10)
    assert program.summary()["status"] == "interrupted"
    assert program.summary()["steps"] >= 3
    assert "stopped by SIGTERM" in program.text()
    # What was learned is not lost, though the run exports at its end only.
    assert program.summary()["model_step"] == program.summary()["steps"] == len(program.steps())
    record = json.loads((program.folder / "model" / "mindrl_export.json").read_text())
    assert record["step"] == program.summary()["steps"]
    assert (program.folder / "model" / "model.safetensors").is_file()
    for mine, theirs in zip(program.steps(), whole_run.steps(), strict=False):
        assert [mine[name] for name in TRACED] == [theirs[name] for name in TRACED]


# The short suite has the name of a killed worker in test_resume.py, and the end of a run that saves
# nothing in test_hung_workers.py.
@pytest.mark.nightly
def test_a_killed_worker_ends_the_run_within_30_seconds_by_name(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = start_program(tmp_path / "run", [f"actor_config.load={tiny_model}"])
    program.wait_for_steps(1)
    started = program.descendants()
    workers = program.workers()
    assert len(workers) == 2
    workers[1].kill()
    killed = time.monotonic()

    assert program.process.wait(timeout=60) == 1
    assert time.monotonic() - killed < 30
    assert gone(started, timeout_seconds=10)
    text = program.text()
    rank = re.search(rf"worker-(\d) \(rank \1, process {workers[1].pid} on [^)]*\) died", text)
    assert rank is not None, text
    assert "during: " in text
    assert "mindrl.cluster.worker_process" in text  # its last log lines
    assert program.summary()["status"] == "failed"


@pytest.mark.nightly
def test_ctrl_c_while_workers_start_leaves_nothing_behind(tiny_model: Path, tmp_path: Path) -> None:
    program = start_program(tmp_path / "run", [f"actor_config.load={tiny_model}"])
    deadline = time.monotonic() + 120
    while len(program.workers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    started = program.descendants()
    assert started
    # As a terminal does: to every process of the foreground group at once.
    os.killpg(program.process.pid, signal.SIGINT)

    assert program.process.wait(timeout=60) == 130, program.text()
    assert gone(started, timeout_seconds=10)
    assert program.summary()["status"] == "interrupted"
