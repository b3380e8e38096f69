"""The `mindrl` command: its programs, their help, and what works where torch is not installed."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from user_programs import without_torch

from mindrl.programs.entry import PROGRAMS

ROOT = Path(__file__).parents[3]
COMMAND = str(Path(sys.executable).with_name("mindrl"))


def started(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python that has no torch and no engines."""
    return without_torch(COMMAND, *arguments, folder=folder)


def test_the_command_lists_its_programs_and_refuses_others() -> None:
    asked = started("--help")
    assert asked.returncode == 0
    assert all(f"  {name} " in asked.stdout for name in PROGRAMS)
    wrong = started("learn")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == asked.stdout


def test_the_command_and_each_of_its_programs_print_the_version() -> None:
    code = (
        "import sys\n"
        "from mindrl.programs.entry import PROGRAMS, main\n"
        "for name in ('', *PROGRAMS):\n"
        "    sys.argv = ['mindrl', *filter(None, [name]), '--version']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        print(name, end.code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wanted = [
        line for name in ("", *PROGRAMS) for line in (f"mindrl {version('mindrl')}", f"{name} 0")
    ]
    assert ended.stdout.splitlines() == wanted


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_each_program_explains_itself_with_an_example_and_without_torch(name: str) -> None:
    asked = started(name, "--help")
    assert asked.returncode == 0, asked.stderr
    text = asked.stdout.lower()
    assert "example" in text or "for instance" in text, asked.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("check", "--config-name", "grpo_qwen25_7b", "--elsewhere"),
            "grpo_qwen25_7b: no findings",
        ),
        (
            ("plan", "explain", "--config-name", "grpo_qwen25_7b"),
            "grpo_qwen25_7b: 8 ranks on 1 machine",
        ),
        (
            ("plan", "memory", "--config-name", "grpo_qwen25_7b", "--device-memory-gib", "60"),
            "peak",
        ),
        (
            (
                *("plan", "reshard", "--model", "Qwen2.5-7B"),
                *("--from", "megatron:d2t4", "--to", "vllm:d4t2"),
            ),
            "received",
        ),
        (
            ("train-grpo", "--config-name", "grpo_qwen25_7b", "--dry-run", "--elsewhere"),
            "the configuration is valid",
        ),
    ],
)
def test_what_only_plans_works_without_torch_and_without_any_model_folder(
    arguments: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    ended = started(*arguments, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert any(each.startswith(line) for each in ended.stdout.splitlines()), ended.stdout


def test_training_without_torch_ends_in_words_that_say_what_to_install(tmp_path: Path) -> None:
    ended = started("train-grpo", "--config-name", "grpo_tiny_cpu", folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: training needs torch, megatron, vllm, which this Python does not have; "
        "`mindrl doctor` says what to install"
    )
