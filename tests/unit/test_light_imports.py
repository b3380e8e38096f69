"""What must be quick to import, or safe to import in any process, brings nothing heavy along."""

import subprocess
import sys
from pathlib import Path

import pytest
from checked_runs import model_folder

PREPARE = (
    "from mindrl.platform.device import PLATFORMS, prepare_process\n"
    "prepare_process(PLATFORMS['cpu'], megatron=False)"
)
TRAIN = "import sys, mindrl.workers.sharding_manager, mindrl.trainer.policy_trainer"
BUILD = "import mindrl.launch.worker"
CHOOSE = "from mindrl.platform.device import choose_platform; choose_platform('auto')"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import mindrl.config.load, mindrl.config.validate", {"torch", "ray", "transformers"}),
        (
            "import mindrl.layouts.layout, mindrl.allocation.meaning",
            {"torch", "ray", "transformers"},
        ),
        (
            # rank_files imports decoder and files.
            "import mindrl.checkpoint.rank_files",
            {"torch", "megatron", "transformers"},
        ),
        (
            "import mindrl.training.planning, mindrl.rollout.planning",
            {"torch", "megatron", "vllm", "transformers"},
        ),
        (
            "import mindrl.programs.explain, mindrl.programs.reshard, mindrl.programs.placement",
            {"torch", "ray", "vllm", "megatron", "transformers"},
        ),
        (
            "import mindrl.programs.import_config",
            {"torch", "ray", "vllm", "megatron", "transformers", "scipy", "sympy"},
        ),
        (
            "import mindrl.programs.doctor",
            {"torch", "ray", "vllm", "megatron", "transformers", "numpy"},
        ),
        (
            "import mindrl.programs.check",
            {"torch", "ray", "vllm", "megatron", "transformers", "scipy", "sympy"},
        ),
        (
            "import mindrl.programs.train",
            {
                "torch",
                "ray",
                "transformers",
                "numpy",
                "tensorboard",
                "pyarrow",
                "mindrl.preflight.checks",
            },
        ),
        (
            "import mindrl.programs.entry",
            {"torch", "ray", "hydra", "omegaconf", "pydantic", "rich", "numpy", "yaml"},
        ),
        ("import mindrl.platform.device_models", {"torch", "ray", "transformers"}),
        ("import mindrl.programs.propose", {"torch", "ray", "vllm", "megatron", "transformers"}),
        (CHOOSE, {"torch", "torch_npu", "ray", "vllm", "megatron"}),
        (
            "import mindrl.rewards.scorer, mindrl.rewards.service",
            {"torch", "ray", "vllm", "megatron", "transformers", "mindrl.config.run"},
        ),
        pytest.param(
            # In one process, because torch takes long to import.
            f"{TRAIN}\nassert not {{'vllm', 'ray'}} & set(sys.modules)\n{BUILD}\n{PREPARE}",
            {"megatron"},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_import_brings_nothing_heavy_along(statement: str, heavy: set[str]) -> None:
    code = (
        f"{statement}\nimport sys\n"
        f"found = {heavy!r} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


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


def test_sympy_is_there_before_a_scoring_process_is_forked() -> None:
    code = "import mindrl.rewards.service, sys; sys.exit('sympy' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
