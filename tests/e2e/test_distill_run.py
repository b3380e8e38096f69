"""On-policy distillation: the tiny model becomes like a teacher that was trained from it."""

import shutil
from pathlib import Path

import pytest
from program import Program, start_program

pytestmark = pytest.mark.e2e

TEACHING_STEPS, STEPS = 30, 12


@pytest.fixture(scope="module")
def teacher(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a teacher with the shipped GRPO configuration."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    steps = f"megatron_training.train_iters={TEACHING_STEPS}"
    run = completed(folder, f"actor_config.load={tiny_model}", steps, "rl_config.test_freq=0")
    return run.folder / "model"


def completed(folder: Path, *overrides: str, program: str = "train_grpo") -> Program:
    run = start_program(folder, [*overrides], program=program)
    assert run.process.wait(timeout=600) == 0, run.text()
    return run


def taught(folder: Path, student: Path, teacher: Path, *overrides: str) -> Program:
    return start_program(
        folder,
        [
            "--config-name=distill_tiny_cpu",
            f"actor_config.load={student}",
            f"teacher_config.load={teacher}",
            f"megatron_training.train_iters={STEPS}",
            *overrides,
        ],
    )


@pytest.mark.nightly
def test_the_policy_approaches_its_teacher_without_rewards(
    tmp_path: Path, tiny_model: Path, teacher: Path
) -> None:
    run = taught(tmp_path / "run", tiny_model, teacher)
    assert run.process.wait(timeout=600) == 0, run.text()
    gaps = [step["teacher/kl"] for step in run.steps()]
    assert len(gaps) == STEPS
    # Of 1,280 tokens or more each.
    assert min(gaps[-2:]) < 0.4 * gaps[0]
    summary = run.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.4
    assert summary["logprob_gap_max_mean"] < 1e-4


@pytest.mark.nightly
def test_the_divergence_over_the_most_probable_tokens_falls(
    tmp_path: Path, tiny_model: Path, teacher: Path
) -> None:
    run = taught(tmp_path / "run", tiny_model, teacher, "teacher_config.candidates=8")
    assert run.process.wait(timeout=600) == 0, run.text()
    found = [step["update/teacher_divergence"] for step in run.steps()]
    assert len(found) == STEPS
    assert min(found[-2:]) < 0.4 * found[0]
    summary = run.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.4


def test_a_teacher_with_another_tokenizer_is_refused_before_workers_start(
    tmp_path: Path, tiny_model: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    file = other / "tokenizer.json"
    text = file.read_text("utf-8")
    assert text.count("<|im_end|>") >= 1
    file.write_text(text.replace("<|im_end|>", "<|end|>"), "utf-8")
    run = taught(tmp_path / "run", tiny_model, other)
    assert run.process.wait(timeout=120) == 2
    assert f"teacher_config.load={other} needs the tokenizer in {tiny_model}: " in run.text()
    assert "'<|im_end|>' is token" in run.text()
