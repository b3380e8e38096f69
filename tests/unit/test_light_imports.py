"""What must be quick to import, or safe to import in any process, brings nothing heavy along."""

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from checked_runs import model_folder

PREPARE = (
    "from mindrl.platform.device import PLATFORMS, prepare_process\n"
    "prepare_process(PLATFORMS['cpu'], megatron=False)"
)
TRAIN = "import mindrl.workers.sharding_manager, mindrl.trainer.policy_trainer"
BUILD = "import mindrl.launch.worker"
CHOOSE = "from mindrl.platform.device import choose_platform; choose_platform('auto')"
COMPUTE = {"torch", "ray", "vllm", "megatron", "transformers"}
LIGHT = {
    "import mindrl.programs.entry": {"hydra", "omegaconf", "pydantic", "rich", "numpy", "yaml"},
    "import mindrl.platform.device_models": {"numpy"},
    CHOOSE: {"torch_npu", "numpy"},
    "import mindrl.programs.doctor": {"numpy"},
    # rank_files imports decoder and files.
    "import mindrl.checkpoint.rank_files": {"scipy", "sympy"},
    "import mindrl.layouts.layout, mindrl.allocation.meaning": {"scipy", "sympy"},
    "import mindrl.config.load, mindrl.config.validate": {"scipy", "sympy"},
    "import mindrl.programs.train": {"numpy", "tensorboard", "pyarrow", "mindrl.preflight.checks"},
    "import mindrl.programs.import_config": {"scipy", "sympy"},
    "import mindrl.training.planning, mindrl.rollout.planning": {"scipy", "sympy"},
    "import mindrl.programs.check": {"scipy", "sympy"},
    "import mindrl.programs.explain, mindrl.programs.reshard, mindrl.programs.placement": set(),
    "import mindrl.programs.propose": set(),
}
"""What each statement may not import in addition to COMPUTE, after all statements before it."""
WATCH = """
import json, sys
found = {}
for statement, watched in json.loads(sys.argv[1]):
    exec(statement)
    found[statement] = sorted({*watched} & {*sys.modules})
print(json.dumps(found))
"""


def found_after(watched: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Run statements in one process; return what each left in `sys.modules` of what is watched."""
    asked = json.dumps([(statement, [*names]) for statement, names in watched.items()])
    done = subprocess.run([sys.executable, "-c", WATCH, asked], stdout=subprocess.PIPE, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_what_is_light_to_import_brings_nothing_heavy_along() -> None:
    watched = {statement: COMPUTE | heavy for statement, heavy in LIGHT.items()}
    assert found_after(watched) == {statement: [] for statement in LIGHT}


def test_scoring_processes_are_forked_with_sympy_and_nothing_heavy() -> None:
    watched = [*COMPUTE, "mindrl.config.run", "sympy"]
    statement = "import mindrl.rewards.scorer, mindrl.rewards.service"
    assert found_after({statement: watched}) == {statement: ["sympy"]}


@pytest.mark.nightly
def test_a_process_is_prepared_before_megatron_is_imported() -> None:
    # In one process, because torch takes long to import.
    built = f"{BUILD}\n{PREPARE}"
    found = found_after({TRAIN: ["megatron", "vllm", "ray"], built: ["megatron"]})
    assert found == {TRAIN: [], built: []}


@pytest.mark.parametrize(
    ("argument", "code"), [("actor_config.tensor_model_parallel_size=3", 2), ("--help", 0)]
)
def test_a_training_program_that_starts_nothing_imports_neither_torch_nor_ray(
    argument: str, code: int, tmp_path: Path
) -> None:
    """So a refusal costs what a check does."""
    statements = (
        "import sys\n"
        "from mindrl.programs.entry import start\n"
        f"sys.argv = ['train_grpo.py', '--config-name', 'grpo_tiny_cpu', {argument!r}]\n"
        "try:\n"
        "    sys.exit(start('train-grpo'))\n"
        "finally:\n"
        "    print({'torch', 'ray', 'transformers'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", statements],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ("must divide" in ended.stderr) is (code == 2)
    assert ended.stdout.splitlines()[-1] == "set()"


def test_a_dry_run_reads_and_tokenizes_rows_without_torch(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Torch, and what transformers loads with it, took 5 of 10 CPU seconds."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": "1+1", "answer": "2"}\n' * 64)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    given = (
        f"actor_config.load={model_folder(tmp_path / 'model', vocab_size=512, **sizes)}",
        f"megatron_training.tokenizer_name_or_path={tokenizer_folder}",
        f"megatron_training.data_path={rows}",
        "megatron_training.test_data_path=null",
        "rl_config.test_freq=0",
    )
    statements = (
        "import sys\n"
        "from mindrl.programs.entry import start\n"
        f"sys.argv = ['train', '--config-name', 'grpo_tiny_cpu', '--dry-run', *{given!r}]\n"
        "assert start('train-grpo') == 0\n"
        "print({'torch', 'ray'} & set(sys.modules), 'transformers' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", statements],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{rows}: 64 rows, prompts of up to 11 tokens" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "set() True"
    assert "PyTorch" not in ended.stderr
