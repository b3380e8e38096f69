"""Import of verl keys; no key is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.migrate.verl import import_verl
from mindrl.programs.entry import start

ROOT = Path(__file__).parents[3]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model.path"
DAPO: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "algorithm.filter_groups.max_num_gen_batches": 10,
    "data.train_files": ["data/dapo.parquet"],
    "data.train_batch_size": 512,
    "data.gen_batch_size": 1536,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 20480,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.28,
    f"{ACTOR}.clip_ratio_c": 10.0,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 22528,
    f"{ACTOR}.fsdp_config.param_offload": True,
    f"{ROLLOUT}.n": 16,
    f"{ROLLOUT}.tensor_model_parallel_size": 4,
    f"{ROLLOUT}.max_num_batched_tokens": 22528,
    f"{ROLLOUT}.val_kwargs.temperature": 0.6,
    MODEL: "models/Qwen2.5-32B",
    "reward_model.overlong_buffer.enable": True,
    "reward_model.overlong_buffer.len": 4096,
    "reward_model.overlong_buffer.penalty_factor": 1.0,
    "trainer.nnodes": 16,
    "trainer.total_training_steps": 200,
    "trainer.save_freq": -1,
    "trainer.project_name": "DAPO",
    "trainer.esi_redundant_time": 60,
    "trainer.resume_from_path": None,
}


def run_of(keys: dict[str, Any]) -> RunConfig:
    return load_run_config(nested(import_verl(keys).values))


def test_a_dapo_run_of_verl_is_one_of_ours_and_each_of_its_keys_is_told_of() -> None:
    imported, run = import_verl(DAPO), run_of(DAPO)
    assert (findings(run), imported.refused) == ([], ())
    assert DAPO.keys() <= {each.key for each in imported.mapped}
    rl, sampling = run.rl_config, run.generate_config.sampling_config
    assert (rl.adv_estimator, rl.policy_loss, rl.aggregation) == (
        *("group_norm", "dual_clip", "token_mean"),
    )
    assert (rl.clip_ratio_low, rl.clip_ratio_high, rl.dual_clip_ratio) == (0.2, 0.28, 10.0)
    # 10 times 1536 prompts, in units of 512.
    assert (rl.filter_groups_enable, rl.filter_groups_metric) == (True, "accuracy")
    assert rl.filter_groups_max_batches == 30
    assert (rl.overlong_buffer_enable, rl.overlong_buffer) == (True, 4096)
    assert (rl.init_kl_coef, rl.n_samples_per_prompt, run.world_size) == (0.0, 16, 128)
    assert (sampling.max_tokens, run.megatron_training.seq_length) == (20480, 22528)
    assert run.actor_config.adam_beta2 == 0.999
    kinds = {each.key: each.kind for each in imported.mapped}
    assert kinds["trainer.esi_redundant_time"] == "open"
    assert kinds["trainer.project_name"] == kinds["trainer.resume_from_path"] == "ignored"


def test_what_is_left_out_keeps_the_meaning_that_verl_gives_it() -> None:
    given: dict[str, Any] = {
        "actor_rollout_ref.model.path": "model",
        "algorithm.adv_estimator": "grpo",
        "trainer.total_training_steps": 10,
    }
    run = run_of(given)
    assert run.megatron_training.global_batch_size == 1024
    assert (run.rl_config.mini_batch_size, run.rl_config.n_samples_per_prompt) == (256, 1)
    assert run.generate_config.infer_tensor_parallel_size == 2
    assert run.megatron_training.prompt_column == "prompt"
    assert (run.rl_config.kl_cov_ratio, run.rl_config.kl_cov_coef) == (2e-3, 1.0)
    by_covariance = run_of({**given, f"{ACTOR}.policy_loss.loss_mode": "kl_cov"}).rl_config
    assert (by_covariance.kl_cov_ratio, by_covariance.kl_cov_coef) == (2e-4, 0.1)
    critic = run_of(given | {"algorithm.adv_estimator": "gae"}).critic_config
    assert critic is not None
    assert (critic.lr, critic.adam_beta2) == (1e-5, 0.999)


@pytest.mark.parametrize(("theirs", "ours"), [(0, 0), (1, 0), (2, 1), (20, 19)])
def test_a_warm_up_of_the_critic_ends_before_the_step_with_its_number(
    theirs: int, ours: int
) -> None:
    key = "trainer.critic_warmup"
    (found,) = [each for each in import_verl({key: theirs}).mapped if each.key == key]
    assert (found.kind, found.sets) == ("derived", {"rl_config.critic_warmup": ours})
    without = import_verl({key: theirs, "algorithm.adv_estimator": "grpo"})
    (found,) = [each for each in without.mapped if each.key == key]
    assert found.kind == "ignored"


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        ("data.truncation", "error", "left"),
        ("trainer.val_before_train", True, False),
        (f"{ROLLOUT}.do_sample", True, False),
    ],
)
def test_a_value_that_mindrl_has_in_every_run_is_open_if_it_is_another(
    key: str, same: object, other: object
) -> None:
    for value, kind in ((same, "ignored"), (other, "open")):
        (found,) = [each for each in import_verl({key: value}).mapped if each.key == key]
        assert found.kind == kind


@pytest.mark.parametrize(
    ("keys", "coefficient", "in_reward"),
    [
        ({}, 0.0, False),
        ({f"{ACTOR}.use_kl_loss": True}, 0.001, False),
        ({f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.02}, 0.02, False),
        ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.3}, 0.3, True),
        ({f"{ACTOR}.kl_loss_coef": 0.02, f"{ACTOR}.use_kl_loss": False}, 0.0, False),
    ],
)
def test_the_kl_term_is_where_verl_has_it(
    keys: dict[str, Any], coefficient: float, in_reward: bool
) -> None:
    rl = run_of({**DAPO, **keys}).rl_config
    assert (rl.init_kl_coef, rl.use_kl_in_reward) == (coefficient, in_reward)


@pytest.mark.parametrize(
    ("loss", "ours"),
    [
        ("vanilla", "token_mean"),
        ("cispo", "token_mean"),
        ("gspo", "sequence_mean"),
        ("sapo", "sequence_mean"),
        ("geo_mean", "sequence_mean"),
    ],
)
def test_losses_of_sequences_are_a_mean_over_sequences(loss: str, ours: str) -> None:
    given = {**DAPO, f"{ACTOR}.policy_loss.loss_mode": loss}
    assert run_of(given).rl_config.aggregation == ours
    given[f"{ACTOR}.loss_agg_mode"] = "token-mean"
    assert run_of(given).rl_config.aggregation == ours


def test_the_clip_ratio_counts_only_for_a_bound_that_is_null() -> None:
    low, high = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
    plain = {key: value for key, value in DAPO.items() if key not in (low, high)}

    def bounds(keys: dict[str, Any]) -> tuple[float | None, float | None, str]:
        given = {**plain, f"{ACTOR}.clip_ratio": 0.1, **keys}
        kinds = {each.key: each.kind for each in import_verl(given).mapped}
        rl = run_of(given).rl_config
        return rl.clip_ratio_low, rl.clip_ratio_high, kinds[f"{ACTOR}.clip_ratio"]

    assert bounds({}) == (0.2, 0.2, "ignored")
    assert bounds({high: 0.28}) == (0.2, 0.28, "ignored")
    assert bounds({low: None, high: 0.28}) == (0.1, 0.28, "derived")
    assert bounds({low: None, high: None}) == (0.1, 0.1, "derived")


def test_the_steps_and_ranks_of_a_profile_are_those_of_verl() -> None:
    steps = {"global_profiler.tool": "torch", "global_profiler.steps": [2, 5]}
    found = run_of({**DAPO, **steps, f"{ACTOR}.profiler.ranks": [0, 3]}).profiler_config
    assert (list(found.profiled_steps), found.profile_ranks) == ([2, 3, 4, 5], (0, 3))
    # A composed file of verl has an empty list.
    assert not import_verl({**DAPO, f"{ACTOR}.profiler.ranks": []}).refused
    other = run_of({**DAPO, **steps, "global_profiler.tool": "nsys"}).profiler_config
    assert list(other.profiled_steps) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.adv_estimator", "grpo_passk"),
        (f"{ACTOR}.policy_loss.loss_mode", "own"),
        (f"{ACTOR}.loss_agg_mode", "own"),
        (f"{ROLLOUT}.name", "own"),
    ],
)
def test_a_part_that_is_not_here_is_refused(key: str, value: str) -> None:
    assert [each.key for each in import_verl({**DAPO, key: value}).refused] == [key]


def test_overrides_as_hydra_keeps_them_become_a_file_and_more_come_on_top(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "overrides.yaml", tmp_path / "ours.yaml"
    lines = [f"+{key}={json.dumps(value)}" for key, value in DAPO.items()]
    theirs.write_text("".join(f"- {json.dumps(line)}\n" for line in lines), "utf-8")
    command = [sys.executable, "cli/import_config.py", str(theirs), f"{ROLLOUT}.n=8"]
    ended = subprocess.run(
        [*command, "-o", str(ours)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    text = ours.read_text("utf-8")
    assert "# Imported from overrides.yaml, a file of verl." in text
    assert "  n_samples_per_prompt: 8\n" in text
    assert "trainer.esi_redundant_time\n      was 60; unknown to mindrl" in ended.stdout


def test_overrides_mean_what_they_mean_to_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = tmp_path / "overrides.yaml", tmp_path / "ours.yaml"

    def ends(*overrides: str, code: int) -> str:
        theirs.write_text(json.dumps([f"+{key}={json.dumps(DAPO[key])}" for key in DAPO]))
        words = ["import-config", str(theirs), *overrides, "-o", str(ours)]
        monkeypatch.setattr("sys.argv", words)
        assert start("import-config") == code
        return capsys.readouterr().err

    several, quoted = f"+{ROLLOUT}={{n:8,val_kwargs:{{n:3}}}}", f"{MODEL}='it: \\'s'"
    assert not ends(several, quoted, "~data.gen_batch_size", "~trainer.save_freq=-1", code=0)
    written = yaml.safe_load(ours.read_text())
    rl = written["rl_config"]
    assert rl["n_samples_per_prompt"] == 8
    # gen_batch_size is deleted, so batches are of 512 prompts.
    assert rl["filter_groups_max_batches"] == 10
    assert written["actor_config"]["load"] == "it: 's"
    ours.unlink()
    for change, reason in {
        "~trainer.foo": "~trainer.foo: nothing before it sets this key",
        "data.seed=1,2": "data.seed=1,2 has several values",
        "data.seed={": "data.seed={ cannot be read: it must be key=value",
        f"{ACTOR}.optim.lr=0.0": f" must be greater than 0 (from {ACTOR}.optim.lr)",
    }.items():
        assert reason in ends(change, code=2)
        assert not ours.exists()


def test_a_reward_function_of_the_user_comes_along_with_its_arguments() -> None:
    place = "custom_reward_function"
    own = {
        f"{place}.path": "rewards/own.py",
        f"{place}.name": "graded",
        f"{place}.reward_kwargs.low": 0.1,
        f"{place}.reward_kwargs.high": 2.0,
    }
    told = {each.key: each.kind for each in import_verl({**DAPO, **own}).mapped}
    assert {told[key] for key in own} == {"renamed", "derived"}
    rl = run_of({**DAPO, **own}).rl_config
    assert rl.verifier_function == ("rewards/own.py:graded",)
    assert rl.verifier_kwargs == ({"low": 0.1, "high": 2.0},)
    unnamed = run_of({**DAPO, f"{place}.path": "own.py"}).rl_config
    assert unnamed.verifier_function == ("own.py:compute_score",)


def test_groups_are_filtered_by_the_accuracy_of_any_reward_and_without_a_limit_of_their_own() -> (
    None
):
    given = {**DAPO, "custom_reward_function.path": "own.py"}
    given.pop("algorithm.filter_groups.max_num_gen_batches")
    run = run_of(given)
    assert (findings(run), run.rl_config.filter_groups_metric) == ([], "accuracy")
    assert run.rl_config.filter_groups_max_batches == 0


@pytest.mark.parametrize(
    "split", [f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.megatron.context_parallel_size"]
)
def test_tokens_per_device_become_tokens_of_the_devices_that_share_a_sequence(split: str) -> None:
    given = {**DAPO, split: 4, f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 30000}
    given["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"] = 20000
    rl = run_of(given).rl_config
    assert rl.max_packing_token_size == 4 * 22528
    assert (rl.actor_max_packing_token_size, rl.ref_max_packing_token_size) == (120000, 80000)
    given.pop(f"{ACTOR}.ppo_max_token_len_per_gpu")
    assert run_of(given).rl_config.max_packing_token_size == 4 * 16384


def test_any_engine_of_verl_becomes_vllm_and_a_wide_clip_range_stays_as_wide() -> None:
    keys = {f"{ROLLOUT}.name": "sglang", f"{ACTOR}.clip_ratio_low": 10, "trainer.device": "cuda"}
    imported, run = import_verl({**DAPO, **keys}), run_of({**DAPO, **keys})
    assert (imported.refused, findings(run)) == ((), [])
    assert (run.rl_config.clip_ratio_low, run.rl_config.device) == (10.0, "gpu")


def test_epochs_become_steps_where_the_rows_are_known_and_are_asked_for_elsewhere() -> None:
    keys = {key: value for key, value in DAPO.items() if key != "trainer.total_training_steps"}
    keys |= {"trainer.total_epochs": 3, "data.train_batch_size": 50, "data.gen_batch_size": 100}
    place = "megatron_training.train_iters"
    # 7 batches of 100 fit into 799 rows; verl leaves the other 99 out.
    assert import_verl(keys, rows=799).values[place] == 3 * 7
    for rows in (None, 99):
        imported = import_verl(keys, rows=rows)
        assert imported.values[place] == "???"
        (entry,) = (each for each in imported.mapped if each.key == "trainer.total_epochs")
        assert (entry.kind, place in entry.note) == ("open", True)


def test_the_step_count_is_that_of_the_data_loader_and_the_lower_of_both_limits() -> None:
    most, limit = "data.train_max_samples", "trainer.total_training_steps"
    keys: dict[str, Any] = {"trainer.total_epochs": 2, "data.train_batch_size": 10, limit: 50}

    def steps(rows: int | None = 100, **more: int) -> tuple[int, str]:
        imported = import_verl({**keys, **{f"data.{key}": more[key] for key in more}}, rows)
        (epochs,) = (each for each in imported.mapped if each.key == "trainer.total_epochs")
        return imported.values["megatron_training.train_iters"], epochs.kind

    assert steps() == (20, "derived")
    assert steps(gen_batch_size=25) == (8, "derived")
    assert steps(train_max_samples=40) == (8, "derived")
    assert steps(1000) == (50, "ignored")
    assert steps(None) == (50, "open")
    kinds = {each.key: each.kind for each in import_verl({**keys, most: 40}, 100).mapped}
    assert kinds[most] == "open"
    # Without a filter, a step has all prompts that the loader returns.
    assert import_verl({**keys, "data.gen_batch_size": 25}).values[
        "megatron_training.global_batch_size"
    ] == (25)


def test_values_that_rules_cannot_calculate_with_are_refused_all_at_once() -> None:
    wrong: dict[str, Any] = {
        "trainer.nnodes": "two",
        "trainer.save_freq": "often",
        "data.train_batch_size": 0,
        f"{ACTOR}.optim.betas": 0.9,
        "critic.optim.betas": [0.9],
        f"{ACTOR}.loss_agg_mode": ["token-mean"],
        f"{ACTOR}.policy_loss.loss_mode": ["vanilla"],
        f"{ACTOR}.kl_loss_type": ["kl"],
        "algorithm.kl_penalty": ["kl"],
        "trainer.logger": True,
        "actor_rollout_ref.model.target_modules": 3,
        f"{ROLLOUT}.name": ["vllm"],
        f"{ACTOR}.optim.lr": "1e-6x",
    }
    with pytest.raises(ConfigError) as refusal:
        import_verl({**DAPO, **wrong})
    assert sorted(str(refusal.value).splitlines()) == [
        f"{ACTOR}.kl_loss_type=['kl'] must be text",
        f"{ACTOR}.loss_agg_mode=['token-mean'] must be text",
        f"{ACTOR}.optim.betas=0.9 must be a list of two numbers",
        f"{ACTOR}.optim.lr='1e-6x' must be a number",
        f"{ACTOR}.policy_loss.loss_mode=['vanilla'] must be text",
        "actor_rollout_ref.model.target_modules=3 must be a name or a list of names",
        f"{ROLLOUT}.name=['vllm'] must be text",
        "algorithm.kl_penalty=['kl'] must be text",
        "critic.optim.betas=[0.9] must be a list of two numbers",
        "data.train_batch_size=0 must be at least 1",
        "trainer.logger=True must be a name or a list of names",
        "trainer.nnodes='two' must be a whole number",
        "trainer.save_freq='often' must be a whole number",
    ]


def test_a_script_is_imported_in_one_go_with_the_steps_of_its_data(tmp_path: Path) -> None:
    script, ours, data = tmp_path / "run.sh", tmp_path / "ours.yaml", tmp_path / "train.jsonl"
    data.write_text('{"prompt": "1+1=?"}\n' * 70, "utf-8")
    script.write_text(
        "set -x\nN=4\nMODEL=${MODEL:-models/Qwen3-8B}\n"
        "python3 -m verl.trainer.main_ppo --config-name=mine algorithm.adv_estimator=grpo \\\n"
        f"  data.train_files={data} data.train_batch_size=16 trainer.total_epochs=5 \\\n"
        f"  {ACTOR}.ppo_mini_batch_size=16 {ROLLOUT}.name=sglang {ROLLOUT}.n=5 \\\n"
        "  actor_rollout_ref.model.path=$MODEL trainer.n_gpus_per_node=$N \\\n"
        '  trainer.project_name="$PROJECT" data.seed=$1 $EXTRA ~data.sampler $@\n',
        "utf-8",
    )
    command = [sys.executable, "cli/import_config.py", str(script), "data.seed=3", "-o", str(ours)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    text = ours.read_text("utf-8")
    assert "# Imported from run.sh, a script of verl." in text
    # 5 epochs of 70 // 16 steps.
    for line in ("train_iters: 20", "load: models/Qwen3-8B", "num_npus: 4", "seed: 3"):
        assert f"  {line}\n" in text
    assert "--config-name\n      the script does not contain the keys of mine.yaml" in ended.stdout
    assert "trainer.project_name\n      needs $PROJECT, which the script does not" in ended.stdout
    assert "$EXTRA\n      it may set further keys of verl" in ended.stdout
    assert "~data.sampler\n      the script deletes this from verl's own config" in ended.stdout
