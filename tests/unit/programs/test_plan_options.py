"""The options that check, `plan memory` and `plan explain` share."""

import json
import sys
from pathlib import Path

import pytest

from mindrl.programs.entry import start

ROOT = Path(__file__).parents[3]
RUN = (
    "--config-name",
    "grpo_qwen25_7b",
    f"actor_config.load={ROOT / 'configs' / 'models' / 'Qwen2.5-7B'}",
)


def capacity(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["plan.py", "memory", *RUN, *arguments, "--json"])
    return start("plan")


def test_a_device_by_name_is_its_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capacity(monkeypatch, "--device", "ascend-910b-64g") == 0
    named = json.loads(capsys.readouterr().out)
    assert named["capacity_bytes"] == 62400 << 20
    assert capacity(monkeypatch, "--device-memory-gib", "60.9375") == 0
    assert json.loads(capsys.readouterr().out) == named


def test_a_device_of_the_command_line_wins_over_the_memory_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capacity(monkeypatch, "--device", "nvidia-h200-141g") == 0
    assert json.loads(capsys.readouterr().out)["capacity_bytes"] == 142_900 << 20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--device", "ascend"), "--device ascend: unknown device"),
        (("--config-dir", "nowhere"), "--config-dir nowhere: no such folder"),
    ],
)
def test_what_is_not_there_is_refused(
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert capacity(monkeypatch, *arguments) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1e-12", "68719476736", "1e300"])
def test_a_memory_that_no_machine_has_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        capacity(monkeypatch, "--device-memory-gib", text)
    assert f"{text} must be between 0.0001 and 1e+06" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1e-4", "1e6"])
def test_the_smallest_and_the_largest_memory_have_a_plan_or_a_finding(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capacity(monkeypatch, "--device-memory-gib", text) == (1 if text == "1e-4" else 0)
    assert "Traceback" not in capsys.readouterr().err


def test_two_words_for_one_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        capacity(monkeypatch, "--device", "ascend-910b-64g", "--device-memory-gib", "60")
    assert ended.value.code == 2
    assert "not allowed with argument --device" in capsys.readouterr().err


def test_a_configuration_of_another_folder_builds_on_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "configs" / "grpo_qwen25_7b.yaml").read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("num_npus: 8", "num_npus: 7"), "utf-8")
    asked = ["check.py", "--config-dir", str(tmp_path), "--config-name", "mine", "--elsewhere"]
    monkeypatch.setattr(sys, "argv", asked)
    assert start("check") == 1
    told = capsys.readouterr().err
    assert "actor_config.tensor_model_parallel_size=4 must divide" in told
    assert "num_npus=7" in told
