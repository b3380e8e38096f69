"""The import program as a user starts it: files read, file written, report, refusals."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from user_programs import without_torch

from mindrl.config.hydra_defaults import register_defaults
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.programs.compose import run_config

ROOT = Path(__file__).parents[3]
PROGRAM_YAML = (ROOT / "configs" / "program.yaml").read_text("utf-8")
MODEL = """\
small:
  num_layers: 4
  num_attention_heads: 8
  hidden_size: 64
  norm_epsilon: 1e-6
"""
ANCHORS = "".join(f"{new}: &{new} [{f'*{old},' * 9}]\n" for old, new in pairwise("abcdef"))
"""With `a`, six anchors of nine values each, of which each names the one before it."""
GRPO = """\
defaults:
  - model:
      - small

megatron_training:
  model: small
  use_flash_attn: true
  tokenizer_name_or_path: ./models/small
  global_batch_size: 16
  seq_length: 512
  train_iters: 3
  stage: ray_grpo
  data_path: ./data/prompts.jsonl
  split: 100,0,0
  seed: 7

actor_config:
  model: small
  micro_batch_size: 2
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  num_layer_list: 1,3
  lr: 1e-6
  min-lr: 0
  lr_decay_style: constant
  load: ./ckpt

rl_config:
  mini_batch_size: 8
  max_prompt_length: 512
  n_samples_per_prompt: 4
  verifier_function: ["math_17k_acc"]
  verifier_weight: [1.0]
  verifier_timeout: 120
  actor_resource:
    num_npus: 8

generate_config:
  infer_tensor_parallel_size: 1
  max_model_len: 1024
  max_num_batched_tokens: 2048
  sampling_config:
    max_tokens: 512
    top_k: -1
"""
CRITIC = """
critic_config:
  model: small
  tensor_model_parallel_size: 2
  micro_batch_size: 1
  lr: 5e-6
  lr_decay_style: constant
  load: ./orm
"""


def written(folder: Path, text: str = GRPO) -> Path:
    """Write their file, with its model file beside it."""
    (folder / "model").mkdir()
    (folder / "model" / "small.yaml").write_text(MODEL)
    file = folder / "theirs.yaml"
    file.write_text(text)
    return file


def ran(theirs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    target = theirs.with_name("ours.yaml")
    return without_torch("cli/import_config.py", str(theirs), "-o", str(target), *more)


def loaded(folder: Path) -> RunConfig:
    """Load the new file as the programs do."""
    (folder / "program.yaml").write_text(PROGRAM_YAML)
    register_defaults()
    with initialize_config_dir(str(folder), version_base="1.3"):
        return run_config(compose("ours"))


def test_a_grpo_file_becomes_one_that_our_programs_load(tmp_path: Path) -> None:
    ended = ran(written(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    config = loaded(tmp_path)
    assert findings(config) == []
    assert config.actor_config.lr == 1e-6
    assert config.actor_config.num_layer_list == (1, 3)
    assert config.actor_config.load == "./models/small"
    assert config.layout("actor").dp == 2
    assert config.sequences_per_step == 64
    assert config.megatron_training.seq_length == 1024
    assert config.generate_config.sampling_config.temperature == 0.2
    assert config.rl_config.verifier_timeout == 5.0
    assert "honoured: same name, same meaning (" in ended.stdout
    assert ended.stdout.splitlines()[-1] == (
        f"written: {tmp_path}/ours.yaml; next: mindrl check --config-dir {tmp_path} "
        "--config-name ours --elsewhere"
    )


def test_the_new_file_says_over_a_key_where_it_comes_from(tmp_path: Path) -> None:
    ran(written(tmp_path))
    lines = (tmp_path / "ours.yaml").read_text().splitlines()
    assert lines[:5] == [
        "# Imported from theirs.yaml, a file of MindSpeed-RL 2.0 or later.",
        "defaults:",
        "  - mindrl_defaults",
        "  - program",
        "  - _self_",
    ]
    at = lines.index("  num_layer_list: [1, 3]")
    note = "was text in the file, is a list in mindrl"
    assert lines[at - 1] == f"  # actor_config.num_layer_list: {note}"
    at = lines.index("  seq_length: 1024")
    assert lines[at - 2].startswith("  # megatron_training.seq_length: was 512; prompt and")


def test_a_dry_run_takes_the_new_file_from_its_own_folder(tmp_path: Path) -> None:
    ran(written(tmp_path))
    command = ["cli/train_grpo.py", "--config-dir", str(tmp_path)]
    command += ["--config-name", "ours", "--dry-run", "--elsewhere"]
    command += [f"hydra.run.dir={tmp_path}/run"]
    ended = without_torch(*command)
    assert ended.returncode == 0, ended.stderr
    assert "TP 2, PP 2, DP 2" in ended.stdout


def test_a_ppo_file_has_a_critic_whose_keys_can_be_overridden(tmp_path: Path) -> None:
    text = GRPO.replace("ray_grpo", "ray_ppo").replace(
        "rl_config:\n", "rl_config:\n  adv_estimator: gae\n"
    )
    ended = ran(written(tmp_path, text + CRITIC))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "run it with mindrl train\n" in ended.stdout
    assert "  - mindrl_critic_defaults\n" in (tmp_path / "ours.yaml").read_text()
    config = loaded(tmp_path)
    assert findings(config) == []
    assert config.critic_config is not None
    assert (config.critic_config.lr, config.critic_config.load) == (5e-6, None)
    assert config.layout("critic").dp == 4
    assert config.rl_config.init_kl_coef == 0.0


def test_refused_keys_are_named_and_nothing_is_written_until_they_are_left_out(
    tmp_path: Path,
) -> None:
    text = GRPO.replace("math_17k_acc", "retool_reward").replace(
        "rl_config:\n", "rl_config:\n  multi_turn_enable: true\n"
    )
    theirs = written(tmp_path, text)
    ended = ran(theirs)
    assert ended.returncode == 1
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == [
        "rl_config.verifier_function",
        "rl_config.multi_turn_enable",
    ]
    assert ended.stderr.count("to drop it: --leave-out rl_config.") == 2
    assert not (tmp_path / "ours.yaml").exists()

    half = ran(theirs, "--leave-out", "rl_config.multi_turn_enable")
    assert (half.returncode, half.stderr.count("error:")) == (1, 1)

    whole = ran(theirs, "--leave-out", "all")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert loaded(tmp_path).rl_config.verifier_function == ("math_verify",)
    head = (tmp_path / "ours.yaml").read_text().split("defaults:")[0]
    assert "# Dropped rl_config.multi_turn_enable: mindrl has tools in environment_config" in head


def test_json_has_each_key_with_value_kind_and_what_it_sets(tmp_path: Path) -> None:
    ended = ran(written(tmp_path), "--json")
    answer = json.loads(ended.stdout)
    assert answer["output"] == f"{tmp_path}/ours.yaml"
    assert (answer["release"], answer["findings"]) == ("2.0 or later", [])
    found: dict[str, Any] = {each["key"]: each for each in answer["keys"]}
    assert found["actor_config.num_layer_list"] == {
        "key": "actor_config.num_layer_list",
        "value": "1,3",
        "kind": "derived",
        "sets": {"actor_config.num_layer_list": [1, 3]},
        "note": "was text in the file, is a list in mindrl",
    }
    assert found["rl_config.verifier_timeout"]["kind"] == "ignored"
    assert {each["kind"] for each in answer["keys"]} == {
        "honoured",
        "renamed",
        "derived",
        "open",
        "ignored",
    }


def test_a_file_that_cannot_run_is_written_and_says_what_to_change(tmp_path: Path) -> None:
    ended = ran(written(tmp_path, GRPO.replace("mini_batch_size: 8", "mini_batch_size: 3")))
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: rl_config.mini_batch_size=3 must divide megatron_training.global_batch_size=16; "
        "nearest: 2, 4"
    )
    assert (tmp_path / "ours.yaml").exists()


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    theirs = written(tmp_path)
    (tmp_path / "ours.yaml").write_text("mine")
    ended = ran(theirs)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"error: -o {tmp_path}/ours.yaml: file exists already\n",
    )
    assert (tmp_path / "ours.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("megatron_training: [", ", line 1: while parsing"),
        ("- a\n", "must contain sections with keys"),
        (f"a: &a [{'x,' * 9}]\n" + ANCHORS, "its anchors expand to 672,"),
        ("megatron_training: 3\n", "megatron_training=3 must be a section with keys"),
        ("a: ${nowhere}\n", "a: ${nowhere} is not a key; write a full key"),
        ("defaults: [model: big]\n", "big.yaml: no such model file; --model-configs names their"),
        ("defaults: [datasets: x]\n", "defaults: {'datasets': 'x'}: must be a model file"),
        (GRPO.replace("seed: 7", "sed: 7"), "megatron_training.sed is not a key of MindSpeed-RL"),
        (GRPO.replace("seed: 7", "seed: x"), 'megatron_training.seed="x" must be a valid'),
        (
            GRPO.replace("ray_grpo", "prm"),
            "stage=prm must be ray_grpo, ray_dapo, ray_ppo, dpo, orm or sft",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_in_words_with_code_2(
    tmp_path: Path, text: str, reason: str
) -> None:
    ended = ran(written(tmp_path, text))
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert reason in ended.stderr
    assert not (tmp_path / "ours.yaml").exists()


def test_python_code_is_refused_with_the_files_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "trl.py").write_text("GRPOConfig(learning_rate=1e-6)\n")
    ended = ran(tmp_path / "trl.py")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {tmp_path}/trl.py is Python code; needed: a .yaml file")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--leave-out", "rl_config.lam"], "rl_config.lam must be among the refused keys: none"),
        (["-o", "ours.yml"], "-o ours.yml: must end in .yaml"),
        (["-o", "no/such/ours.yaml"], "-o no/such/ours.yaml: No such file or directory"),
        (["--model-configs", "nowhere"], "nowhere/small.yaml: no such model file"),
    ],
)
def test_a_wrong_option_is_refused_in_words(tmp_path: Path, more: list[str], reason: str) -> None:
    ended = ran(written(tmp_path), *more)
    assert ended.returncode in (1, 2)
    assert reason in ended.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    "value",
    [
        "a\nevil: true",
        "${oc.env:HOME}",
        "no",
        "1e3",
        "x: #y",
        "\x1b[31mred",
        "ü ∆ \"'\\",
        "-dash",
        "",
    ],
)
def test_whatever_a_text_holds_it_arrives_as_it_is_and_commands_nothing(
    tmp_path: Path, value: str
) -> None:
    as_text = json.dumps(value.replace("${", r"\${"), ensure_ascii=False)
    text = GRPO.replace("./data/prompts.jsonl", as_text).replace("./ckpt", as_text)
    ended = ran(written(tmp_path, text))
    assert ended.returncode == 0, ended.stderr
    assert "\x1b" not in ended.stdout
    assert loaded(tmp_path).megatron_training.data_path == value


def test_help_has_an_example() -> None:
    ended = without_torch("cli/import_config.py", "--help")
    assert ended.returncode == 0
    assert "grpo_qwen25_7b_A3.yaml -o configs/mine.yaml" in ended.stdout
