"""The plan of a run with separate rollout devices: links, and the memory of each side."""

from pathlib import Path

from geometry import check, shapes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import most_at_night

from mindrl.memory.schedule import Phase, Region
from mindrl.models.description import ModelDescription
from mindrl.preflight.derived_numbers import placement_text
from mindrl.preflight.host_parts import offload_keys
from mindrl.preflight.memory_plan import Capacity, advice_on, memory_plan
from mindrl.preflight.rollout_memory import rollout_memory_findings, rollout_memory_plan
from mindrl.preflight.run_shardings import (
    RunShardings,
    unordered_plan,
    unordered_shardings,
)
from mindrl.programs.compose import composed_config
from mindrl.resharding.plan import Topology

MODELS = Path(__file__).parents[3] / "configs" / "models"
GIB, MIB = 1 << 30, 1 << 20
NORMS = 57 * 3584


def apart(*overrides: str) -> RunShardings:
    """Qwen2.5-7B: training tp4 dp2 on 8 devices, four replicas of tp2 on 8 others."""
    keys = (
        f"actor_config.load={MODELS / 'Qwen2.5-7B'}",
        "rl_config.use_integrated_worker=false",
        "rl_config.rollout_resource.num_npus=8",
    )
    return unordered_shardings(composed_config("grpo_qwen25_7b", [*keys, *overrides])).ordered


def test_replicas_that_lie_alike_are_linked_by_one_plan() -> None:
    models = apart(
        "actor_config.tensor_model_parallel_size=4", "rl_config.actor_resource.num_npus=4"
    )
    # Four training ranks and two replicas fill the first node of 8, two replicas lie on the next.
    assert [models.plan.link_nodes(each) for each in range(4)] == [
        *[(0, 0, 0, 0, 0, 0)] * 2,
        *[(0, 0, 0, 0, 1, 1)] * 2,
    ]
    assert models.link(0) is models.link(1)
    assert models.link(2) is models.link(3)
    assert models.link(0) is not models.link(2)


def test_a_link_sends_each_weight_once_to_each_rank_that_needs_it() -> None:
    models = apart()
    assert models.link_size == 8 + 2
    moved = models.reshard
    # In bfloat16; the rollout has the same bytes, and the norms on both of its ranks.
    assert moved.received.tolist() == [0] * 8 + [7_615_616_512 + NORMS] * 2
    assert moved.received.tolist() == moved.lower_bound.tolist()
    assert moved.sent.sum() == 2 * (7_615_616_512 + NORMS)
    # No order of the training ranks spares a byte.
    assert models.ordered is models


def test_training_apart_keeps_all_on_the_device_unless_roles_take_turns() -> None:
    alone = memory_plan(apart("rl_config.init_kl_coef=0"), 64 * GIB)
    assert alone.kv_cache_bytes is None
    assert alone.world_size == 8
    assert alone.phases == (Phase.SEND, Phase.TRAIN)
    assert alone.movable == frozenset()
    trained = alone.sum([Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER])
    sending = trained + alone.regions[Region.STAGING]
    assert [at.label for at in alone.course.instants] == [
        "send_weights",
        "messages in flight",
        "train",
    ]
    assert alone.totals.tolist() == [each.tolist() for each in (trained, sending, trained)]
    assert alone.host_bytes.tolist() == [0] * 8
    assert [sum(map(int, each)) for each in alone.copied_bytes] == [0, 0]
    both = memory_plan(apart("rl_config.init_kl_coef=0.1"), 64 * GIB)
    assert both.phases == (Phase.SEND, Phase.REFERENCE, Phase.TRAIN)
    # Behind the update what learns leaves, and the weights stay to be sent.
    (sent,) = (at.resident for at in both.course.instants if at.label == "messages in flight")
    assert sent == {Region.ACTOR_WEIGHTS, Region.STAGING}
    assert Region.REFERENCE_WEIGHTS in both.movable


def test_a_replica_has_its_weights_messages_and_cache_on_the_device_at_once() -> None:
    found = rollout_memory_plan(apart("generate_config.gpu_memory_utilization=0.5"), 64 * GIB)
    assert found.world_size == 2
    weights = 7_615_616_512 + NORMS
    assert found.regions[Region.ROLLOUT_WEIGHTS].tolist() == [weights] * 2
    staging = int(found.regions[Region.STAGING].max())
    assert 0 < staging <= 256 * MIB
    # In whole MiB, of half the device.
    assert found.graphs == 11 * 28 * MIB
    assert found.kv_cache_bytes == (32 * GIB - weights - staging - found.graphs) // MIB * MIB
    assert [at.label for at in found.course.instants] == ["receive weights", "rollout"]
    assert found.peak_instant.label == "receive weights"
    assert found.peak_bytes == weights + staging + found.kv_cache_bytes == found.need_bytes(0)


TINY = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=2,
    vocab_size=32,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)


@settings(max_examples=most_at_night(60), deadline=None)
@given(
    sizes=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 4), (4, 1, 2)]),
    engine=st.sampled_from(["", "archon"]),
    tensor=st.sampled_from([1, 2, 4]),
    per_node=st.sampled_from([1, 2, 4, 8]),
    replica=st.integers(0, 2),
)
def test_the_links_of_any_run_receive_what_is_needed_and_not_held(
    sizes: tuple[int, int, int], engine: str, tensor: int, per_node: int, replica: int
) -> None:
    """Held against the tables alone, element by element."""
    tp, pp, dp = sizes
    config = composed_config(
        "grpo_qwen25_7b",
        [
            f"actor_config.backend={engine}:d{dp}p{pp}t{tp}" if engine else "actor_config.backend=",
            f"actor_config.tensor_model_parallel_size={tp}",
            f"actor_config.pipeline_model_parallel_size={pp}",
            f"rl_config.actor_resource.num_npus={tp * pp * dp}",
            f"rl_config.actor_resource.npus_per_node={per_node}",
            "rl_config.use_integrated_worker=false",
            f"rl_config.rollout_resource.num_npus={3 * tensor}",
            f"generate_config.infer_tensor_parallel_size={tensor}",
            "rl_config.init_kl_coef=0",
        ],
    )
    models = RunShardings(plan=unordered_plan(config, {"actor": TINY}))
    topology = Topology(ranks_per_node=per_node, placed=models.plan.link_nodes(replica))
    plan = check(models.source, models.rollout, shapes_of(TINY), topology, models.plan.bucket_bytes)
    assert plan.digest == models.link(replica).digest
    assert plan.copied.sum() == 0


def test_without_roles_that_take_turns_no_key_would_offload_anything() -> None:
    models = apart("rl_config.init_kl_coef=0", "megatron_training.use_distributed_optimizer=true")
    assert advice_on(memory_plan(models, 64 * GIB), models) == []
    assert offload_keys(models.plan.config) == {}


def test_separate_training_is_advised_to_share_its_optimizer() -> None:
    alone, shares = "rl_config.init_kl_coef=0", "megatron_training.use_distributed_optimizer"
    models = apart(alone, f"{shares}=false")
    (advice,) = advice_on(memory_plan(models, 64 * GIB), models)
    assert advice.setting == f"{shares}=true"
    shared = memory_plan(apart(alone, advice.setting), 64 * GIB)
    assert advice.peak_bytes == shared.peak_bytes


def test_a_replica_that_does_not_fit_its_devices_is_a_finding() -> None:
    models = apart("generate_config.kv_cache_mib=4096")
    there = Capacity(device_bytes=16 * GIB)
    assert [*rollout_memory_findings(models, there)] == []
    # Weights of 7.1 GiB, 4 GiB of KV cache, and messages.
    (said,) = rollout_memory_findings(models, Capacity(device_bytes=11 * GIB))
    assert said.field == "generate_config.kv_cache_mib"
    (said,) = rollout_memory_findings(
        apart("generate_config.kv_cache_mib=null"), Capacity(device_bytes=8 * GIB)
    )
    assert said.field == "generate_config.gpu_memory_utilization"
    unknown = Capacity(device_bytes=None)
    assert [*rollout_memory_findings(models, unknown)] == []


def test_a_replica_is_refused_exactly_below_its_peak_and_a_server_never() -> None:
    """Messages of 64 GiB are the most that there may be; the plan has less than one model."""
    sizes = ("generate_config.kv_cache_mib=4096", "generate_config.reshard_bucket_mib=65536")
    models = apart(*sizes)
    peak = rollout_memory_plan(models, None).needed_bytes
    assert [*rollout_memory_findings(models, Capacity(device_bytes=peak))] == []
    assert len([*rollout_memory_findings(models, Capacity(device_bytes=peak - 1))]) == 1
    served = apart(*sizes, "generate_config.servers=[http://127.0.0.1:8000]")
    assert [*rollout_memory_findings(served, Capacity(device_bytes=peak - 1))] == []


def test_the_map_of_the_devices_names_the_node_of_each_world() -> None:
    config = apart("rl_config.rollout_resource.first=true").plan.config
    assert placement_text(config) == (
        "training on 8 (node 1); replica 0 on 2 (node 0); replica 1 on 2 (node 0); "
        "replica 2 on 2 (node 0); replica 3 on 2 (node 0); rollout first"
    )


def test_training_rank_0_has_room_for_whole_tensors_on_their_way_to_sglang() -> None:
    models = apart(
        "generate_config.servers=[http://127.0.0.1:8000,http://127.0.0.1:8001]",
        "generate_config.backend=sglang:d2t4",
        "generate_config.infer_tensor_parallel_size=null",
    )
    assert models.broadcast is not None
    waiting = models.broadcast.waiting_bytes
    # The embedding and the head arrive at the same time, with smaller tensors.
    head = 152_064 * 3584 * 2
    assert 2 * head <= waiting < 3 * head
    found = memory_plan(models, None, models.most_staging).regions[Region.STAGING]
    assert found[0] == models.broadcast.plan.peak_staging[0] + waiting
    assert found.tolist() == memory_plan(models, None).regions[Region.STAGING].tolist()
