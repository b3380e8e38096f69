"""Bytes of replayed routes before the start, by hand.

Qwen3-30B-A3B: 48 layers of 8 experts of 128, so 384 bytes a token. The shipped run: 256 sequences
of up to 8,192 tokens in a step of one update, training t4 p2 d2, rollout in 4 replicas of 4
devices.
"""

from pathlib import Path

import pytest

from mindrl.preflight.memory_plan import Capacity, judged_memory, memory_plan
from mindrl.preflight.route_memory import kept_route_bytes, replayed_bytes
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.programs.compose import composed_config

MODEL = Path(__file__).parents[3] / "configs/models/Qwen3-30B-A3B"
SEQUENCE = 8192 * 384
OF_UPDATE = 128 * SEQUENCE // 2
"""A replica's half of the sequences, and a stage's half of the layers."""


def shardings_of(*overrides: str) -> RunShardings:
    asked = [f"actor_config.load={MODEL}", *overrides]
    return unordered_shardings(composed_config("grpo_qwen3_30b_a3b", asked)).ordered


def test_without_replay_no_routes_are_kept() -> None:
    plan = shardings_of().plan
    assert kept_route_bytes(plan) is None
    assert replayed_bytes(plan) == 0


def test_each_rank_keeps_the_routes_of_its_replica_and_stage_with_r2() -> None:
    plan = shardings_of("actor_config.router_replay=R2").plan
    assert replayed_bytes(plan) == OF_UPDATE
    kept = kept_route_bytes(plan)
    assert kept is not None
    # Of the step, and of its only update.
    assert kept.tolist() == [2 * OF_UPDATE] * 16


@pytest.mark.parametrize(("staleness", "steps"), [(0, 1), (2, 3)])
def test_the_first_rank_of_an_engine_keeps_the_routes_of_its_sequences_with_r3(
    staleness: int, steps: int
) -> None:
    stale = ["rl_config.partial_rollout=true", f"rl_config.max_staleness={staleness}"]
    replay = "actor_config.router_replay=R3"
    plan = shardings_of(replay, *(stale if staleness else [])).plan
    kept = kept_route_bytes(plan)
    assert kept is not None
    first = steps * 64 * SEQUENCE + OF_UPDATE
    assert kept.tolist() == [first, *[OF_UPDATE] * 3] * 4


@pytest.mark.nightly
def test_the_routes_count_among_what_a_machine_keeps_and_not_in_the_arena_of_a_rank() -> None:
    plain, replaying = (
        memory_plan(shardings_of(f"actor_config.router_replay={kind}"), None)
        for kind in ("none", "R3")
    )
    assert plain.host_bytes.tolist() == replaying.host_bytes.tolist()
    more = replaying.host_bytes_of_node(8) - plain.host_bytes_of_node(8)
    assert more == 8 * OF_UPDATE + 2 * 64 * SEQUENCE


def test_a_machine_without_room_for_the_routes_is_refused_before_the_start() -> None:
    least = memory_plan(shardings_of(), None).host_bytes_of_node(8)
    capacity = Capacity(host_bytes=least)
    assert judged_memory(shardings_of(), capacity) == ([], [])
    (finding,), _ = judged_memory(shardings_of("actor_config.router_replay=R3"), capacity)
    assert "the workers of one machine keep about" in str(finding)


def test_routes_that_no_other_key_makes_room_for_name_the_replay() -> None:
    stay = [f"generate_config.offload_train_{part}=false" for part in ("param", "grad")]
    stay += ["generate_config.offload_train_optimizer=false", "ref_config.offload_param=false"]
    capacity, replay = Capacity(host_bytes=1 << 20), "actor_config.router_replay"
    (finding,), _ = judged_memory(shardings_of(*stay, f"{replay}=R3"), capacity)
    assert (finding.field, finding.value, finding.legal) == (replay, "R3", ("none",))
    assert judged_memory(shardings_of(*stay, f"{replay}=none"), capacity) == ([], [])
