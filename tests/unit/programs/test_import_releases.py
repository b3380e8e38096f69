"""Files as each release of MindSpeed-RL has them go through import, check and plans."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mindspeed_rl_files import (
    BASE,
    DAPO,
    DEEPSEEK_V3,
    PPO,
    QWEN3_30B,
    QWEN25_7B,
    with_names_of_2_2,
)
from nightly import at_night_but

from mindrl.config.text import nested
from mindrl.programs.entry import start

FEW_LAYERS = {"num_layers": 4}
EXPERTS_OF_16 = {"rl_config.actor_resource.num_npus": 16, "actor_config.moe_tp_extend_ep": True}
SHARED = {"infer_expert_parallel_size": 8, "max_num_seqs": 64, "enable_expert_parallel": True}
CRITIC = {
    f"critic_config.{key}": value
    for key, value in {"model": "dense", "micro_batch_size": 1, "load": "orm"}.items()
}


def generate(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"generate_config.{key}": value for key, value in keys.items()}


FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "2.0": (
        {"rl_config.shuffle_minibatch": False, "megatron_training.bf16": True},
        QWEN25_7B,
    ),
    "2.1 to 2.2": (
        EXPERTS_OF_16 | generate(SHARED) | {"megatron_training.sequence_parallel": True},
        with_names_of_2_2(DEEPSEEK_V3 | FEW_LAYERS),
    ),
    "2.2": (
        DAPO | EXPERTS_OF_16 | {"actor_config.cp_attention_mask_type": "causal"}
        | {"megatron_training.sequence_parallel": True},
        with_names_of_2_2(QWEN3_30B | FEW_LAYERS),
    ),
    "2.2 or later": (PPO | CRITIC | {"rl_config.critic_resource.num_npus": 16}, QWEN25_7B),
    "2.3 or later": (
        EXPERTS_OF_16 | generate(SHARED) | {"megatron_training.sequence_parallel": True},
        DEEPSEEK_V3 | FEW_LAYERS,
    ),
    "later than 2.3": ({"rl_config.data_strategy": "td"}, QWEN25_7B),
}  # fmt: skip


@pytest.mark.parametrize("release", at_night_but(["2.2", "2.3 or later"], FILES))
def test_a_file_of_each_release_is_imported_checked_planned_and_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    release: str,
) -> None:
    changes, model = FILES[release]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "dense.yaml").write_text(yaml.safe_dump({"dense": model}))
    # No model of that name is shipped: its sizes are those of the model file.
    folder = tmp_path / "own-model"
    if release == "later than 2.3":
        folder.mkdir()  # with the tokenizer alone
    values = BASE | {"megatron_training.tokenizer_name_or_path": str(folder)} | changes
    theirs = {"defaults": [{"model": ["dense"]}], **nested(values)}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))

    def ended(program: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        code = start(program)
        return (code, *capsys.readouterr())

    target = str(tmp_path / "ours.yaml")
    code, told, errors = ended("import-config", str(tmp_path / "theirs.yaml"), "-o", target)
    assert (code, errors) == (0, "")
    assert told.splitlines()[0] == f"theirs.yaml, a file of MindSpeed-RL {release}"
    assert json.loads((tmp_path / "ours-sizes.json").read_text())["hidden_size"] > 0

    named = ("--config-dir", str(tmp_path), "--config-name", "ours")
    data = "megatron_training.data_path=train.jsonl"
    note = f"note: {folder} not found; using the sizes of {tmp_path}/ours-sizes.json\n"
    code, told, errors = ended("check", *named, data, "--elsewhere")
    assert (code, errors) == (0, note)
    assert "no findings" in told
    for kind in ("memory", "explain"):
        code, _, errors = ended("plan", kind, *named, data)
        assert (code, errors) == (0, note)


def test_a_check_says_first_that_a_model_cannot_be_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--config-name", "grpo_qwen25_7b", "actor_config.load=/no/own-model")

    def found(*more: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["check", *named, *more, "--elsewhere", "--json"])
        code = start("check")
        findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
        assert code == bool(findings)
        return findings

    (finding,) = found()
    assert finding["text"] == (
        "actor_config.load=/no/own-model: not found, and no shipped sizes have this "
        "name, so the model is not checked or planned; provide its config.json: name it "
        "in actor_config.sizes"
    )
    monkeypatch.setattr(sys, "argv", ["plan", "memory", *named])
    assert start("plan") == 2
    capsys.readouterr()
    # A shipped name will do, and so will the path of a folder or of a config.json.
    assert found("actor_config.sizes=Qwen2.5-7B") == []
    assert found("actor_config.sizes=configs/models/Qwen2.5-7B/config.json") == []
    assert [each["field"] for each in found("actor_config.sizes=/no/sizes.json")] == [
        "actor_config.load"
    ]
    reward = ("actor_config.sizes=Qwen2.5-7B", "+reward_config.load=/no/reward")
    (finding,) = found(*reward)
    assert finding["field"] == "reward_config.load"
    assert finding["need"].endswith("provide its config.json: put it there")
