"""Runs with models of families that mindrl has no network of: transformers', on FSDP2."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from nested_folders import nest, others_of, tensors_of
from program import kill_at_once, start_program
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mindrl.checkpoint.commits import checksum_of
from mindrl.observability.metrics import computed

pytestmark = pytest.mark.e2e


@pytest.mark.nightly
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
    # What was imported before they were forked: tests/unit/cluster/test_prefork.py.
    for log in logs:
        assert "import time:" in log
        assert "megatron.core" not in log


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["d1t1", "d1t2"])
def test_gated_delta_nets_are_rolled_out_with_the_weights_of_the_trainer_to_a_mean_of_1e_6(
    engine: str, taught_delta_model: Path, tmp_path: Path
) -> None:
    asked = ["--config-name", "grpo_qwen35_tiny_cpu", f"actor_config.load={taught_delta_model}"]
    asked += ["megatron_training.train_iters=3", "rl_config.test_freq=0", "actor_config.lr=1e-3"]
    asked += ["generate_config.verify_weights=always"]
    if engine == "d1t2":
        asked.append("generate_config.backend=vllm:d1t2")
    run = start_program(tmp_path / "run", asked)
    assert run.process.wait(timeout=600) == 0, run.text()
    steps = run.steps()
    assert len(steps) == 3
    assert all(step["update/grad_norm"] > 0.0 for step in steps)
    # Single tokens differed by up to 2.3e-4: a state carries rounding on from token to token.
    assert all(0.0 < step["logprob_gap/mean"] <= 1e-6 for step in steps)
    assert "were predicted" not in run.text()
    # Names and shapes of the folder that the run began with.
    begun, ended = (
        {name: tuple(each.shape) for name, each in load_file(folder / "model.safetensors").items()}
        for folder in (taught_delta_model, run.folder / "model")
    )
    assert ended == begun


LENGTH = """
def length(response: str, reference: str) -> float:
    return min(1.0, len(response) / 400)
"""
"""A reward that any random model earns, and unequally."""


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["fsdp", "archon"])
def test_the_decoder_of_a_folder_with_a_tower_learns_as_if_it_were_alone_and_keeps_its_folder(
    engine: str, untaught_delta_model: Path, tmp_path: Path
) -> None:
    nested, reward = tmp_path / "nested", tmp_path / "reward.py"
    nest(untaught_delta_model, nested)
    reward.write_text(LENGTH)
    asked = ["--config-name", "grpo_qwen35_tiny_cpu", f"actor_config.backend={engine}:d2"]
    asked += ["megatron_training.train_iters=3", "rl_config.test_freq=0", "actor_config.lr=1e-3"]
    asked += ["generate_config.verify_weights=always"]
    asked += [f"rl_config.verifier_function=[{reward}:length]", "rl_config.verifier_weight=[1.0]"]
    found = {}
    for name, folder in {"nested": nested, "flat": untaught_delta_model}.items():
        run = start_program(tmp_path / f"run_{name}", [*asked, f"actor_config.load={folder}"])
        assert run.process.wait(timeout=600) == 0, run.text()
        found[name] = [computed(step) for step in run.steps()], run.folder / "model"
    (steps, ours), (expected, theirs) = found["nested"], found["flat"]
    assert steps == expected
    assert len({step["reward/mean"] for step in steps}) == 3
    # A random model's sequences are the longest, and its states carry rounding on.
    assert all(0.0 < step["logprob_gap/mean"] < 1e-4 for step in steps)
    kept = others_of(nested)
    for name, tensor in kept.items():
        assert torch.equal(others_of(ours)[name], tensor)
    assert tensors_of(ours).keys() == tensors_of(nested).keys()
    decoder = AutoModelForCausalLM.from_pretrained(ours).state_dict()
    learned = AutoModelForCausalLM.from_pretrained(theirs).state_dict()
    assert all(torch.equal(decoder[name], tensor) for name, tensor in learned.items())
    begun = AutoModelForCausalLM.from_pretrained(nested).state_dict()
    assert not torch.equal(begun["lm_head.weight"], learned["lm_head.weight"])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_mixture_with_gated_delta_nets_learns_and_goes_on_to_the_same_bits_when_it_is_killed(
    taught_delta_mixture: Path, tmp_path: Path
) -> None:
    asked = ["--config-name", "grpo_qwen35_moe_tiny_cpu"]
    asked += [f"actor_config.load={taught_delta_mixture}", "megatron_training.train_iters=8"]
    asked += ["megatron_training.save_interval=3", "generate_config.verify_weights=always"]
    # Five times that of the configuration, which takes 30 steps.
    asked += ["actor_config.lr=1e-3"]
    straight = start_program(tmp_path / "straight", asked)
    assert straight.process.wait(timeout=1500) == 0, straight.text()
    summary = straight.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.3
    assert all(0.0 < step["logprob_gap/mean"] <= 1e-6 for step in straight.steps())

    killed = start_program(tmp_path / "killed", asked)
    killed.wait_for_line("step 5/8", timeout_seconds=1500)
    kill_at_once(killed.process)
    resumed = start_program(killed.folder, ["--resume", str(killed.folder)])
    assert resumed.process.wait(timeout=1500) == 0, resumed.text()
    assert "continues after step 3" in resumed.text()
    runs = straight, resumed
    first, second = ([computed(step) for step in run.steps()] for run in runs)
    assert first == second
    models = [checksum_of(run.folder / "model/model.safetensors") for run in runs]
    assert models[0] == models[1]


@pytest.fixture
def granite(tiny_model: Path, tmp_path: Path) -> Path:
    """Save the quickstart's model as one of Granite's, which computes the same by these factors."""
    folder = tmp_path / "granite"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "recipe*"))
    values = json.loads((tiny_model / "config.json").read_text())
    # vLLM's Granite would have attention sinks with them, which no file has.
    del values["layer_types"]
    values |= {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    values |= {"attention_bias": True, "attention_multiplier": 32**-0.5, "logits_scaling": 1.0}
    values |= {"embedding_multiplier": 1.0, "residual_multiplier": 1.0}
    (folder / "config.json").write_text(json.dumps(values))
    weights = load_file(tiny_model / "model.safetensors")
    outputs = [name for name in weights if name.endswith("o_proj.weight")]
    for name in outputs:
        weights[name.replace("weight", "bias")] = weights[name].new_zeros(len(weights[name]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.nightly
def test_tensor_ranks_of_such_a_family_learn_from_under_half_to_most_answers_right(
    granite: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={granite}", "actor_config.backend=fsdp:d1t2"]
    asked += ["megatron_training.train_iters=10", "generate_config.verify_weights=always"]
    run = start_program(tmp_path / "run", asked)
    assert run.process.wait(timeout=900) == 0, run.text()
    summary = run.summary()
    # As the same model does as one of Qwen2's.
    assert 0.15 <= summary["accuracy_before"] <= 0.55
    assert summary["accuracy_after"] >= summary["accuracy_before"] + 0.35
    assert summary["logprob_gap_max_mean"] < 1e-4
    assert "were predicted" not in run.text()


@pytest.mark.nightly
def test_ppo_has_a_critic_of_such_a_family_which_learns_what_to_expect(
    granite: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={granite}", "actor_config.backend=fsdp:d1t2"]
    asked += ["critic_config.backend=fsdp:d2", "ref_config.backend=fsdp:d2"]
    asked += ["megatron_training.train_iters=16", "rl_config.test_freq=0"]
    run = start_program(tmp_path / "run", asked, program="train_ppo")
    assert run.process.wait(timeout=900) == 0, run.text()
    first, *_, last = run.steps()
    assert last["critic/value_loss"] < 0.5 * first["critic/value_loss"]
    assert last["value/explained_variance"] > first["value/explained_variance"]
    assert run.summary()["accuracy_after"] >= run.summary()["accuracy_before"] + 0.3
    assert "were predicted" not in run.text()
    assert "score.weight" in load_file(run.folder / "critic/model.safetensors")


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
