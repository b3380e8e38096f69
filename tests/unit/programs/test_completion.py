"""The scripts of `mindrl completion`, in real shells without any Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.config.load import field_names
from mindrl.programs.completion import script
from mindrl.programs.entry import OTHER_NAMES, PROGRAMS, start

ZSH, FISH = shutil.which("zsh"), shutil.which("fish")
COMPLETED = {
    "mindrl pla": ["plan"],
    "mindrl plan me": ["memory"],
    "mindrl plan memory --dev": ["--device-memory-gib", "--device"],
    "mindrl tiny --family ": [*("qwen2", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text")],
    "mindrl completion ": ["--help", "bash", "zsh", "fish"],
    "mindrl train --config-name grpo_tiny": ["grpo_tiny_cpu", "grpo_tiny_moe_cpu"],
    "mindrl check --config-name=ppo_t": ["ppo_tiny_cpu"],
    "mindrl train rl_config.adv_estimator=group": ["group_norm", "group_mean"],
    "mindrl train --dry-run rl_config.adv_": ["rl_config.adv_estimator="],
    "mindrl train rl_config.tracking.off": ["rl_config.tracking.offline="],
    "mindrl train rl_config.tracking.offline=": ["true", "false"],
    "mindrl train --config-name grpo_tiny_cpu generate": ["generate_config."],
    "mindrl job train +recipe=da": ["dapo"],
    "mindrl train +": ["+recipe="],
    # These are files, which the shell completes.
    "mindrl tiny --output ": [],
    "mindrl train actor_config.load=/": [],
    "mindrl train --resume out": [],
}
"""By typed line: what bash gets; of key=value it replaces only the value."""
ASK = r"""
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    _mindrl_bash 2>/dev/null
    printf '%s\n' "${COMPREPLY[*]}"
done
"""


def in_shell(
    shell: str, program: str, folder: Path, lines: list[str], *arguments: str
) -> list[str]:
    """Run a program after the script of a shell, without a PATH; returns the lines it prints."""
    source = folder / "script"
    source.write_text(f"{script(Path(shell).name)}\n{program}", "utf-8")
    done = subprocess.run(
        [shell, *arguments, source],
        input="".join(f"{line}\n" for line in lines),
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_bash_completes_programs_options_names_keys_and_values(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    answers = in_shell(bash, ASK, tmp_path, [*COMPLETED])
    found = dict(zip(COMPLETED, map(str.split, answers), strict=True))
    assert {line: words for line, words in found.items() if words != COMPLETED[line]} == {}


def test_every_program_and_every_key_is_completed(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    typed = ["mindrl ", "mindrl plan ", "mindrl job ", "mindrl train rl_config."]
    first, plan, job, keys = map(str.split, in_shell(bash, ASK, tmp_path, typed))
    names = {f"plan {each}" for each in plan} | {f"job {each}" for each in job} | {*first}
    assert {*PROGRAMS, *OTHER_NAMES} <= names
    known = {f"rl_config.{name}" for name in field_names(["rl_config"])}
    sections = {name for name in known if field_names(name.split("."))}
    assert {key.removesuffix("=") for key in keys if key.count(".") == 1} == known - sections


def test_a_word_before_the_cursor_counts_and_one_after_it_does_not(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ask = (
        'COMP_LINE="mindrl pl memory" COMP_POINT=9; _mindrl_bash; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert in_shell(bash, ask, tmp_path, []) == ["plan"]


def test_the_script_of_bash_has_no_finding(tmp_path: Path) -> None:
    file = tmp_path / "mindrl.bash"
    file.write_text(script("bash"), "utf-8")
    found = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "-s", "bash", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.skipif(ZSH is None, reason="zsh is not installed")
def test_zsh_finds_the_same_words(tmp_path: Path) -> None:
    ask = "while IFS= read -r line; do print -- $(_mindrl_candidates ${(s: :)line}); done"
    typed = ["train rl_config.adv_estimator=", "tiny --family q"]
    assert ZSH is not None
    values, families = in_shell(ZSH, ask, tmp_path, typed, "-f", "-c", "compdef() :; . $0")
    assert "rl_config.adv_estimator=rloo" in values.split()
    assert families.split() == ["qwen2", "qwen3_moe"]


@pytest.mark.skipif(FISH is None, reason="fish is not installed")
def test_fish_completes_the_same_words_and_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    ask = f"cd {tmp_path}; while read -l line; echo (complete -C $line); end"
    source = f". {tmp_path / 'script'}; "
    typed = [line for line, words in COMPLETED.items() if words]
    files = ["mindrl tiny --output ou", "mindrl train actor_config.load=ou"]
    assert FISH is not None
    answers = in_shell(FISH, "", tmp_path, [*typed, *files], "--no-config", "-c", source + ask)
    found = dict(zip([*typed, *files], map(str.split, answers), strict=True))
    # Of key=value fish gets the whole word, and it sorts.
    wanted = {
        line: sorted(f"{line.rpartition(' ')[2].partition('=')[0]}={word}" for word in words)
        if "=" in line and not words[0].endswith("=")
        else sorted(words)
        for line, words in COMPLETED.items()
        if words
    }
    wanted |= dict(zip(files, (["outputs/"], ["actor_config.load=outputs/"]), strict=True))
    different = {line: words for line, words in found.items() if sorted(words) != wanted[line]}
    assert different == {}


def test_the_program_prints_the_script_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mindrl", "zsh"])
    assert start("completion") == 0
    assert capsys.readouterr().out == script("zsh")
    assert script("zsh").startswith("#compdef mindrl\n")
