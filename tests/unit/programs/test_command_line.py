"""The command line: messages about overrides, numbers of a dry run, exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from user_programs import python, without_torch

from mindrl.errors import ConfigError
from mindrl.programs.command_line import check_overrides
from mindrl.programs.config_files import run_names

PROGRAM = Path(__file__).parents[3] / "cli" / "train_grpo.py"


def started(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the program in a folder of its own, since Hydra writes where it stands."""
    return without_torch(str(PROGRAM), *arguments, folder=folder, environment={"COLUMNS": "160"})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rl_config.n_sampels_per_prompt=8",
            (
                "rl_config.n_sampels_per_prompt is not a configuration key; "
                "did you mean rl_config.n_samples_per_prompt?"
            ),
        ),
        (
            "actor_config.seq_length=8",
            (
                "actor_config.seq_length is not a configuration key; "
                "did you mean megatron_training.seq_length?"
            ),
        ),
        (
            "rl_cofig.epochs=2",
            "rl_cofig.epochs is not a configuration key; did you mean rl_config?",
        ),
        (
            "+rl_config.epoch=2",
            "rl_config.epoch is not a configuration key; did you mean rl_config.epochs?",
        ),
        (
            "++generate_config.sampling_config.temp=0.5",
            (
                "generate_config.sampling_config.temp is not a configuration key; "
                "did you mean generate_config.sampling_config.temperature?"
            ),
        ),
        (
            "lr=1e-6",
            "lr is not a configuration key; did you mean actor_config.lr?",
        ),
    ],
)
def test_an_override_of_an_unknown_key_is_refused_with_what_was_probably_meant(
    override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_overrides([override])
    assert str(caught.value) == message


def test_all_wrong_overrides_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_overrides(["rl_config.epoch=2", "actor_config.lr=1e-5", "actor_config.lrr=1e-5"])
    assert [line.split(" is ")[0] for line in str(caught.value).splitlines()] == [
        "rl_config.epoch",
        "actor_config.lrr",
    ]


@pytest.mark.parametrize(
    "argument",
    [
        "rl_config.epochs=2",
        "generate_config.sampling_config.temperature=0.7",
        "rl_config.verifier_function=[math_verify]",
        "hydra.run.dir=/tmp/run",
        "hydra/job_logging=default",
        "--config-name=grpo_tiny_cpu",
        "--dry-run",
        "--help",
    ],
)
def test_what_is_known_or_belongs_to_hydra_passes(argument: str) -> None:
    check_overrides([argument])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run=true"], "--dry-run=true: --dry-run takes no value; write --dry-run"),
        (
            ["--info", "rl_config.epochs=2"],
            (
                "--info without a value: it must be one of all, config, defaults, "
                "defaults-tree, plugins, searchpath"
            ),
        ),
        (["--cfg", "--resolve"], "--cfg without a value: it must be one of job, hydra, all"),
        (["--cfg", "job", "-p"], "-p without a value: it must be a section or key"),
    ],
)
def test_a_value_too_many_or_too_few_is_refused_before_hydra_reads_the_options(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_overrides(arguments)
    assert str(caught.value) == message


def test_options_may_follow_overrides(tmp_path: Path) -> None:
    ended = started(tmp_path, "rl_config.epochs=7", "--cfg", "job", "+recipe=dapo", "-p=rl_config")
    assert ended.returncode == 0, ended.stderr
    values = yaml.safe_load(ended.stdout)
    assert (values["epochs"], values["filter_groups_enable"]) == (7, True)


def test_a_dry_run_of_the_7b_configuration_prints_its_numbers_and_starts_nothing(
    tmp_path: Path,
) -> None:
    ended = started(tmp_path, "--config-name", "grpo_qwen25_7b", "--dry-run", "--elsewhere")
    assert ended.returncode == 0, ended.stderr
    numbers = dict(
        re.split(r"\s{2,}", line.strip(), maxsplit=1)
        for line in ended.stdout.splitlines()
        if re.search(r"\S\s{2,}\S", line)
    )
    assert numbers == {
        "devices (ranks)": "8 x NPU",
        "training": "TP 4, DP 2",
        "rollout": "TP 2, DP 4",
        "prompts per step": "32",
        "sequences per step": "256 (8 per prompt)",
        "sequences per update": "256",
        "sequences per update and replica": "128",
        "micro-batch": "2 sequence(s), packed",
        "updates per step": "1 (1 epoch(s))",
        "steps": "1000",
        "updates in all": "1000",
        "longest sequence": "2048 prompt + 2048 response of 4096 tokens",
        "precision": "training bf16, rollout bfloat16",
        "reference": "./models/Qwen2.5-7B",
        "old log-probs": "from_update",
        "rollout correction": "token, truncate beyond 2",
        "log-prob gap": "warns beyond 0.1 nats (0.3 with experts), ends after 3 steps",
        "rewards": "1 x math_verify, 0.1 x boxed_format",
    }
    assert (
        "missing here, so not checked: megatron_training.data_path=./data/train.jsonl"
        in ended.stdout
    )
    assert ended.stdout.rstrip().endswith("the configuration is valid, except for missing files")
    note = "note: ./models/Qwen2.5-7B not found; using the sizes of configs/models/Qwen2.5-7B"
    assert ended.stderr.splitlines() == [note]


def test_a_wrong_key_on_the_command_line_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    ended = started(tmp_path, "--dry-run", "rl_config.n_sampels_per_prompt=8")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        (
            "error: rl_config.n_sampels_per_prompt is not a configuration key; "
            "did you mean rl_config.n_samples_per_prompt?"
        )
    ]


def test_a_value_that_breaks_a_rule_ends_a_dry_run_with_code_2(tmp_path: Path) -> None:
    ended = started(
        tmp_path,
        "--config-name=grpo_qwen25_7b",
        "--dry-run",
        "--elsewhere",
        "actor_config.tensor_model_parallel_size=3",
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        (
            "error: actor_config.tensor_model_parallel_size=3 must divide "
            "rl_config.actor_resource.num_npus=8; nearest: 2, 4"
        )
    ]


def test_an_unknown_configuration_name_ends_with_code_2_and_the_names_there_are(
    tmp_path: Path,
) -> None:
    ended = started(tmp_path, "--config-name", "grpo_qwen25_7", "--dry-run")
    assert ended.returncode == 2
    assert (
        "has no configuration grpo_qwen25_7; did you mean grpo_qwen25_7b, grpo_qwen25_vl_7b or "
        "grpo_qwen25_7b_a3? known: " in ended.stderr
    )
    assert "grpo_qwen25_7b, grpo_qwen25_7b_a3, " in ended.stderr
    assert "grpo_tiny_cpu" in ended.stderr


def test_any_configuration_is_trained_by_its_name_alone(tmp_path: Path) -> None:
    for name in (
        "dpo_tiny_cpu",
        "grpo_qwen35_moe_tiny_cpu",
        "grpo_qwen35_tiny_cpu",
        "grpo_tiny_cpu",
        "grpo_tiny_moe_cpu",
        "grpo_vision_tiny_cpu",
        "ppo_tiny_cpu",
        "reward_tiny_cpu",
        "sft_tiny_cpu",
    ):
        ended = without_torch(
            *(str(PROGRAM.with_name("train.py")), "--config-name", name, "--dry-run"),
            "--elsewhere",
            folder=tmp_path,
        )
        assert ended.returncode == 0, ended.stderr
        assert "the configuration is valid, except for missing files" in ended.stdout
    nameless = without_torch(str(PROGRAM.with_name("train.py")), "--dry-run", folder=tmp_path)
    assert nameless.returncode == 2
    assert nameless.stderr.startswith(
        "error: --config-name is missing; name one of distill_tiny_cpu, dpo_"
    )
    assert not [*tmp_path.iterdir()]


def test_the_help_lists_the_configurations_and_of_a_named_one_the_values(tmp_path: Path) -> None:
    train = str(PROGRAM.with_name("train.py"))
    general = without_torch(train, "--help", folder=tmp_path).stdout
    assert {*run_names(PROGRAM.parents[1] / "configs")} <= {*general.splitlines()}
    assert "Example: mindrl train --config-name grpo_tiny_cpu" in general
    assert "rl_config:" not in general
    named = (train, "--config-name", "ppo_tiny_cpu", "--help", "rl_config.epochs=7")
    of_one = without_torch(*named, folder=tmp_path).stdout
    assert "the configuration (here: ppo_tiny_cpu)" in of_one
    values = yaml.safe_load(of_one.partition("== Configuration ppo_tiny_cpu ==\n")[2])
    assert values["rl_config"]["epochs"] == 7
    assert values["rl_config"]["adv_estimator"] == "gae"
    assert not [*tmp_path.iterdir()]


def test_an_unknown_recipe_ends_with_code_2_and_the_recipes_there_are(tmp_path: Path) -> None:
    ended = started(tmp_path, "+recipe=gsop", "--dry-run")
    assert ended.returncode == 2
    assert "has no configuration recipe/gsop; did you mean gspo? known: cisp" in ended.stderr


def test_each_program_trains_with_its_own_algorithm_and_names_the_other(tmp_path: Path) -> None:
    done = started(tmp_path, "--config-name", "ppo_tiny_cpu", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: rl_config.adv_estimator=gae: train-grpo trains without a critic; use train-ppo "
        "for gae"
    )


def test_an_error_of_the_run_is_not_taken_for_one_in_making_its_folder(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from mindrl.programs import train\n"
        "def failing(config, folder):\n"
        "    raise OSError('the disk is gone')\n"
        "train.check_and_train = failing\n"
        "sys.exit(train.run_program(train.Assumed()))\n"
    )
    ended = python("-c", code, folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "OSError: the disk is gone"
    assert "cannot create the run folder" not in ended.stderr


def test_help_that_nobody_reads_to_its_end_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} {PROGRAM} --help | head -n 1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
