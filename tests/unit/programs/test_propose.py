"""`plan run`: output, files and refusals."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from user_programs import without_torch

from mindrl.platform.device_models import EXAMPLE_DEVICE
from mindrl.programs.entry import start

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "plan-a-run.md"
FOLDER = str(ROOT / "configs" / "models" / "Qwen2.5-7B")


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `plan run`, for Qwen2.5-7B on 8 devices where the arguments do not say otherwise."""
    asked = ["--model", FOLDER, "--devices", "8", "--device", EXAMPLE_DEVICE]
    monkeypatch.setattr(sys, "argv", ["plan.py", "run", *asked, *arguments])
    return start("plan")


def checked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["check.py", *arguments])
    return start("check")


def test_the_docs_show_what_the_program_prints_without_torch() -> None:
    page = PAGE.read_text("utf-8")
    block = page.split("```text\n")[1].split("```")[0]
    command = page.split("    python cli/plan.py run ")[1].split("\n\n")[0]
    arguments = command.replace("\\\n", " ").split()
    ended = without_torch("cli/plan.py", "run", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == block
    assert ended.stderr == ""  # no progress where nobody looks


def test_what_is_written_passes_the_checks_and_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "mine.yaml"
    assert ran(monkeypatch, "--algorithm", "ppo", "--top", "1", "-o", str(ours)) == 0
    printed = capsys.readouterr().out.splitlines()
    command = f"mindrl check --config-dir {tmp_path} --config-name mine --elsewhere"
    assert printed[-1] == f"written: {ours}; next: {command}"
    assert checked(monkeypatch, *command.split()[2:], "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["findings"] == []
    assert answer["memory_checked"] is True
    notes = [note["field"] for note in answer["not_checked"]]
    assert notes == ["megatron_training.data_path", "actor_config.load"]  # no data, no weights
    before = ours.read_text("utf-8")
    assert ran(monkeypatch, "--top", "1", "-o", str(ours)) == 1
    assert f"-o {ours}: file exists already" in capsys.readouterr().err
    assert ours.read_text("utf-8") == before


def test_a_name_alone_is_enough_and_json_has_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "--model", "Qwen2.5-7B", "--top", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["devices"]) == ("./models/Qwen2.5-7B", 8)
    proposal, other = answer["proposals"]
    assert (proposal["rank"], other["rank"]) == (1, None)
    assert proposal["config"]["actor_config.load"] == "./models/Qwen2.5-7B"
    assert proposal["config"]["rl_config.device_memory_mib"] == 62400
    assert proposal["device_bytes"] == 62400 << 20
    assert proposal["peak_bytes"] <= proposal["with_activations_bytes"] <= 0.9 * (62400 << 20)
    assert proposal["step_seconds"] == pytest.approx(sum(proposal["seconds"].values()))


@pytest.mark.nightly
def test_engines_are_ranked_as_one_and_the_first_is_written_in_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each engine alone says the same of its layouts; on NPUs archon's samples share a prompt."""
    ours, asked = tmp_path / "mine.yaml", ("--devices", "16", "--top", "4", "--json")
    assert ran(monkeypatch, *asked, "-o", str(ours)) == 0
    answer = json.loads(capsys.readouterr().out)
    alone = []
    for engine in ("megatron", "archon"):
        assert ran(monkeypatch, *asked, "--engine", engine) == 0
        figures = json.loads(capsys.readouterr().out)
        alone += figures["proposals"]
        counts = {name: figures[name] for name in answer["engines"][engine] if name != "refused"}
        assert answer["engines"][engine] == {**counts, "refused": None}
    alone.sort(key=lambda each: (each["step_seconds"], each["training"]))
    rows = answer["proposals"]
    assert [each["rank"] for each in rows] == [1, 2, 3, 4, None]
    assert [each["training"] for each in rows[:4]] == [each["training"] for each in alone[:4]]
    assert [each["engine"] for each in rows] == [*["archon"] * 4, "megatron"]
    gap = rows[4]["step_seconds"] - rows[0]["step_seconds"]
    assert rows[4]["behind_the_first"].startswith(f"{gap:.1f} s slower than the first: ")
    assert rows[3]["config"]["actor_config.backend"] == rows[3]["training"]
    assert "pipeline_model_parallel_size" not in str(rows[3]["config"])
    assert f'backend: "{rows[0]["training"]}"' in ours.read_text("utf-8")
    named = ("--config-dir", str(tmp_path), "--config-name", "mine", "--elsewhere")
    assert checked(monkeypatch, *named) == 0


@pytest.mark.nightly
def test_what_another_engine_cannot_build_is_told_beside_the_one_that_can(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    random_model_of: Callable[..., Path],
) -> None:
    told = "latent attention, shared experts, a bias of expert routing, expert groups"
    big = ("--model", "DeepSeek-V3", "--devices", "2048", "--top", "1", "--json")
    assert ran(monkeypatch, *big) == 0
    engines = json.loads(capsys.readouterr().out)["engines"]
    assert sorted(engines) == ["archon", "megatron"]
    assert (
        engines["archon"]["refused"] == f"actor_config.backend=archon:d2048: {told} need megatron"
    )
    short = ("--prompt-tokens", "16", "--response-tokens", "16", "--top", "1")
    assert (
        ran(monkeypatch, "--model", str(random_model_of("stablelm")), "--devices", "2", *short) == 0
    )
    out = capsys.readouterr().out
    assert "fsdp: legal training layouts: 1, rollout: 2;" in out
    assert out.count("model_type='stablelm' is not supported") == 2  # by megatron and by archon
    assert "\n1.  fsdp    d2 " in out


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--device", "ascend-910b-64"), 2, "did you mean ascend-910b-64g or ascend-910c-64g?"),
        (("--devices", "12"), 2, "--devices 12 must fill nodes of 8; nearest: 8, 16; or set"),
        (("--devices", "8192"), 2, "--devices 8192: the maximum is 4096"),
        (
            ("--model", "Qwen2.5-8B"),
            2,
            "model folder Qwen2.5-8B does not exist; did you mean 'Qwen2.5-7B'? known names: Deep",
        ),
        (("-o", "mine.yml"), 2, "-o mine.yml: must end in .yaml"),
        (("--prompts-per-step", "1", "--samples", "1"), 2, "must be 2 or more"),
        (
            ("--response-tokens", "131072"),
            2,
            "exceeds the model's max_position_embeddings=131072",
        ),
        (
            ("--devices", "2", "--device", "ascend-910b-32g"),
            1,
            "archon: it fits with --devices 8: archon:d2t4 -> vllm:d2t4",
        ),
    ],
)
def test_what_cannot_be_answered_says_why(
    arguments: tuple[str, ...],
    code: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ran(monkeypatch, *arguments) == code
    told = capsys.readouterr()
    assert reason in told.err
    assert told.err.startswith("error: ")
    assert told.out == ""


@pytest.mark.nightly
def test_with_lengths_orders_of_steps_are_laid_out_and_the_most_useful_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "mine.yaml"
    lengths = ("--mean-tokens", "600", "--p99-tokens", "2000", "--engine", "megatron")
    assert ran(monkeypatch, "--devices", "16", *lengths, "--json", "-o", str(ours)) == 0
    orders = json.loads(capsys.readouterr().out)["orders"]
    useful = [each["useful"] for each in orders]
    # In turns and three of partial on shared devices; in turns, one step off and three apart.
    assert (len(orders), useful) == (9, sorted(useful, reverse=True))
    command = ("--config-dir", str(tmp_path), "--config-name", "mine", "--elsewhere", "--json")
    assert checked(monkeypatch, *command) == 0
    assert json.loads(capsys.readouterr().out)["memory_checked"] is True
    assert f"max_staleness: {orders[0]['max_staleness']}" in ours.read_text("utf-8")


def test_one_of_two_lengths_is_not_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "--mean-tokens", "600") == 2
    assert "--p99-tokens is missing" in capsys.readouterr().err
