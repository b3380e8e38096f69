"""What is found before a cluster is started: model, files, rewards, backend."""

import json
from pathlib import Path
from typing import Any

import pytest
from checked_runs import (
    ACTOR,
    CPU,
    DEVICES,
    ROLLOUT_EP,
    ROLLOUT_TP,
    RUN,
    SIZES,
    TRAIN_EP,
    TRAIN_ETP,
    TRAIN_TP,
    MakeConfig,
    model_folder,
    overrides,
    refused,
)

from mindrl.errors import ConfigError
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check, check_without_files

ESTIMATOR, LOSS = "rl_config.adv_estimator", "rl_config.policy_loss"


def test_a_run_whose_parts_are_all_there_is_let_through(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    check(run_config(model_folder(tmp_path / "model"), overrides(tmp_path)), CPU)


def test_a_tensor_parallel_size_of_8_does_not_fit_28_heads(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    sizes = {DEVICES: 8, TRAIN_TP: 8}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | sizes)
    assert refused(config) == [
        f"{TRAIN_TP}=8 must divide num_attention_heads=28; nearest: 7, 14",
    ]


def test_more_ranks_than_key_value_heads_are_a_multiple_of_them_on_both_sides(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    sizes = {"num_attention_heads": 24, "hidden_size": 48, "intermediate_size": 96}
    folder = model_folder(tmp_path / "model", **sizes, num_key_value_heads=4)
    for field in (TRAIN_TP, ROLLOUT_TP):
        check(run_config(folder, overrides(tmp_path) | {DEVICES: 8, field: 8}), CPU)
        on_6 = overrides(tmp_path) | {DEVICES: 6, "rl_config.n_samples_per_prompt": 3}
        found = refused(run_config(folder, on_6 | {field: 6}))
        assert found[0] == (
            f"{field}=6 must divide num_key_value_heads=4 or be a multiple of it; nearest: 4, 8"
        )


MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "moe_intermediate_size": 6,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}


def test_experts_are_dealt_evenly_in_training_and_whole_or_cut_in_the_rollout(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder = model_folder(tmp_path / "model", **MIXTURE)
    on_4 = overrides(tmp_path) | {DEVICES: 4}
    assert refused(run_config(folder, on_4 | {TRAIN_EP: 4})) == [
        f"{TRAIN_EP}=4 must divide num_experts=6; nearest: 3, 6"
    ]
    assert refused(run_config(folder, on_4 | {TRAIN_ETP: 4})) == [
        f"{TRAIN_ETP}=4 must divide moe_intermediate_size=6; nearest: 3, 6"
    ]
    assert refused(run_config(folder, on_4 | {ROLLOUT_TP: 4})) == [
        f"{ROLLOUT_TP}=4 must divide moe_intermediate_size=6; nearest: 3, 6"
    ]
    # Two of the ranks have two experts each and two have one.
    check(run_config(folder, on_4 | {ROLLOUT_TP: 4, ROLLOUT_EP: 4}), CPU)


def test_stages_chunks_and_context_parallel_ranks_must_fit_layers_and_heads(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    """Three layers, 28 heads, 4 of them key-value heads."""
    folder = model_folder(tmp_path / "model", num_hidden_layers=3)
    on_8 = overrides(tmp_path) | {DEVICES: 8}
    pp, vpp = (
        f"{ACTOR}.pipeline_model_parallel_size",
        f"{ACTOR}.virtual_pipeline_model_parallel_size",
    )
    layers, cp = f"{ACTOR}.num_layer_list", f"{ACTOR}.context_parallel_size"
    assert refused(run_config(folder, on_8 | {pp: 2})) == [
        f"{pp}=2 must divide num_hidden_layers=3; nearest: 1, 3; or give {layers}"
    ]
    check(run_config(folder, on_8 | {pp: 2, layers: [1, 2]}), CPU)
    assert refused(run_config(folder, on_8 | {pp: 2, layers: [1, 1]})) == [
        f"{layers}=1,1 must be 2 numbers from 1 with the sum num_hidden_layers=3"
    ]
    assert refused(run_config(folder, on_8 | {vpp: 3})) == [
        f"{vpp}=3 needs {pp} of 2 or more, found 1"
    ]
    assert refused(run_config(folder, on_8 | {cp: 8})) == [
        f"{cp}=8 must divide the attention heads of a tensor-parallel rank=28; nearest: 7, 14"
    ]
    check(run_config(folder, on_8 | {cp: 4}), CPU)


def test_runs_of_recomputed_layers_must_divide_each_chunk(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder = model_folder(tmp_path / "model", num_hidden_layers=7)
    stages = {DEVICES: 2, f"{ACTOR}.pipeline_model_parallel_size": 2}
    chunks = stages | {f"{ACTOR}.num_layer_list": [4, 3], f"{ACTOR}.recompute_granularity": "full"}
    uniform = chunks | {f"{ACTOR}.recompute_method": "uniform", RUN: 2}
    assert refused(run_config(folder, overrides(tmp_path) | uniform)) == [
        f"{RUN}=2 must divide the layers of a pipeline chunk=3; nearest: 1, 3"
    ]
    # So many single layers of each chunk, or all where there are fewer.
    block = uniform | {f"{ACTOR}.recompute_method": "block", RUN: 9}
    check(run_config(folder, overrides(tmp_path) | block), CPU)


def test_a_dense_model_has_no_experts_to_balance(tmp_path: Path, run_config: MakeConfig) -> None:
    config = run_config(
        model_folder(tmp_path / "model"),
        overrides(tmp_path) | {f"{ACTOR}.moe_aux_loss_coeff": 0.01},
    )
    assert refused(config) == [f"{ACTOR}.moe_aux_loss_coeff=0.01 needs a model with experts; use 0"]


def test_a_dense_model_has_no_experts_to_group(tmp_path: Path, run_config: MakeConfig) -> None:
    grouped = {f"{ACTOR}.moe_grouped_gemm": True, "megatron_training.bf16": True}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | grouped)
    assert refused(config) == [
        f"{ACTOR}.moe_grouped_gemm=true needs a model with experts; use false"
    ]


def test_expert_sizes_of_a_dense_model_are_refused_each_with_its_key(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    sizes = {DEVICES: 4, TRAIN_EP: 2, TRAIN_ETP: 2, ROLLOUT_TP: 2, ROLLOUT_EP: 2}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | sizes)
    assert refused(config) == [
        f"{field}=2 needs a model with experts; use 1"
        for field in (TRAIN_EP, TRAIN_ETP, ROLLOUT_EP)
    ]


def test_megatron_trains_a_mixture_under_tensor_parallelism_with_sequence_parallelism_only(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    on_2 = overrides(tmp_path) | {DEVICES: 2, TRAIN_TP: 2}
    folder = model_folder(tmp_path / "model", **MIXTURE)
    assert refused(run_config(folder, on_2)) == [
        (
            f"megatron_training.sequence_parallel=false must be true: with {TRAIN_TP}=2 "
            "Megatron needs it to train experts"
        )
    ]
    check(run_config(folder, on_2 | {"megatron_training.sequence_parallel": True}), CPU)
    check(run_config(model_folder(tmp_path / "dense"), on_2), CPU)


def test_a_tensor_parallel_size_must_divide_the_width_of_the_feed_forward_layer(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder = model_folder(tmp_path / "model", intermediate_size=1022)
    sizes = {DEVICES: 4, TRAIN_TP: 4}
    assert refused(run_config(folder, overrides(tmp_path) | sizes)) == [
        f"{TRAIN_TP}=4 must divide intermediate_size=1022; nearest: 2, 7"
    ]


def test_a_sequence_may_not_be_longer_than_the_model_can_count(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder = model_folder(tmp_path / "model")
    longer = overrides(tmp_path, megatron_training__seq_length=129)
    assert (
        "megatron_training.seq_length=129 exceeds the model's max_position_embeddings=128"
        in refused(run_config(folder, longer))
    )
    check(run_config(folder, overrides(tmp_path, megatron_training__seq_length=128)), CPU)
    engine = overrides(tmp_path, generate_config__max_model_len=129)
    assert (
        "generate_config.max_model_len=129 exceeds the model's max_position_embeddings=128"
        in refused(run_config(folder, engine))
    )


def test_files_that_are_not_there_are_named_with_their_keys(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    files = {
        "megatron_training.data_path": "/no/train.jsonl",
        "megatron_training.test_data_path": "/no/test.jsonl",
    }
    assert refused(run_config(model_folder(tmp_path / "model"), files)) == [
        "megatron_training.data_path=/no/train.jsonl: no such file",
        "megatron_training.test_data_path=/no/test.jsonl: no such file",
    ]


def test_a_folder_without_data_is_refused(tmp_path: Path, run_config: MakeConfig) -> None:
    (tmp_path / "empty.v1").mkdir()
    folder = {"megatron_training.data_path": f"{tmp_path}/empty.v1"}
    assert refused(run_config(model_folder(tmp_path / "model"), folder)) == [
        (
            f"megatron_training.data_path: folder {tmp_path}/empty.v1 has no .jsonl or .json or "
            ".parquet or .csv file"
        )
    ]


def test_a_model_folder_that_cannot_be_read_is_refused_with_what_is_wrong_with_it(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    (empty := tmp_path / "empty").mkdir()
    (bare := model_folder(tmp_path / "bare") / "model.safetensors").unlink()
    larger = model_folder(tmp_path / "larger")
    (larger / "config.json").write_text(json.dumps(SIZES | {"vocab_size": 95}), encoding="utf-8")
    for folder, reason in (
        (tmp_path / "nowhere", f"model folder {tmp_path}/nowhere does not exist"),
        (
            larger / "model.safetensors",
            (
                f"model folder {larger}/model.safetensors is a file; use the folder with "
                f"config.json, {larger}"
            ),
        ),
        (empty, f"model folder {empty} has no config.json"),
        (bare.parent, f"model folder {bare.parent} has no .safetensors file"),
        (
            larger,
            (
                f"{larger}: tensor model.embed_tokens.weight has shape [96, 28]; "
                "config.json needs [95, 28]"
            ),
        ),
    ):
        (finding,) = refused(run_config(folder, overrides(tmp_path)))
        assert finding.endswith(reason)


def test_a_reward_that_does_not_import_is_refused_before_anything_starts(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    rewards = {
        "rl_config.verifier_function": ["math_verify", "no_such_package.rewards:score"],
        "rl_config.verifier_weight": [1.0, 1.0],
    }
    (finding,) = refused(
        run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | rewards)
    )
    assert finding.startswith("rl_config.verifier_function='no_such_package.rewards:score'")
    assert "No module named 'no_such_package'" in finding


def test_parts_of_an_algorithm_that_do_not_serve_are_refused_before_anything_starts(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    own = tmp_path / "own.py"
    own.write_text("def nothing(_):\n    return None\n")
    keys = [f"rl_config.{name}" for name in ("adv_estimator", "policy_loss")]
    chosen = overrides(tmp_path) | dict.fromkeys(keys, f"{own}:nothing")
    found = refused(run_config(model_folder(tmp_path / "model"), chosen))
    assert [finding.partition("=")[0] for finding in found] == keys
    assert all("TypeError" in finding for finding in found)


@pytest.mark.parametrize(
    ("field", "name", "ends"),
    [
        (ESTIMATOR, "grpo", f"grpo is verl's name: write {ESTIMATOR}=group_norm"),
        (ESTIMATOR, "rloo_vectorized", f"verl's name: write {ESTIMATOR}=rloo"),
        (ESTIMATOR, "dr_grpo", f"OpenRLHF's name: write {ESTIMATOR}=group_mean"),
        # No key of mindrl has the meaning of verl's gpg.
        (ESTIMATOR, "gpg", "or your own function: package.module:function"),
        (LOSS, "vanilla", f"verl's name: write {LOSS}=dual_clip"),
        (LOSS, "dapo", "TRL's name: write rl_config.loss_aggregation=token_mean"),
    ],
)
def test_a_part_by_the_name_of_another_trainer_is_refused_with_ours(
    field: str, name: str, ends: str, tmp_path: Path, run_config: MakeConfig
) -> None:
    model, changes = model_folder(tmp_path / "model"), {field: name}
    (finding,) = refused(run_config(model, overrides(tmp_path) | changes))
    assert finding.startswith(f"{field}={name} must be ")
    assert finding.endswith(ends)


def test_the_loss_and_its_options_are_checked_before_anything_starts(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model, key = model_folder(tmp_path / "model"), "rl_config.policy_loss"
    changes = {key: "sapoo"}
    assert refused(run_config(model, overrides(tmp_path) | changes)) == [
        (
            f"{key}=sapoo must be cispo, clip_cov, clipped, dual_clip, gmpo, gspo, kl_cov, plain, "
            "sapo, or your own function: package.module:function"
        )
    ]
    changes = {key: "sapo", f"{key}_options": {"tau": 1.0, "sapo_tau_positive": 2.0}}
    has = f"is not an option; {key}=sapo has none"
    assert refused(run_config(model, overrides(tmp_path) | changes)) == [
        f"{key}_options.sapo_tau_positive {has}; set rl_config.sapo_tau_positive itself",
        f"{key}_options.tau {has}",
    ]


def test_an_engine_that_takes_prompts_in_one_piece_needs_room_for_the_longest(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    tokens = "generate_config.max_num_batched_tokens"
    config = run_config(
        model, overrides(tmp_path) | {tokens: 63, "generate_config.max_num_seqs": 8}
    )
    assert refused(config) == [
        (
            f"{tokens}=63 must be at least generate_config.max_model_len=64 on cpu "
            "devices, where the engine processes a prompt in one step"
        )
    ]
    check_without_files(config, PLATFORMS["npu"])


def test_a_backend_of_another_device_is_refused_with_the_one_of_this(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    nccl = overrides(tmp_path, megatron_training__distributed_backend="nccl")
    assert refused(run_config(model, nccl)) == [
        "megatron_training.distributed_backend=nccl: cpu devices use gloo"
    ]
    gloo = overrides(tmp_path, megatron_training__distributed_backend="gloo")
    check(run_config(model, gloo), CPU)


def test_findings_of_every_kind_come_together_one_a_line(run_config: MakeConfig) -> None:
    wrong = {
        "rl_config.n_samples_per_prompt": 1,
        "megatron_training.distributed_backend": "hccl",
        "megatron_training.data_path": "/no/train.jsonl",
        "rl_config.verifier_function": ["math_verfy"],
        "rl_config.verifier_weight": [1.0],
    }
    *findings, model = refused(run_config(Path("/no/model"), wrong))
    assert [finding.split("=")[0] for finding in findings] == [
        "rl_config.n_samples_per_prompt",
        "megatron_training.distributed_backend",
        "rl_config.verifier_function",
        "megatron_training.data_path",
    ]
    assert model.endswith("model folder /no/model does not exist")


def test_without_files_what_is_missing_is_returned_and_the_rest_is_still_checked(
    run_config: MakeConfig,
) -> None:
    elsewhere = {"megatron_training.data_path": "/no/train.jsonl"}
    missing = check_without_files(run_config(Path("/no/model"), elsewhere), CPU)
    assert "megatron_training.data_path=/no/train.jsonl: no such file" in missing
    assert "actor_config.load=/no/model: no such folder" in missing
    broken = elsewhere | {"rl_config.n_samples_per_prompt": 1}
    with pytest.raises(ConfigError, match=r"^rl_config\.n_samples_per_prompt=1 must be"):
        check_without_files(run_config(Path("/no/model"), broken), CPU)


def test_without_files_a_model_that_is_there_is_checked(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    sizes = {DEVICES: 8, TRAIN_TP: 8}
    with pytest.raises(ConfigError, match="must divide num_attention_heads=28; nearest: 7, 14"):
        check_without_files(run_config(model_folder(tmp_path / "model"), sizes), CPU)


def test_a_model_with_a_window_runs_up_to_it(tmp_path: Path, run_config: MakeConfig) -> None:
    folder = model_folder(tmp_path / "model", model_type="mistral", sliding_window=64)
    assert check(run_config(folder, overrides(tmp_path)), CPU).models["actor"].sliding_window == 64
    longer = overrides(tmp_path, megatron_training__seq_length=65)
    assert refused(run_config(folder, longer)) == [
        (
            "megatron_training.seq_length=65 exceeds the model's sliding_window=64; "
            "mindrl applies full attention, which is equal only up to the window"
        )
    ]
