"""The room that a run asks for before it starts: that of its exports, not a guess."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.checkpoint.files import open_file
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import OutputError
from mindrl.preflight.run_folders import (
    LOG_BYTES,
    check_folders,
    export_bytes,
    export_folders,
)
from mindrl.preflight.run_shardings import RunPlan, unordered_shardings

MakeConfig = Callable[..., RunConfig]
MakeModel = Callable[..., Path]
ROLES: tuple[Role, ...] = ("actor", "critic")


def plan_of(config: RunConfig) -> RunPlan:
    return unordered_shardings(config).plan


def weights_of(folder: Path) -> int:
    with open_file(folder / "model.safetensors", "np") as file:
        return sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118


def room_asked_for(config: RunConfig, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a run says on a disk with 1 MiB left."""
    full = shutil.disk_usage(root)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
    with pytest.raises(OutputError) as caught:
        check_folders(plan_of(config), root, export_folders(config, root))
    return str(caught.value).partition("; the run needs ")[2]


def test_an_export_takes_the_bytes_of_its_tensors_in_the_training_type(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    for family in ("qwen2", "qwen3_moe"):
        model = random_model_of(family)
        whole = export_bytes(plan_of(run_config(model)), "actor")
        assert whole == weights_of(model)
        half = run_config(model, {"megatron_training.bf16": True})
        # A router stays in float32.
        assert whole / 2 <= export_bytes(plan_of(half), "actor") < 0.51 * whole


@pytest.mark.parametrize(
    ("export_interval", "test_data", "copies"),
    [(0, "test.jsonl", 1), (1, None, 2), (1, "test.jsonl", 3), (3, "test.jsonl", 1)],
)
def test_a_disk_must_hold_the_logs_and_the_newest_export_the_next_and_the_best(  # noqa: PLR0917 - a row
    export_interval: int,
    test_data: str | None,
    copies: int,
    random_model_of: MakeModel,
    run_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: dict[str, Any] = {
        "megatron_training.export_interval": export_interval,
        "megatron_training.test_data_path": test_data,
    }
    model = random_model_of("qwen3")
    asked = room_asked_for(run_config(model, changes), tmp_path, monkeypatch)
    export = copies * weights_of(model) / 2**20
    assert asked == (
        f"{64 + export:,.1f} MiB: 64.0 MiB for logs and samples in {tmp_path}, {export:,.1f} MiB "
        f"for {copies} x the exported actor in {tmp_path}"
    )


def test_a_critic_is_counted_beside_the_actor_wherever_it_lies_on_the_disk(
    random_model_of: MakeModel,
    run_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model_of("qwen3")
    changes = {
        "rl_config.adv_estimator": "gae",
        "critic_config.save": str(tmp_path / "elsewhere" / "critic"),
    }
    config = run_config(model, changes)
    actor, critic = (export_bytes(plan_of(config), role) for role in ROLES)
    # One row in the place of 211: a head of 128 weights.
    assert actor - critic == 210 * 128 * 4
    asked = room_asked_for(config, tmp_path, monkeypatch)
    assert asked.startswith(f"{(LOG_BYTES + actor + critic) / 2**20:,.1f} MiB: ")
    assert asked.endswith(f"1 x the exported critic in {tmp_path}/elsewhere")


@pytest.mark.parametrize(
    "keys",
    [
        {"save_interval": 3, "keep_last": 4},
        {"save_interval": 3, "keep_last": 3, "keep_best": True},
    ],
)
def test_checkpoints_that_stay_and_the_next_one_are_counted_by_12_bytes_a_parameter(
    keys: dict[str, Any],
    random_model_of: MakeModel,
    run_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model_of("qwen3")
    changes = {f"megatron_training.{key}": value for key, value in keys.items()}
    asked = room_asked_for(run_config(model, changes), tmp_path, monkeypatch)
    # Of float32 weights and two moments of each, five times.
    assert f"{5 * 3 * weights_of(model) / 2**20:,.1f} MiB for 5 checkpoints in {tmp_path}" in asked


def test_what_a_resumed_run_has_written_already_is_not_asked_for_again(
    random_model_of: MakeModel,
    run_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model_of("qwen3")
    keys = {"save_interval": 3, "keep_last": 4, "keep_every": 6, "export_interval": 1}
    changes = {f"megatron_training.{key}": value for key, value in keys.items()}
    config = run_config(model, changes | {"megatron_training.test_data_path": "test.jsonl"})
    export, state = weights_of(model), 3 * weights_of(model)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(bytes(export))
    # The best one is the newest, and takes no room of its own.
    (tmp_path / "model_best").mkdir()
    (tmp_path / "model_best/model.safetensors").hardlink_to(tmp_path / "model/model.safetensors")

    def needed(steps: int) -> tuple[float, float]:
        for step in range(3, 3 * steps + 1, 3):
            folder = tmp_path / f"checkpoints/step-{step:08}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "actor-00000.safetensors").write_bytes(bytes(state))
        full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
        with pytest.raises(OutputError) as caught:
            check_folders(plan_of(config), tmp_path, {"actor": tmp_path / "model"})
        parts = re.findall(r"([0-9.]+) MiB for (?:3 x|5 check)", str(caught.value))
        return tuple(float(part) for part in parts)  # type: ignore[return-value]

    mib = 2**20
    for steps, copies in ((0, 5), (1, 4), (3, 3), (7, 1), (12, 1)):
        expected = (2 * export / mib, copies * state / mib)
        assert needed(steps) == pytest.approx(expected, abs=0.06), steps


@pytest.mark.parametrize(
    ("keys", "records_mib", "versions"),
    [
        # 8 steps of 64 responses of 16 tokens, 12 bytes each.
        ({}, 8 * 64 * 16 * 12 / 2**20, 8),
        ({"spool_config.publish_every": 2}, 8 * 64 * 16 * 12 / 2**20, 4),
        # A limit of a MiB bounds 2048 responses of 192 bytes a step, one of them beyond it.
        (
            {"megatron_training.global_batch_size": 256, "spool_config.max_records_mib": 1},
            1 + 2048 * 16 * 12 / 2**20,
            8,
        ),
    ],
)
def test_a_spool_must_hold_what_no_checkpoint_has_let_go_of(  # noqa: PLR0917 - a row
    keys: dict[str, Any],
    records_mib: float,
    versions: int,
    random_model_of: MakeModel,
    run_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, spool = random_model_of("qwen3"), tmp_path / "spool"
    changes: dict[str, Any] = {
        "megatron_training.save_interval": 4,
        "megatron_training.global_batch_size": 8,
        "rl_config.n_samples_per_prompt": 8,
        "rl_config.max_staleness": 2,
        "generate_config.sampling_config.max_tokens": 16,
        "spool_config.job": "train",
        "spool_config.folder": str(spool),
    }
    config = run_config(model, changes | keys)
    asked = room_asked_for(config, tmp_path, monkeypatch)
    bound = "(spool_config.max_records_mib bounds them)"
    assert f"{records_mib:,.1f} MiB for records of up to 8 steps {bound} in {spool}" in asked
    weights = versions * weights_of(model) / 2**20
    assert f"{weights:,.1f} MiB for {versions} versions of the weights in {spool}" in asked
    # A train job that comes back finds part of it there.
    spool.joinpath("progress.json").touch()
    assert "records of" not in room_asked_for(config, tmp_path, monkeypatch)


@pytest.mark.parametrize(("taken", "beside"), [("model", ""), ("model_best", ": {}/model_best")])
def test_a_folder_that_an_export_would_replace_is_refused(
    taken: str, beside: str, random_model_of: MakeModel, run_config: MakeConfig, tmp_path: Path
) -> None:
    (tmp_path / taken).mkdir()
    (tmp_path / taken / "mine").touch()
    config = run_config(random_model_of("qwen3"))
    text = f"^actor_config.save={tmp_path}/model{beside.format(tmp_path)} is not empty"
    with pytest.raises(OutputError, match=text):
        export_folders(config, tmp_path)
