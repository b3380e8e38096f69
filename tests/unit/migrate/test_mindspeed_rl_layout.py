"""Import of MindSpeed-RL's layouts: stages, chunks, experts, heads."""

import pytest
from mindspeed_rl_files import EXPERTS, imported, of


@pytest.mark.parametrize("written", ["6,8,7,7", [6, 8, 7, 7]])
def test_a_list_of_layers_may_be_text(written: object) -> None:
    result = imported(
        {"actor_config.pipeline_model_parallel_size": 4, "actor_config.num_layer_list": written}
    )
    assert result.values["actor_config.num_layer_list"] == [6, 8, 7, 7]


def test_layers_a_chunk_become_chunks_a_stage() -> None:
    stages = {"actor_config.pipeline_model_parallel_size": 2}
    per_chunk = "actor_config.num_layers_per_virtual_pipeline_stage"
    result = imported({**stages, per_chunk: 7})
    assert result.values["actor_config.virtual_pipeline_model_parallel_size"] == 2
    assert of(result, per_chunk).note == "28 layers / 2 stages / 7 layers per chunk"
    refused = imported({**stages, per_chunk: 5}).refused
    assert [each.key for each in refused] == [per_chunk]


def test_empty_layers_become_uneven_stages() -> None:
    result = imported(
        {
            "actor_config.num_layers": 96,
            "actor_config.noop_layers": "5,95",
            "actor_config.pipeline_model_parallel_size": 16,
        },
        EXPERTS,
    )
    sizes = result.values["actor_config.num_layer_list"]
    assert sizes == [5, *[6] * 14, 5]
    assert sum(sizes) == 94


@pytest.mark.parametrize(("extends", "expert", "cut"), [(True, 16, 1), (False, 4, 4)])
def test_tensor_parallel_ranks_share_experts_or_cut_them(
    extends: bool, expert: int, cut: int
) -> None:
    result = imported(
        {
            "actor_config.tensor_model_parallel_size": 4,
            "actor_config.expert_model_parallel_size": 4,
            "actor_config.moe_tp_extend_ep": extends,
        },
        EXPERTS,
    )
    assert result.values["actor_config.expert_model_parallel_size"] == expert
    assert result.values["actor_config.expert_tensor_parallel_size"] == cut


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss"])
def test_experts_are_balanced_within_what_they_were(kind: str) -> None:
    asked = {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": 0.01}
    result = imported({f"actor_config.{key}": value for key, value in asked.items()}, EXPERTS)
    assert result.refused == ()
    assert result.values["actor_config.moe_aux_loss_coeff"] == 0.01
    key = "actor_config.moe_router_load_balancing_type"
    assert result.values.get(key, "aux_loss") == kind


def test_rollout_experts_of_several_replicas_come_into_one() -> None:
    result = imported(
        {
            "generate_config.infer_tensor_parallel_size": 1,
            "generate_config.infer_expert_parallel_size": 8,
        },
        EXPERTS,
    )
    assert result.values["generate_config.infer_tensor_parallel_size"] == 8
    assert result.values["generate_config.infer_expert_parallel_size"] == 8


@pytest.mark.parametrize(
    ("tensor", "expert", "there", "here", "tokens"),
    [
        (1, 8, 16, 128, 4096),
        # 16 devices are four replicas there and one here.
        (4, 16, 96, 96 * 16 // 4, 4096),
        (2, 8, 1024, 8192, 8192),
        (4, 1, 96, 96, 4096),
    ],
)
def test_a_larger_replica_decodes_what_its_devices_did(
    tensor: int, expert: int, there: int, here: int, tokens: int
) -> None:
    key = "generate_config.max_num_seqs"
    result = imported(
        {
            "rl_config.actor_resource.num_npus": 16,
            "generate_config.infer_tensor_parallel_size": tensor,
            "generate_config.infer_expert_parallel_size": expert,
            key: there,
        },
        EXPERTS,
    )
    (entry,) = (each for each in result.mapped if each.key == key)
    assert entry.sets == {key: here}
    assert (entry.kind, f"was {there} per replica" in entry.note) == (
        ("honoured", False) if here == there else ("derived", True)
    )
    assert result.values["generate_config.max_num_batched_tokens"] == tokens


def test_ring_attention_is_imported_as_meant_and_a_size_of_1_needs_no_method() -> None:
    ring = {"actor_config.context_parallel_algo": "megatron_cp_algo"}
    ours = "actor_config.context_parallel_algo"
    result = imported({**ring, "actor_config.context_parallel_size": 2})
    assert result.values[ours] == "megatron_cp_algo"
    assert result.values["actor_config.context_parallel_size"] == 2
    assert ours not in imported(ring).values


def test_overlap_comes_along_where_megatron_would_use_it() -> None:
    gathers, sharded = "overlap_param_gather", "use_distributed_optimizer"
    keys = {"overlap_grad_reduce": True, gathers: True, "ddp_bucket_size": 5, sharded: True}
    given = {f"actor_config.{key}": value for key, value in keys.items()}
    found = imported(given).values
    assert {key: found[f"megatron_training.{key}"] for key in keys} == keys
    whole = imported(given | {f"actor_config.{sharded}": False}).values
    assert whole[f"megatron_training.{gathers}"] is False
    alone = imported(given | {"actor_config.overlap_grad_reduce": False})
    assert "megatron_training.ddp_bucket_size" not in alone.values
    assert of(alone, "actor_config.ddp_bucket_size").note == (
        "no effect without overlap_grad_reduce"
    )
