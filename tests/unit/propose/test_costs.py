"""The cost model of proposals, each number derived by hand from docs/how-to/plan-a-run.md."""

from typing import Any

import numpy as np
import pytest
from proposal_tasks import asked

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.schedule import Region
from mindrl.propose.candidates import Candidate, Settings, most_at_a_time
from mindrl.propose.costs import (
    bubble_share,
    link_gbps,
    longest_stage,
    passed_prompts,
    rollout_seconds,
    training_seconds,
)
from mindrl.propose.fitting import least_reshard_seconds, least_sizes
from mindrl.propose.search import moved_by

QWEN = asked()
LAYER = (28 + 2 * 4) * 128 * (3584 + 1) + 3584 * 3584 + 3 * 3584 * 18944 + 2 * 3584
"""Parameters of a layer of Qwen2.5-7B; see test_explain_program.py."""
EMBEDDING = 152064 * 3584
PARAMETERS = 28 * LAYER + 2 * EMBEDDING + 3584
TOKENS = 256 * 4096
"""Of a step: 256 sequences of 2048 + 2048 tokens."""
RATE = 353e12 * 0.4
IN_NODE, ACROSS = 196e9 * 0.6, 25e9 * 0.6


def test_a_group_that_leaves_its_node_has_the_bandwidth_of_the_network() -> None:
    assert [link_gbps(QWEN, span) * 1e9 for span in (2, 8, 16)] == [IN_NODE, IN_NODE, ACROSS]


def test_three_of_four_stages_idle_for_one_of_128_micro_batches() -> None:
    layout = TrainLayout(tp=2, pp=4, dp=2)
    assert bubble_share(QWEN, layout, Settings(micro_batch_size=1)) == 3 / 128
    assert bubble_share(QWEN, layout, Settings(micro_batch_size=2)) == 3 / 64


def test_the_head_makes_the_last_stage_the_longest() -> None:
    matrices = LAYER  # norms and biases stand beside them, and cost next to nothing
    last = 7 * matrices + EMBEDDING
    mean = (28 * matrices + EMBEDDING) / 4
    assert longest_stage(QWEN, TrainLayout(tp=2, pp=4, dp=2)) == pytest.approx(last / mean)
    assert longest_stage(QWEN, TrainLayout(tp=2, dp=8)) == 1


def test_four_forward_passes_are_computed_and_five_with_recompute() -> None:
    """Log-probs of the reference, and an update that is three; recompute adds one."""
    matrices = 28 * ((28 + 2 * 4) * 128 * 3584 + 3584 * 3584 + 3 * 3584 * 18944) + EMBEDDING
    square = 28 * 28 * 2 * 128
    operations = 256 * (2 * matrices * 4096 + square * 4096**2)
    launches = 32 * 28 * 0.2e-3  # 32 micro-batches of a replica, 28 layers
    forward = operations / 16 / RATE + launches
    layout = TrainLayout(tp=2, dp=8)
    kept = training_seconds(QWEN, layout, Settings(recomputes=False))
    again = training_seconds(QWEN, layout, Settings(recomputes=True))
    assert kept["compute"] == pytest.approx(4 * forward)
    assert again["compute"] == pytest.approx(5 * forward)
    assert kept["bubble"] == 0


def test_tensor_ranks_sum_twice_a_layer_and_replicas_once_a_step() -> None:
    hidden = TOKENS / 8 * 3584 * 2  # bytes of a replica's hidden states
    sums = 28 * 2 * 2 * hidden * 1 / 2 / IN_NODE
    gradients = PARAMETERS / 2 * (4 + 2) * 7 / 8 / ACROSS
    seconds = training_seconds(QWEN, TrainLayout(tp=2, dp=8), Settings(recomputes=True))
    # Forward; forward and backward; with recompute once more.
    assert seconds["communication"] == pytest.approx(4 * sums + gradients)
    kept = training_seconds(QWEN, TrainLayout(tp=2, dp=8), Settings(recomputes=False))
    assert kept["communication"] == pytest.approx(3 * sums + gradients)


@pytest.mark.parametrize(
    ("micro_batch", "prompts"), [(1, 256), (2, 128), (4, 64), (8, 32), (16, 32)]
)
def test_a_prompt_costs_once_in_each_micro_batch(micro_batch: int, prompts: int) -> None:
    """Of 256 sequences of 2048 + 2048 tokens, 8 to a prompt; their responses cost as before."""
    task, layout = asked(engine="archon"), TrainLayout(tp=2, dp=8)
    settings = Settings(micro_batch_size=micro_batch)
    matrices = 28 * ((28 + 2 * 4) * 128 * 3584 + 3584 * 3584 + 3 * 3584 * 18944) + EMBEDDING
    square = 28 * 28 * 2 * 128
    tokens = prompts * 2048 + 256 * 2048
    pairs = prompts * 2048**2 + 256 * (4096**2 - 2048**2)
    launches = 32 / micro_batch * 28 * 0.2e-3
    forward = (2 * matrices * tokens + square * pairs) / 16 / RATE + launches
    seconds = training_seconds(task, layout, settings)
    assert seconds["compute"] == pytest.approx(4 * forward)
    hidden = tokens / 8 * 3584 * 2
    sums = 28 * 2 * 2 * hidden * 1 / 2 / IN_NODE
    weights = PARAMETERS / 2 * 7 / 8 / ACROSS * (32 / micro_batch * (2 + 2 * 2 + 4))
    assert seconds["communication"] == pytest.approx(3 * sums + weights)


def test_samples_of_five_are_cut_by_micro_batches_of_two() -> None:
    """Of ten sequences 01 23 4|5 67 89 one micro-batch has both prompts: six slots."""
    task = asked(engine="archon", prompts=2, samples=5)
    slots = passed_prompts(task, TrainLayout(dp=16), Settings(micro_batch_size=2))
    assert slots == pytest.approx(6)


@pytest.mark.parametrize(
    "changes",
    [
        # Never run on NPUs by Megatron, and not by itself where it saves less than a fifth.
        {"engine": "megatron"},
        {"engine": "archon", "prompt_tokens": 128},
        {"engine": "archon", "samples": 1, "algorithm": "ppo"},
    ],
)
def test_prompts_that_are_not_shared_cost_once_for_each_sample(changes: dict[str, Any]) -> None:
    task = asked(**changes)
    settings = Settings(micro_batch_size=8)
    assert passed_prompts(task, TrainLayout(dp=16), settings) == task.sequences


def test_weights_that_are_shared_are_borrowed_in_each_pass_of_each_micro_batch() -> None:
    """Of 32: 2 bytes a parameter in the pass that reads, twice 2 and the gradient in an update."""
    layout, settings = TrainLayout(tp=2, dp=8), Settings()
    shared, whole = (
        training_seconds(asked(engine=engine), layout, settings)["communication"]
        for engine in ("archon", "megatron")
    )
    byte = PARAMETERS / 2 * 7 / 8 / ACROSS
    assert shared - whole == pytest.approx((32 * (2 + 2 * 2 + 4) - (4 + 2)) * byte)
    stages = TrainLayout(tp=2, pp=2, dp=4)
    shared, whole = (
        training_seconds(asked(engine=engine), stages, settings)["communication"]
        for engine in ("archon", "megatron")
    )
    assert shared - whole == pytest.approx((2 + 2 + 4 - 6) * PARAMETERS / 4 * 3 / 4 / IN_NODE)


def test_a_critic_is_read_and_learns_as_the_actor_does() -> None:
    """A pass of the reference and one of the critic; of both an update that is three."""
    layout, settings = TrainLayout(tp=2, dp=8), Settings(recomputes=False)
    alone = training_seconds(QWEN, layout, settings)
    both = training_seconds(asked(algorithm="ppo"), layout, settings)
    assert both["compute"] == pytest.approx(alone["compute"] * 8 / 4)
    gradients = PARAMETERS / 2 * (4 + 2) * 7 / 8 / ACROSS
    sums = (alone["communication"] - gradients) / 3
    assert both["communication"] == pytest.approx(6 * sums + 2 * gradients)


def test_tokens_travel_to_their_experts_and_back_and_across_nodes_eight_times_as_slowly() -> None:
    """Qwen3-30B-A3B: 48 layers, 8 experts a token, 2048 wide; 1 / 16 of the tokens on a rank."""
    task = asked("Qwen3-30B-A3B")
    dispatched = TOKENS / 16 * 2048 * 2 * 8

    def seconds(ep: int) -> float:
        settings = Settings(recomputes=False)
        layouts = (TrainLayout(dp=16, ep=ep), TrainLayout(dp=16))
        with_it, without = (training_seconds(task, each, settings) for each in layouts)
        # Gradients of experts are summed over fewer ranks; what is left is the exchange.
        experts = 48 * 128 * 3 * 2048 * 768 * 6 / ACROSS
        saved = experts * 15 / 16 - experts / ep * (16 / ep - 1) / (16 / ep)
        return with_it["communication"] - without["communication"] + saved

    assert seconds(8) == pytest.approx(3 * 48 * 2 * dispatched * 7 / 8 / IN_NODE)
    assert seconds(16) == pytest.approx(3 * 48 * 2 * dispatched * 15 / 16 / ACROSS)


def test_decoding_reads_weights_and_kv_cache_once_a_token() -> None:
    weights, per_token = PARAMETERS * 2 / 4, 2 * 28 * 1 * 128 * 2
    found = rollout_seconds(QWEN, RolloutLayout(tp=4, dp=4), weights, 64, per_token)
    read = (weights + 64 * (2048 + 1024) * per_token) / (1600e9 * 0.6)
    sums = 28 * 2 * 2 * 64 * 3584 * 2 * 3 / 4 / IN_NODE
    overhead = 28 * (0.2e-3 + 2 * 20e-6)
    assert found["decode"] == pytest.approx(2048 * (read + sums + overhead))
    twice = rollout_seconds(QWEN, RolloutLayout(tp=4, dp=4), weights, 32, per_token)
    assert twice["decode"] > found["decode"] * 1.5  # two waves of 32


@pytest.mark.parametrize(("room", "at_a_time"), [(469, 64), (64, 64), (63, 32), (21, 16), (1, 1)])
def test_a_small_kv_cache_makes_equal_waves(room: int, at_a_time: int) -> None:
    """64 sequences of a replica: room for 63 means two waves, and two of 32 are as good."""
    assert most_at_a_time(QWEN, RolloutLayout(tp=4, dp=4), room) == at_a_time


def test_a_reshard_takes_as_long_as_its_busiest_rank() -> None:
    """Rank 0 sends 117.6 GB inside its node, a second's worth, and 30 GB outside, two seconds'."""
    task = asked(devices=4, devices_per_node=2)
    pairs = np.zeros((4, 4), dtype=np.int64)
    pairs[0, 1], pairs[0, 2], pairs[3, 2] = 117_600_000_000, 30_000_000_000, 1_000_000_000
    moved = moved_by(task, pairs)
    assert moved.seconds == pytest.approx(3.0)
    assert (moved.received, moved.across_nodes) == (148_600_000_000, 30_000_000_000)


def test_the_least_bytes_are_those_of_the_parameters_without_padding() -> None:
    candidate = Candidate(training=TrainLayout(tp=2, pp=2, dp=4), rollout=RolloutLayout(tp=4, dp=4))
    sizes = least_sizes(QWEN, candidate)
    first, last = (14 * LAYER + EMBEDDING) // 2, (14 * LAYER + EMBEDDING + 3584) // 2
    regions = {region: found.tolist() for region, found in sizes.plan.regions.items()}
    assert regions[Region.ACTOR_WEIGHTS] == [2 * first, 2 * last]
    assert regions[Region.ACTOR_GRADIENTS] == [4 * first, 4 * last]
    assert regions[Region.ACTOR_OPTIMIZER] == [3 * first, 3 * last]  # 12 bytes over 4 replicas
    assert regions[Region.ROLLOUT_WEIGHTS] == [PARAMETERS * 2 // 4] * 2
    assert sizes.cache.per_token == 2 * 28 * 1 * 128 * 2
    # A rank holds a quarter before the reshard and a quarter after it: perhaps the same one.
    assert least_reshard_seconds(QWEN, sizes.plan.regions) == 0
    wider = Candidate(training=candidate.training, rollout=RolloutLayout(dp=16))
    whole = least_reshard_seconds(QWEN, least_sizes(QWEN, wider).plan.regions)
    assert whole == pytest.approx((PARAMETERS * 2 - 1.01 * 2 * first) / IN_NODE)
