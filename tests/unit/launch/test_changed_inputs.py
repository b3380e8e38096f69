"""A run does not resume with other models, data or rewards unless that is allowed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_beginning import PARTS, STEPS, save

from mindrl.checkpoint.commits import Commits, write_synced
from mindrl.checkpoint.fixed_models import fixed_models
from mindrl.config.resume import recorded_config
from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError
from mindrl.launch.beginning import Beginning, beginning
from mindrl.trainer.inputs import input_prints
from mindrl.trainer.run_log import RunFolder


@pytest.mark.parametrize("changes", [{}, {"resume_allow": ["ref_config.load"]}, {"finetune": True}])
def test_a_reference_that_was_replaced_is_refused_by_its_key_unless_that_is_allowed(
    changes: dict[str, Any], tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    weights = reference / "model.safetensors"
    weights.write_bytes(bytes(1 << 20))
    keys = {"rl_config.init_kl_coef": 0.1, "ref_config.load": str(reference)}
    first = run_config(Path("model"), STEPS | keys)
    commits = Commits(tmp_path / "old/checkpoints")
    files = [write_synced(commits.begin(1) / "actor-00000.safetensors", [b"weights"])]
    record = {"config": recorded_config(first), "fixed_models": fixed_models(first)}
    commits.commit(1, files, {**PARTS, **record, "updates": {"actor": 1}})
    assert [*record["fixed_models"]] == ["ref_config.load"]

    named = {"resume": str(tmp_path / "old"), **changes}
    more = {f"megatron_training.{key}": value for key, value in named.items()}
    second = run_config(Path("model"), STEPS | keys | more)
    folder = RunFolder(root=tmp_path / "new")
    assert beginning(second, folder, {}) is not None
    with weights.open("r+b") as file:
        file.seek(1 << 19)
        file.write(b"another")
    if changes:
        assert beginning(second, folder, {}) is not None
        return
    with pytest.raises(CheckpointError, match=r"^ref_config\.load=.* differs from the model of"):
        beginning(second, folder, {})


@pytest.mark.parametrize("changed", ["megatron_training.data_path", "rl_config.verifier_function"])
def test_data_and_rewards_that_were_changed_are_refused_by_key_and_file_unless_that_is_allowed(
    changed: str, tmp_path: Path, run_config: Callable[..., RunConfig]
) -> None:
    data, reward = tmp_path / "train.jsonl", tmp_path / "my_reward.py"
    data.write_text('{"problem": "1+1", "answer": "2"}\n')
    reward.write_text("def score(response, reference):\n    return 1.0\n")
    keys = {
        "megatron_training.data_path": str(data),
        "rl_config.verifier_function": (f"{reward}:score",),
        "rl_config.verifier_weight": (1.0,),
    }

    def begun(**more: Any) -> Beginning | None:
        named = {f"megatron_training.{key}": value for key, value in more.items()}
        config = run_config(Path("model"), STEPS | keys | named)
        return beginning(config, RunFolder(root=tmp_path / "run"), input_prints(config))

    first = run_config(Path("model"), STEPS | keys)
    commits = Commits(tmp_path / "run/checkpoints")
    files = [write_synced(commits.begin(1) / "actor-00000.safetensors", [b"weights"])]
    record = {"config": recorded_config(first), "inputs": input_prints(first)}
    assert changed in record["inputs"]
    commits.commit(1, files, {**PARTS, **record, "updates": {"actor": 1}})
    assert begun() is not None
    file = data if changed.endswith("data_path") else reward
    # As many bytes as before.
    file.write_text(file.read_text().replace("1", "3", 1))
    os.utime(file, (1, 1))
    with pytest.raises(CheckpointError) as error:
        begun()
    said = f"{changed}: the content of {file.name} has changed since the"
    assert str(error.value).startswith(said)
    assert f"megatron_training.resume_allow=[{changed}]" in str(error.value)
    assert begun(resume_allow=(changed,)) is not None
    # After a fault a run continues with the data that it has read at its start.
    assert beginning(first, RunFolder(root=tmp_path / "run"), record["inputs"]) is not None
    # A checkpoint of an earlier version has no fingerprints.
    commits.begin(2)
    commits.commit(2, [], {**PARTS, "config": record["config"], "updates": {}})
    assert begun() is not None


def test_a_changed_file_that_a_reward_imports_is_refused_by_its_name_unless_that_is_allowed(
    tmp_path: Path, run_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    key, reward, helper = "rl_config.verifier_function", "own_reward.py", "helper_of_rewards.py"
    calls = (
        f"import {helper[:-3]}\n\ndef score(response, reference):\n    return {helper[:-3]}.ONE\n"
    )
    (tmp_path / reward).write_text(calls)
    (tmp_path / helper).write_text("ONE = 1.0\n")
    (tmp_path / "other.py").write_text("")
    keys = {key: (f"{tmp_path / reward}:score",), "rl_config.verifier_weight": (1.0,)}
    first = run_config(Path("model"), STEPS | keys)
    record = {"config": recorded_config(first), "inputs": input_prints(first)}
    save(tmp_path / "run", 20, **record)

    def begun(**allowed: Any) -> Beginning | None:
        config = run_config(Path("model"), STEPS | keys | allowed)
        return beginning(config, RunFolder(root=tmp_path / "run"), input_prints(config))

    (tmp_path / "other.py").write_text("changed = True\n")
    assert begun() is not None
    (tmp_path / helper).write_text("ONE = 3.0\n")
    with pytest.raises(CheckpointError) as error:
        begun()
    assert str(error.value).startswith(f"{key}: the content of {helper} has changed since the")
    assert f"megatron_training.resume_allow=[{key}]" in str(error.value)
    assert begun(**{"megatron_training.resume_allow": (key,)}) is not None
