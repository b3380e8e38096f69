"""A run with a network of a user's own: by its spec it trains, is rolled out and goes to files."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from program import start_program

from mindrl.checkpoint.files import tensor_shapes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

OWN = Path(__file__).parents[1] / "own_models"
ENVIRONMENT: Mapping[str, str] = {"PYTHONPATH": str(OWN)}


def test_a_users_own_network_trains_in_tensor_parallel_ranks_and_vllm_has_what_it_learned(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "recipe*"))
    _save_nemotron(folder)
    asked = [f"actor_config.load={folder}", "actor_config.backend=archon:d1t2"]
    asked += ["megatron_training.own_models=[own_nemotron.spec:SPEC]"]
    asked += ["megatron_training.train_iters=3", "rl_config.test_freq=0", "actor_config.lr=1e-3"]
    # No answer of a random model is right, and the bonus alone moves it.
    asked += ["generate_config.verify_weights=always", "rl_config.entropy_coeff=0.1"]
    run = start_program(tmp_path / "run", asked, ENVIRONMENT)
    assert run.process.wait(timeout=600) == 0, run.text()
    steps = run.steps()
    assert len(steps) == 3
    assert all(step["update/grad_norm"] > 0.0 for step in steps)
    assert steps[0]["update/entropy"] < steps[2]["update/entropy"]
    # The engine has what the actor has learned.
    assert all(step["logprob_gap/max"] < 1e-4 for step in steps)
    folders = tmp_path / "run/model", folder
    exported, begun = (tensor_shapes(str(each)) for each in folders)
    assert exported == begun


def _save_nemotron(folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(
        "nemotron",
        vocab_size=320,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attention_bias=True,
        mlp_bias=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=258,
        pad_token_id=256,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
