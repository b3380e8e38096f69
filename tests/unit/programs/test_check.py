"""The check program as a user starts it, on a machine without torch."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from user_programs import python, without_torch

from mindrl.config.finding import Finding

ROOT = Path(__file__).parents[3]
MODEL = "actor_config.load=configs/models/Qwen2.5-7B"
RUN = ("--config-name", "grpo_qwen25_7b", MODEL)
TP = "actor_config.tensor_model_parallel_size"


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without_torch("cli/check.py", *arguments)


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    ended = started(*arguments, "--json")
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_run_for_another_machine_passes_with_what_could_not_be_checked() -> None:
    ended = started(*RUN, "--elsewhere")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        (
            "missing here, so not checked: "
            "megatron_training.data_path=./data/train.jsonl: no such file"
        ),
        (
            "missing here, so not checked: "
            "megatron_training.test_data_path=./data/test.jsonl: no such file"
        ),
        f"missing here, so not checked: {MODEL}: no weight files",
        "grpo_qwen25_7b: no findings",
    ]


def test_a_run_of_a_model_that_is_not_here_is_judged_by_the_shipped_sizes_and_says_so() -> None:
    named = (*RUN[:2], "--elsewhere", "actor_config.load=/no/Qwen2.5-7B")
    ended = started(*named, f"{TP}=8")
    assert ended.returncode == 1
    note, finding, _ = ended.stderr.splitlines()
    assert note == "note: /no/Qwen2.5-7B not found; using the sizes of configs/models/Qwen2.5-7B"
    assert finding == f"error: {TP}=8 must divide num_attention_heads=28; nearest: 7, 14"
    small = answer(*named, "--device-memory-gib", "21", code=1)
    assert small["shipped_sizes"] == {"/no/Qwen2.5-7B": "configs/models/Qwen2.5-7B"}
    assert small["findings"][0]["field"] == "rl_config.device_memory_mib"
    # Where the run is to start here, the missing folder is a finding.
    here = answer(*RUN[:2], named[-1], code=1)
    assert here["shipped_sizes"] == {}
    assert here["findings"][-1]["need"] == "model folder /no/Qwen2.5-7B does not exist"


def test_all_findings_come_at_once_each_with_its_way_out() -> None:
    ended = started(*RUN, f"{TP}=8", "--elsewhere", "rl_config.mini_batch_size=5")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        (
            "error: rl_config.mini_batch_size=5 must divide megatron_training.global_batch_size="
            "32; nearest: 4, 8"
        ),
        ("       legal: rl_config.mini_batch_size=4 or 8; see docs/reference/config.md#rl_config"),
        f"error: {TP}=8 must divide num_attention_heads=28; nearest: 7, 14",
        # Neither 7 nor 14 divides 8 devices.
        f"       legal: {TP}=4 or 2; see docs/reference/config.md#actor_config",
    ]
    assert ended.stdout.splitlines()[-1] == "grpo_qwen25_7b: 2 findings"


def test_a_list_is_shown_as_the_command_line_takes_it() -> None:
    ended = started(*RUN, "--elsewhere", "rl_config.verifier_weight=[1.0]")
    assert "       legal: rl_config.verifier_weight=[1.0,1.0]; see" in ended.stderr
    assert started(*RUN, "--elsewhere", "rl_config.verifier_weight=[1.0,1.0]").returncode == 0


def test_files_that_are_missing_are_findings_where_the_run_is_to_start_here() -> None:
    found = answer(*RUN, code=1)
    assert [(each["field"], each["need"]) for each in found["findings"]] == [
        ("megatron_training.data_path", "no such file"),
        ("megatron_training.test_data_path", "no such file"),
        (
            "rl_config.device",
            "this machine has no such device; rl_config.device=auto selects cpu",
        ),
        (
            "actor_config.load",
            "model folder configs/models/Qwen2.5-7B has no .safetensors file",
        ),
    ]
    assert found["not_checked"] == []


def test_a_finding_as_json_has_field_value_need_legal_values_and_page() -> None:
    (finding,) = answer(*RUN, f"{TP}=8", "--elsewhere", code=1)["findings"]
    assert finding == {
        "field": TP,
        "value": 8,
        "need": "must divide num_attention_heads=28; nearest: 7, 14",
        "legal": [4, 2],
        "doc": "docs/reference/config.md#actor_config",
        "text": f"{TP}=8 must divide num_attention_heads=28; nearest: 7, 14",
    }


def test_a_configuration_of_ones_own_is_read_from_its_folder(tmp_path: Path) -> None:
    own = tmp_path / "with, a comma"
    own.mkdir()
    (own / "mine.yaml").write_text("defaults: [grpo_qwen25_7b, _self_]\nactor_config: {lr: 2e-6}\n")
    ended = started("--config-dir", str(own), "--config-name", "mine", "--elsewhere")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "mine: no findings")
    other = started("--config-dir", str(own), "--config-name", "yours", "--elsewhere")
    assert other.returncode == 2
    assert other.stderr == f"error: {own} has no configuration yours; known: mine\n"


def test_a_backend_string_that_does_not_fit_is_answered_with_strings_that_do() -> None:
    strings = ("actor_config.backend=megatron:d1t8", f"{TP}=null")
    (finding,) = answer(*RUN, *strings, "--elsewhere", code=1)["findings"]
    assert (finding["field"], finding["value"]) == ("actor_config.backend", "megatron:d1t8")
    assert finding["legal"] == ["megatron:d2t4", "megatron:d4t2"]
    fixed = (f"actor_config.backend={finding['legal'][0]}", f"{TP}=null")
    assert answer(*RUN, *fixed, "--elsewhere")["findings"] == []


def test_memory_is_judged_where_it_is_known() -> None:
    """Training keeps 3.55 + 7.09 + 10.64 GiB on a device: see docs/how-to/check-a-run.md.

    Graphs are there too: 11 sizes of 28 layers, 308 MiB.
    """
    unknown = "rl_config.device_memory_mib=null"
    assert answer(*RUN, "--elsewhere", unknown)["memory_checked"] is False
    small = answer(*RUN, "--elsewhere", "--device-memory-gib", "21", code=1)
    (finding,) = small["findings"]
    assert small["memory_checked"] is True
    assert (finding["field"], finding["value"]) == ("rl_config.device_memory_mib", 21504)
    assert finding["legal"] == [21791 + 308]
    host = answer(*RUN, "--elsewhere", unknown, "--host-memory-gib", "100", code=1)
    (finding,) = host["findings"]
    assert finding["text"].startswith("generate_config.offload_train_optimizer=true: ")
    assert finding["legal"] == [False]


def test_a_configuration_that_cannot_be_read_ends_with_code_2() -> None:
    for argument, words in (
        ("rl_config.n_sampels_per_prompt=8", "did you mean rl_config.n_samples_per_prompt?"),
        ("rl_config.epochs=0", "rl_config.epochs=0 must be greater than or equal to 1"),
    ):
        ended = started(*RUN, argument)
        assert ended.returncode == 2
        assert words in ended.stderr
    ended = started("--config-name", "no_such_run")
    assert ended.returncode == 2
    assert "has no configuration no_such_run" in ended.stderr
    for argument, words in (
        ("grpo_tiny_cpu", "did you mean --config-name grpo_tiny_cpu?"),
        ("actor_config.lr=1", "--config-name is missing; name one of "),
    ):
        ended = started(argument)
        assert ended.returncode == 2
        assert words in ended.stderr


def processor_seconds(*arguments: str) -> float:
    before = os.times()
    python("cli/check.py", *arguments)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@pytest.mark.nightly
def test_an_answer_with_memory_costs_less_than_starting_the_program() -> None:
    """Against the help, which starts alike; not by the clock: others keep the machine busy."""
    start = min(processor_seconds("--help") for _ in range(2))
    assert min(processor_seconds(*RUN, "--elsewhere") for _ in range(2)) < 2 * start


def test_help_has_an_example() -> None:
    ended = started("--help")
    assert ended.returncode == 0
    assert "mindrl check --config-name grpo_tiny_cpu" in ended.stdout


def test_every_page_that_a_finding_names_is_there() -> None:
    page = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    sections = re.findall(r"^## (.+)$", page, re.MULTILINE)
    anchors = {f"docs/reference/config.md#{name.replace('.', '')}" for name in sections}
    assert {Finding("", f"{name}.key").doc for name in sections} == anchors


def test_a_rate_and_activations_that_are_hardly_meant_deserve_a_word() -> None:
    """A micro-batch of 64 sequences of 4,096 tokens fits no device, whatever its regions take."""
    odd = (*RUN, "--elsewhere", "--device-memory-gib", "60", "actor_config.lr=5")
    found = answer(*odd, "actor_config.micro_batch_size=64")
    assert (found["findings"], found["memory_checked"]) == ([], True)
    rate, activations = (each["text"] for each in found["warnings"])
    assert rate.startswith("actor_config.lr=5 is unusual: Adam changes a weight by")
    assert activations.startswith("rl_config.device_memory_mib=61440: train needs about ")
    assert answer(*odd[:-1])["warnings"] == []


def test_memory_that_was_not_judged_is_not_called_checked() -> None:
    broken = (*RUN, "--elsewhere", "--device-memory-gib", "60", "rl_config.mini_batch_size=5")
    assert answer(*broken, code=1)["memory_checked"] is False
    said = "device memory not checked: it is checked after the other findings are fixed"
    assert said in started(*broken).stdout
