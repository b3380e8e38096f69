"""Fixtures that several tests of runs share, created once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from house_entries.entered_functions import COUNTED, FOLDER
from house_run import PLANNERS
from program import (
    CHECKOUT,
    ENTRIES,
    KEEPS,
    STARTED,
    TEN_STEPS,
    Program,
    end,
    listening,
    start_program,
)

from mindrl.tiny.recipe import Family


@pytest.fixture(autouse=True)
def _programs_end_with_their_test() -> Iterator[None]:
    """End programs that a failed test has left running: they would slow down all later tests."""
    before = len(STARTED)
    yield
    for program in STARTED[before:]:
        end(program)


def _untaught(folder: Path, family: Family) -> Path:
    """Save a quickstart's model as it is before its warm start."""
    from mindrl.tiny.chat_model import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=1, family=family).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def untaught_moe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's mixture of experts before its warm start."""
    return _untaught(tmp_path_factory.mktemp("moe") / "model", "qwen3_moe")


def _taught(folder: Path, data: Path, family: Family) -> Path:
    """Create a quickstart's model unless it is up to date."""
    program = (
        "from pathlib import Path; from mindrl.programs.tiny import made_model; "
        f"print(made_model(Path({str(folder)!r}), Path({str(data)!r}), 1, {family!r}))"
    )
    # In a process of its own, which may start Ray.
    subprocess.run([sys.executable, "-c", program], check=True)
    return folder


@pytest.fixture(scope="session")
def taught_delta_model(tiny_data: Path) -> Path:
    """The quickstart's model with gated delta nets."""
    return _taught(tiny_data.parent / "qwen35_model", tiny_data, "qwen3_5_text")


@pytest.fixture(scope="session")
def taught_delta_mixture(tiny_data: Path) -> Path:
    """The quickstart's mixture of experts with gated delta nets."""
    return _taught(tiny_data.parent / "qwen35_moe_model", tiny_data, "qwen3_5_moe_text")


@pytest.fixture(scope="session")
def untaught_delta_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model with gated delta nets before its warm start."""
    return _untaught(tmp_path_factory.mktemp("delta") / "model", "qwen3_5_text")


@pytest.fixture(scope="session")
def kept_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """An undisturbed run with its checkpoints and rollouts; tests must not change it."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    asked = ["rl_config.test_freq=3", f"actor_config.load={tiny_model}", *KEEPS]
    run = start_program(folder, asked)
    assert run.process.wait(timeout=600) == 0, run.text()
    return run


@pytest.fixture(scope="session")
def watched_run(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Program, set[str]]:
    """A run of the quickstart's configuration, and the addresses it listened on.

    Tests must not change it.
    """
    folder = tmp_path_factory.mktemp("whole")
    (folder / ENTRIES).mkdir()
    program = start_program(
        folder / "run",
        [f"actor_config.load={tiny_model}", *TEN_STEPS],
        {
            "PYTHONPATH": os.pathsep.join(map(str, [CHECKOUT / "scripts/house_entries", CHECKOUT])),
            FOLDER: str(folder / ENTRIES),
            COUNTED: ",".join(name for names in PLANNERS for name in names),
        },
    )
    program.wait_for_steps(1)
    addresses = {address for address, _ in listening(program.process.pid)}
    program.wait_for_steps(2)
    program.process.send_signal(signal.SIGUSR1)
    code = program.process.wait(timeout=600)
    assert code == 0, program.text()
    return program, addresses


@pytest.fixture(scope="session")
def whole_run(watched_run: tuple[Program, set[str]]) -> Program:
    """The run alone."""
    return watched_run[0]
