"""Keys of a verl run that have no effect: defaults of a composed file, and copies of other keys."""

from pathlib import Path
from typing import Any

import pytest

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.migrate.mapped import Mapped
from mindrl.migrate.verl import import_verl
from mindrl.migrate.verl_unused import COPIES, UNCHANGED
from mindrl.programs.entry import start

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
PPO: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.strategy": "fsdp",
    "critic.strategy": "fsdp",
    "actor_rollout_ref.model.path": "model",
    "data.train_files": "train.parquet",
    "trainer.total_training_steps": 50,
}


def run_of(keys: dict[str, Any]) -> RunConfig:
    return load_run_config(nested(import_verl({**PPO, **keys}).values))


def entry(key: str, keys: dict[str, Any]) -> Mapped:
    return next(each for each in import_verl({**PPO, **keys}).mapped if each.key == key)


def test_the_defaults_of_a_composed_file_ask_for_no_decision() -> None:
    others = {f"{ACTOR}.profiler.ranks": [], "reward_model.enable": False, f"{ACTOR}.rollout_n": 1}
    imported = import_verl({**PPO, **UNCHANGED, **others})
    open_keys = {each.key for each in imported.mapped if each.kind == "open"}
    assert open_keys == {"reward_model.reward_manager"}
    assert not imported.refused


def test_another_value_than_the_default_is_open() -> None:
    key = f"{ROLLOUT}.ignore_eos"
    assert entry(key, {key: UNCHANGED[key]}).note == "verl's default: the same as without the key"
    assert entry(key, {key: True}).kind == "open"


def test_a_copy_of_another_key_has_no_effect_as_long_as_it_is_one() -> None:
    for key, (other, _) in COPIES.items():
        value = {f"{ROLLOUT}.n": 2, f"{ACTOR}.loss_agg_mode": "token-mean"}.get(other, 64)
        keys = {key: value, other: value}
        if "remove_padding" in key or "trust" in key or key.endswith(".shuffle"):
            keys = dict.fromkeys(keys, False)
        assert entry(key, keys).kind == "ignored", key
    assert entry("critic.ppo_epochs", {"critic.ppo_epochs": 4}).kind == "open"


def test_the_layout_of_the_reference_is_its_own_only_if_it_differs() -> None:
    size = "megatron.tensor_model_parallel_size"
    same = {f"{ACTOR}.{size}": 4, f"{REF}.{size}": 4}
    assert entry(f"{REF}.{size}", same).kind == "ignored"
    other = {**same, f"{REF}.{size}": 2}
    assert run_of(other).ref_config.tensor_model_parallel_size == 2
    alone = {**other, f"{ACTOR}.use_kl_loss": False}
    assert entry(f"{REF}.{size}", alone).kind == "ignored"


def test_a_key_without_effect_needs_no_value_from_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a.parquet "
        "trainer.total_training_steps=5 actor_rollout_ref.model.path=m "
        "actor_rollout_ref.rollout.n=4 "
        "trainer.default_local_dir=$OUT data.seed=$SEED\n",
        "utf-8",
    )
    words = ["import-config", str(script), "-o", str(tmp_path / "ours.yaml")]
    monkeypatch.setattr("sys.argv", words)
    assert start("import-config") == 0
    report = capsys.readouterr().out
    assert "  data.seed\n      needs $SEED" in report
    assert "trainer.default_local_dir\n      needs" not in report
