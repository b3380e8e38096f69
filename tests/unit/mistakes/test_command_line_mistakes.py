"""Natural mistakes on the command line, and the exact words that answer them."""

import subprocess
import sys
from pathlib import Path

import pytest
from new_user import NewUser
from nightly import half_unless_night

ROOT = Path(__file__).parents[3]
OPTIONS = (
    "use --config-name, --config-dir, --resume, --cfg, --dry-run, "
    "--elsewhere, --help, --resolve, "
    "--package, --info, --version"
)
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "an option with the wrong dash": (
        ["--dry_run"],
        [f"--dry_run is an unknown option; {OPTIONS}; did you mean '--dry-run'?"],
    ),
    "a key as an option": (
        ["--rl_config.epochs=2"],
        ["--rl_config.epochs is a key, not an option; did you mean rl_config.epochs=2?"],
    ),
    "a blank for the sign": (
        ["rl_config.epochs", "2"],
        ["rl_config.epochs has no value; did you mean rl_config.epochs=2?"],
    ),
    "a name without its option": (
        ["grpo_tiny_cpu"],
        ["grpo_tiny_cpu has no option; did you mean --config-name grpo_tiny_cpu?"],
    ),
    "a key alone": (
        ["rl_config.epochs"],
        ["rl_config.epochs has no value; it must be rl_config.epochs=VALUE"],
    ),
    "a key that is misspelt": (
        ["rl_config.n_sample=4"],
        [
            (
                "rl_config.n_sample is not a configuration key; did you mean "
                "rl_config.n_samples_per_prompt?"
            )
        ],
    ),
    "a key of another section": (
        ["actor_config.seq_length=64"],
        [
            (
                "actor_config.seq_length is not a configuration key; did you mean "
                "megatron_training.seq_length?"
            )
        ],
    ),
    "adapters for the critic": (
        ["critic_config.lora.r=8"],
        ["critic_config.lora.r is not a configuration key; did you mean actor_config.lora?"],
    ),
    "adapters by PEFT's name of the key": (
        ["actor_config.lora_alpha=32"],
        [
            (
                "actor_config.lora_alpha is not a configuration key; did you mean "
                "actor_config.lora.alpha?"
            )
        ],
    ),
    "dropout of adapters on another engine": (
        [
            "actor_config.lora.r=16",
            "actor_config.lora.dropout=0.1",
            "actor_config.backend=archon:d2",
        ],
        [
            (
                "actor_config.lora.dropout=0.1 needs the engine megatron, found archon in "
                "actor_config.backend"
            )
        ],
    ),
    "layers by Megatron's names": (
        ["actor_config.lora.r=16", "actor_config.lora.target_modules=[linear_fc1]"],
        [
            (
                "actor_config.lora.target_modules: linear_fc1 is Megatron's name; write "
                "gate_proj,up_proj"
            )
        ],
    ),
    "alpha without a rank": (
        ["actor_config.lora.alpha=32"],
        [
            (
                "actor_config.lora.alpha=32 has an effect only with actor_config.lora.r "
                "of 1 or more, found 0"
            )
        ],
    ),
    "two mistakes at once": (
        ["rl_config.epoch=2", "lr=1e-6"],
        [
            "rl_config.epoch is not a configuration key; did you mean rl_config.epochs?",
            "lr is not a configuration key; did you mean actor_config.lr?",
        ],
    ),
    "a plus before a key that is there": (
        ["+rl_config.epochs=2"],
        ["+rl_config.epochs: the key exists already; remove the +"],
    ),
    "no plus before a recipe": (
        ["recipe=gspo"],
        ["recipe=gspo: recipes are added with +; did you mean +recipe=gspo?"],
    ),
    "several values": (
        ["rl_config.epochs=1,2"],
        [
            (
                "rl_config.epochs=1,2 has several values; write a list rl_config.epochs=[1,2] or a "
                "text \"rl_config.epochs='1,2'\""
            )
        ],
    ),
    "a sweep": (["-m"], ["-m: a program makes one run; start it once per value"]),
    "a text with commas": (
        ["megatron_training.system_prompt=Think, then answer."],
        [
            (
                "megatron_training.system_prompt=Think, then answer. has several values; write a "
                "list megatron_training.system_prompt=[Think, then answer.] or a text "
                "\"megatron_training.system_prompt='Think, then answer.'\""
            )
        ],
    ),
    "a configuration without its option": (
        ["mine.yaml"],
        ["mine.yaml has no option; did you mean --config-name mine.yaml?"],
    ),
    "an option without its value": (
        ["--config-name"],
        ["--config-name needs a value: --config-name grpo_tiny_cpu"],
    ),
    "a run that is none": (
        ["--resume", "nowhere"],
        ["--resume nowhere: not a run folder; it has no .hydra/config.yaml"],
    ),
    "another form of the configuration": (
        ["--cfg", "yaml"],
        ["--cfg yaml: it must be one of job, hydra, all"],
    ),
    "a configuration without a name": (
        ["--config-name", ""],
        ["--config-name needs a value: --config-name grpo_tiny_cpu"],
    ),
    "a wrong type beside strings": (
        [
            *("actor_config.backend=megatron:d2", "generate_config.backend=vllm:d2"),
            "rl_config.reward_resource.num_npus=abc",
        ],
        ['rl_config.reward_resource.num_npus="abc" must be a valid integer'],
    ),
    "an export of the root": (
        ["actor_config.save=/"],
        ["actor_config.save=/ must be a folder with a name, such as ./exported"],
    ),
    "a function in a file that no disk can have": (
        [f"rl_config.adv_estimator={'x' * 300}.py:f"],
        [
            (
                f"rl_config.adv_estimator='{'x' * 97}...{'x' * 93}.py:f' must be a path "
                "of at most 4000 bytes with names of at most 240; found 303, with a name "
                "of 303"
            )
        ],
    ),
    "a wrong type": (
        ["rl_config.epochs=two"],
        ['rl_config.epochs="two" must be a valid integer'],
    ),
}


@pytest.fixture
def user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> NewUser:
    return NewUser(tmp_path, monkeypatch, capsys)


CHOSEN = half_unless_night(MISTAKES)


@pytest.mark.parametrize(("arguments", "lines"), CHOSEN.values(), ids=CHOSEN)
def test_a_mistake_is_answered_in_words(
    arguments: list[str], lines: list[str], user: NewUser
) -> None:
    told = user.is_told([*arguments, "--dry-run", "--elsewhere"])
    assert told == [f"error: {line}" for line in lines]


def test_supervised_fine_tuning_and_learning_from_rewards_have_programs_of_their_own(
    user: NewUser,
) -> None:
    assert user.is_told(["--config-name", "sft_tiny_cpu", "--dry-run", "--elsewhere"]) == [
        "error: sft_config is set, but train-grpo needs rewards; use train-sft"
    ]
    learns = "the run trains on the answers of the rows"
    weighs = "it weighs no reference in the loss"
    options = ["--dry-run", "--elsewhere"]
    assert user.is_told(["--config-name", "ppo_tiny_cpu", *options], program="train-sft") == [
        f"error: rl_config.adv_estimator=gae: {learns}: there are no advantages; remove it",
        f"error: rl_config.init_kl_coef=0.001: {learns}: {weighs}; remove it",
        f"error: critic_config is given: {learns} only; remove it",
    ]


def test_a_file_without_a_list_of_defaults_is_told_the_line(user: NewUser) -> None:
    (user.folder / "mine.yaml").write_text("rl_config: {epochs: 2}\n")
    assert user.is_told(["--config-name", "mine.yaml", "--dry-run"]) == [
        (
            "error: mine.yaml has no defaults list; add this first line: defaults: "
            "[mindrl_defaults, program, _self_]"
        )
    ]


def test_of_many_mistakes_ten_are_told_and_the_others_are_counted(user: NewUser) -> None:
    lines = user.is_told([*(f"rl_config.wrong_{at}=1" for at in range(12)), "--dry-run"])
    assert [line.split(" is ")[0] for line in lines] == [
        *(f"error: rl_config.wrong_{at}" for at in range(10)),
        "        and 2 more; show them with mindrl check --all",
    ]


@pytest.mark.parametrize(
    "name", ["mine.yaml", "./mine", "{folder}/mine.yaml", "in/deep.yaml", "../{folder.name}/mine"]
)
def test_a_configuration_may_be_named_by_its_path(name: str, user: NewUser) -> None:
    text = "defaults: [mindrl_defaults, program, _self_]\nrl_config: {epochs: 0}\n"
    (user.folder / "in").mkdir()
    for place in ("mine.yaml", "in/deep.yaml"):
        (user.folder / place).write_text(text)
    lines = user.is_told(["--config-name", name.format(folder=user.folder), "--dry-run"])
    assert "error: rl_config.epochs=0 must be greater than or equal to 1" in lines


def test_a_path_that_is_not_there_is_answered_with_the_names_there_are(user: NewUser) -> None:
    [line] = user.is_told(["--config-name", "my/grpo_tiny_cp.yaml", "--dry-run"])
    meant = "grpo_tiny_cpu, ppo_tiny_cpu or dpo_tiny_cpu"
    assert line.startswith(
        f"error: my/grpo_tiny_cp.yaml: no such file; did you mean {meant}? known: "
    )


def test_a_configuration_of_the_working_folder_is_named_with_the_way_to_use_it(
    user: NewUser,
) -> None:
    (user.folder / "my_run.yaml").write_text("defaults: [grpo_tiny_cpu, _self_]\n")
    [line] = user.is_told(["--config-name", "my_run", "--dry-run"])
    assert line.endswith(
        "has no configuration my_run; to use my_run.yaml of the working folder, write "
        "--config-name my_run.yaml"
    )
    [line] = user.is_told(["--config-name", "my_rum", "--dry-run"])
    assert "has no configuration my_rum; did you mean my_run.yaml? known: " in line


def test_a_dry_run_leaves_nothing_behind(user: NewUser) -> None:
    user.is_told(["--config-name", "grpo_qwen25_7b", "--dry-run", "--elsewhere"], code=0)


@pytest.mark.skipif(not (ROOT / ".venv").exists(), reason="the checkout has no environment")
def test_without_its_environment_a_program_takes_that_of_the_checkout() -> None:
    """By the Python that the environment was made of, which has no packages."""
    python = Path(sys.base_prefix, "bin", "python3")
    command = [str(python), "-S", "cli/train_grpo.py", "--dry_run"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: --dry_run is an unknown option; ")


def test_where_there_is_no_environment_the_words_say_how_to_make_one(tmp_path: Path) -> None:
    for name in ("in_environment.py", "check.py"):
        (tmp_path / "cli").mkdir(exist_ok=True)
        (tmp_path / "cli" / name).write_text((ROOT / "cli" / name).read_text())
    python = Path(sys.base_prefix, "bin", "python3")
    command = [str(python), "-S", "cli/check.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"error: {python} has no mindrl; create the environment: "
        f"bash {tmp_path}/scripts/install.sh\n"
    )
