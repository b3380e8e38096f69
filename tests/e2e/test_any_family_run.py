"""A run with a model of a family that mindrl has no network of: transformers', on FSDP2."""

import shutil
from pathlib import Path

import pytest
from program import start_program

pytestmark = pytest.mark.e2e


def test_a_family_of_transformers_alone_trains_and_is_rolled_out_without_megatron(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "recipe*"))
    _save_stablelm(folder)
    asked = [f"actor_config.load={folder}", "actor_config.backend=fsdp:d2"]
    asked += ["megatron_training.train_iters=3", "rl_config.test_freq=0", "actor_config.lr=1e-3"]
    # No answer of a random model is right, and the bonus alone moves it.
    asked += ["generate_config.verify_weights=always", "rl_config.entropy_coeff=0.1"]
    # Python then tells of every import where the process writes.
    run = start_program(tmp_path / "run", asked, {"PYTHONPROFILEIMPORTTIME": "1"})
    assert run.process.wait(timeout=600) == 0, run.text()
    steps = run.steps()
    assert len(steps) == 3
    assert all(step["update/grad_norm"] > 0.0 for step in steps)
    assert steps[0]["update/entropy"] < steps[2]["update/entropy"]
    # The engine has what the actor has learned.
    assert all(step["logprob_gap/max"] < 1e-4 for step in steps)
    logs = [path.read_text() for path in (run.folder / "logs").glob("worker_*.log")]
    assert len(logs) == 2
    for log in logs:
        assert "torch.distributed.fsdp" in log
        assert "megatron.core" not in log


def _save_stablelm(folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(
        "stablelm",
        vocab_size=320,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=258,
        pad_token_id=256,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
