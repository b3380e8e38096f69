"""What a model is measured on, by which configuration, and the table of what was found."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_run import sample, write_lines
from nightly import at_night_but
from omegaconf import OmegaConf

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.programs.compose import composed
from mindrl.programs.entry import start
from mindrl.programs.evaluate import PROGRAM, measuring_config, rating_config
from mindrl.programs.named_model import NamedModel, named_model
from mindrl.report.measured_sets import measured_sets

APART = ("rl_config.use_integrated_worker=false", "rl_config.rollout_resource.num_npus=1")
ITSELF = "data_config.train_sets=[{name:a,data_path:there.jsonl}]"
KINDS = {
    "on shared devices": (),
    "ahead": (*APART, "rl_config.step_order=asynchronous", "rl_config.max_staleness=1"),
    "on servers": (
        *APART,
        "generate_config.servers=['http://127.0.0.1:8000']",
        "generate_config.server_token_file=token",
    ),
    "on servers of another engine": (
        "rl_config.use_integrated_worker=false",
        "generate_config.backend='sglang:d1'",
        "generate_config.servers=['http://127.0.0.1:8000']",
        "generate_config.server_token_file=token",
    ),
    "with a reward model": ("reward_config={load:models/reward,weight:1.0}",),
    "rewarded by a model alone": (
        "reward_config={load:models/reward,weight:1.0}",
        "rl_config.verifier_function=[math_verify]",
        "rl_config.verifier_weight=[0.0]",
        "rl_config.filter_groups_enable=true",
        "rl_config.filter_groups_metric=model",
    ),
    "with a reference": ("rl_config.init_kl_coef=0.1", "rl_config.use_kl_in_reward=true"),
    "with a reference on its own device": (
        "actor_config.backend=megatron:d1",
        "rl_config.actor_resource.num_npus=1",
        "rl_config.init_kl_coef=0.1",
        "rl_config.reference_resource.first_npu=1",
        "generate_config.infer_tensor_parallel_size=2",
    ),
    "of several sets in an order": (
        "megatron_training.data_path=null",
        ITSELF,
        "data_config.order=by_column",
        "data_config.order_column=difficulty",
    ),
    "that is tracked": ("rl_config.tracking.trackers=[wandb]",),
    "that saves": ("megatron_training.save_interval=5", "megatron_training.keep_best=true"),
    "with other engines": ("actor_config.backend='archon:d2'",),
    "of a train job": ("spool_config.folder=spool", "spool_config.job=train"),
    "of a critic that began alone": ("rl_config.critic_warmup=1",),
    "of replayed experts": ("actor_config.router_replay=R3",),
    "that is profiled": (
        "profiler_config.profile=true",
        "profiler_config.profile_step_start=2",
        "profiler_config.profile_step_end=3",
    ),
    "on stored responses": ("rl_config.debug_rollouts=rollouts",),
}
BY_DAY = (
    *("on servers of another engine", "rewarded by a model alone"),
    *("with a reference on its own device", "with a reward model"),
    *("of several sets in an order", "that saves", "of a train job"),
    *("of a critic that began alone", "of replayed experts", "that is profiled"),
    "on stored responses",
)


def config_of(
    *overrides: str, name: str = "grpo_tiny_cpu", data: Sequence[str] = (), **changes: object
) -> RunConfig:
    given = {"config_name": name, "overrides": [*overrides], "data": [*data], "samples": 1}
    options = argparse.Namespace(**given | {"temperature": None} | changes)
    return measuring_config(options, NamedModel(folder=Path("models/it's here"), run=None))


@pytest.mark.parametrize("kind", at_night_but(BY_DAY, KINDS))
def test_a_model_of_any_run_is_measured_by_engines_alone(kind: str) -> None:
    config = config_of(*KINDS[kind])
    assert findings(config) == []
    assert (config.learns, config.rolls_out, config.roles) == (False, True, ("actor",))
    assert config.actor_config.load == "models/it's here"
    assert config.megatron_training.data_path == ".cache/tiny/data/test.jsonl"


def test_what_was_held_out_of_the_training_data_is_found_by_all_of_it() -> None:
    changes = ("data_config.held_out_fraction=0.1", "megatron_training.test_data_path=null")
    config = config_of(*changes)
    assert findings(config) == []
    assert config.megatron_training.data_path == ".cache/tiny/data/train.jsonl"
    on_files = config_of(*changes, data=("a/math.jsonl",))
    assert on_files.data_config.held_out_fraction == 0
    assert on_files.megatron_training.data_path == "a/math.jsonl"


@pytest.mark.parametrize(
    ("name", "key"), [("sft_tiny_cpu", "sft_config"), ("dpo_tiny_cpu", "preference_config")]
)
def test_a_run_that_samples_no_answers_is_refused(name: str, key: str) -> None:
    """Its lengths, sampling and rewards are defaults, which suit neither model nor data."""
    with pytest.raises(ConfigError, match=f"{key}: .* models/it's here --config-name NAME"):
        config_of(name=name)


def test_the_model_of_a_run_with_a_critic_is_measured_too() -> None:
    assert findings(config_of(name="ppo_tiny_cpu")) == []


def test_each_file_is_a_set_of_its_name_and_one_answer_is_greedy() -> None:
    data = ("a/math.jsonl", "b/my rows (1).jsonl")
    config = config_of(data=data)
    sets = config.data_config.eval_sets
    assert [each.name for each in sets] == ["math", "my_rows__1_"]
    assert [each.data_path for each in sets] == [*data]
    assert {(each.samples, each.temperature) for each in sets} == {(1, 0.0)}
    assert config.megatron_training.test_data_path is None
    several = config_of(data=data, samples=8).data_config.eval_sets
    assert {(each.samples, each.temperature) for each in several} == {(8, 1.0)}
    assert config_of(data=data, temperature=0.5).data_config.eval_sets[0].temperature == 0.5
    with pytest.raises(ConfigError, match="files need different names"):
        config_of(data=("a/math.jsonl", "b/math.jsonl"))


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    PROGRAM.add_options(parser)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["evaluate", *arguments])
        return PROGRAM.parse(parser)


def test_changes_may_stand_where_a_model_or_a_file_would() -> None:
    column, output = ("--write-column", "rate"), ("--output", "new.jsonl")
    for arguments in (
        ("rl_config.epochs=2", "--data", "a.jsonl"),
        ("--data", "a.jsonl", "rl_config.epochs=2"),
    ):
        options = parsed(*column, *output, *arguments)
        assert (options.model, options.data) == (None, ["a.jsonl"])
        assert options.overrides == ["rl_config.epochs=2"]
        rated = rating_config(options, None).rl_config
        assert (rated.epochs, rated.n_samples_per_prompt) == (2, 8)
    warm = rating_config(parsed(*column, *output, "--data", "a", "--temperature", "0.5"), None)
    assert warm.generate_config.sampling_config.temperature == 0.5
    with_digits = parsed("model", "--data", "a.jsonl", "megatron_training.adam_beta1=0.8")
    assert with_digits.overrides == ["megatron_training.adam_beta1=0.8"]
    options = parsed("run", "--data", "a.jsonl", "b.jsonl", "--best", "rl_config.epochs=2")
    assert (options.model, options.data) == ("run", ["a.jsonl", "b.jsonl"])
    for missing in ((), ("--data", "a.jsonl"), ("--data", "a.jsonl", "b.jsonl", *output)):
        with pytest.raises(SystemExit, match="2"):
            parsed(*(column if missing else ()), *missing)


@pytest.mark.parametrize("kind", at_night_but(BY_DAY, KINDS))
def test_rows_are_rated_by_any_configuration_without_evaluations(kind: str) -> None:
    given = ("--write-column", "rate", "--output", "new", "--data", "a.jsonl", "--samples", "4")
    config = rating_config(parsed(*given, *KINDS[kind]), None)
    assert findings(config) == []
    assert config.megatron_training.data_path == "a.jsonl"
    assert config.megatron_training.test_data_path is None
    assert (config.data_config.train_sets, config.data_config.eval_sets) == ((), ())
    assert config.rl_config.n_samples_per_prompt == 4
    assert config.actor_config.load == ".cache/tiny/model"
    once = rating_config(parsed(*given, *KINDS[kind], "--samples", "1"), None)
    assert findings(once) == []
    model = NamedModel(folder=Path("models/mine"), run=None)
    assert rating_config(parsed(*given), model).actor_config.load == "models/mine"
    with pytest.raises(ConfigError, match="verifier_function is empty"):
        rating_config(
            parsed(*given, "rl_config.verifier_function=[]", "rl_config.verifier_weight=[]"), None
        )


def test_a_file_without_a_reward_is_named_as_the_user_named_it() -> None:
    rewards = "{data_source:math,verifier_function:[math_verify],verifier_weight:[1.0]}"
    by_name = (f"data_config.rewards=[{rewards}]", "megatron_training.test_data_path=null")
    assert findings(config_of(*by_name, data=("a/math.jsonl",))) == []
    with pytest.raises(ConfigError, match=r"--data a/rows\.jsonl: data_config\.rewards"):
        config_of(*by_name, data=("a/rows.jsonl",))
    by_column = (*by_name, "data_config.source_column=source")
    assert findings(config_of(*by_column, data=("a/rows.jsonl",))) == []


def test_without_anything_to_measure_on_it_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"name the evaluation data with --data FILE"):
        config_of("megatron_training.test_data_path=null")


def test_the_model_of_a_run_contains_the_adapters_from_which_it_started(tmp_path: Path) -> None:
    adapters = ("actor_config.lora.r=16", "actor_config.lora.load=adapters")
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(composed("grpo_tiny_cpu", adapters), tmp_path / ".hydra/config.yaml")
    model = NamedModel(folder=tmp_path / "model", run=tmp_path)
    options = parsed(str(tmp_path), "--data", "a.jsonl")
    rated = parsed(str(tmp_path), "--data", "a", "--write-column", "rate", "--output", "b")
    for config in (measuring_config(options, model), rating_config(rated, model)):
        assert (config.actor_config.lora.r, config.actor_config.lora.load) == (16, None)
    # A model without a run may be the base, to which nothing would add the adapters.
    assert "actor_config.lora.load" in [each.field for each in findings(config_of(*adapters))]


def test_a_run_is_known_by_its_configuration_and_a_model_by_its_own(tmp_path: Path) -> None:
    for name in ("run/model", "run/model_best", "alone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "run/model/mindrl_export.json").write_text('{"step": 30}')
    (tmp_path / "run/.hydra").mkdir()
    (tmp_path / "run/.hydra/config.yaml").write_text("{}")
    newest = named_model(str(tmp_path / "run"))
    assert (newest.folder, newest.run, newest.step) == (
        tmp_path / "run/model",
        tmp_path / "run",
        30,
    )
    assert newest.name == f"{tmp_path.name}/run"
    assert named_model(str(tmp_path / "run"), best=True).folder == tmp_path / "run/model_best"
    alone = named_model(str(tmp_path / "alone"))
    assert (alone.run, alone.step, alone.name) == (None, 0, "alone")
    for text, best in ((str(tmp_path), False), (str(tmp_path / "alone"), True)):
        with pytest.raises(ConfigError, match=r"MODEL_OR_RUN|--best"):
            named_model(text, best=best)


def test_the_table_counts_prompts_and_has_every_rate_with_its_ends(tmp_path: Path) -> None:
    rates = {"avg@2": 0.75, "avg@2_low": 0.3, "avg@2_high": 0.9}
    rates |= {"pass@2": 1.0, "pass@2_low": 0.5, "pass@2_high": 1.0}
    of_set = {f"eval/math/{name}": value for name, value in rates.items()}
    accuracy = {"evaluation/accuracy": 0.5, "evaluation/accuracy_low": 0.1}
    held_out = {"step": 30, **accuracy, "evaluation/accuracy_high": 0.9}
    write_lines(tmp_path / "metrics.jsonl", [held_out, {"step": 30, **of_set}])
    write_lines(tmp_path / "evaluations.jsonl", [sample(30), sample(30, reward=0.0)])
    answers = [sample(30, response_tokens=at, finished=at > 1) for at in (1, 2, 3, 4)]
    write_lines(tmp_path / "evaluations" / "math.jsonl", answers)
    file, math = measured_sets(tmp_path)
    assert (file.name, file.prompts, file.samples, file.reward) == ("held-out file", 2, 1, 0.5)
    assert file.rates == {"avg@1": (0.5, 0.1, 0.9)}
    assert (math.name, math.prompts, math.samples) == ("math", 2, 2)
    assert math.rates == {"avg@2": (0.75, 0.3, 0.9), "pass@2": (1.0, 0.5, 1.0)}
    assert (math.response_tokens, math.cut_fraction) == (2.5, 0.25)


def test_a_folder_with_metrics_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    arguments = ["evaluate.py", str(tmp_path), "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*arguments, "--config-name", "sft_tiny_cpu"])
    # A failed evaluation leaves an empty file; the next one may use the folder.
    for text, reason in (("", "error: sft_config: "), ('{"step": 1}\n', "already has metrics")):
        (tmp_path / "metrics.jsonl").write_text(text)
        assert start("evaluate") == 2
        assert reason in capsys.readouterr().err


def test_an_option_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/model/config.json").write_text("{}")
    (tmp_path / "run/.hydra").mkdir()
    (tmp_path / "run/.hydra/config.yaml").write_text("{}")
    run, rates = str(tmp_path / "run"), ("--write-column", "rate", "--data", "a", "--output", "b")
    for arguments, reason in {
        (run, "--samples", "8"): "--samples has an effect only with --data; leave it out",
        (run, "--temperature", "0"): "--temperature has an effect only with --data",
        (*rates, "--json"): "--json has an effect only without --write-column",
        (*rates, "--best"): "--best has an effect only with MODEL_OR_RUN",
        (run, "--config-name", "grpo_tiny_cpu"): "--config-name has an effect only for a model",
    }.items():
        monkeypatch.setattr("sys.argv", ["evaluate", *arguments])
        assert start("evaluate") == 2, arguments
        assert reason in " ".join(capsys.readouterr().err.split()), arguments
