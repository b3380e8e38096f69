"""Where a device stands under each role that lies on it."""

import re
from itertools import chain

import pytest

from mindrl.allocation.device_map import DeviceMap, map_groups, map_roles
from mindrl.allocation.mode import parse_mode
from mindrl.allocation.model_allocation import parse_backend
from mindrl.errors import ConfigError


def four_devices() -> DeviceMap:
    """The example of the older document: two halves, and a reference over both."""
    return map_roles(
        [
            ("actor", parse_backend("megatron:t2"), range(2)),
            ("critic", parse_backend("megatron:p2"), range(2, 4)),
            ("ref", parse_backend("megatron:p2t2"), range(4)),
        ]
    )


def test_actor_and_critic_take_half_the_devices_each_and_the_reference_all() -> None:
    device_map = four_devices()
    assert device_map.devices == 4
    assert [device_map.roles_of(device) for device in range(4)] == [
        ["actor", "ref"],
        ["actor", "ref"],
        ["critic", "ref"],
        ["critic", "ref"],
    ]
    assert device_map.roles["actor"].groups("tp") == [[0, 1]]
    assert device_map.roles["actor"].groups("pp") == [[0], [1]]
    assert device_map.roles["critic"].groups("pp") == [[2, 3]]
    assert device_map.roles["critic"].groups("tp") == [[2], [3]]
    assert device_map.roles["ref"].groups("tp") == [[0, 1], [2, 3]]
    assert device_map.roles["ref"].groups("pp") == [[0, 2], [1, 3]]


def test_a_device_has_ranks_of_its_own_under_each_role() -> None:
    device_map = four_devices()
    critic = device_map.scope("critic", device=3)
    assert (critic.rank, critic.world_size) == (1, 2)
    assert [critic.rank_in(each) for each in ("tp", "pp", "dp")] == [0, 1, 0]
    assert [critic.group(each) for each in ("tp", "pp")] == [[3], [2, 3]]
    reference = device_map.scope("ref", device=3)
    assert reference.rank == 3
    assert [reference.rank_in(each) for each in ("tp", "pp", "dp")] == [1, 1, 0]
    assert [reference.group(each) for each in ("tp", "pp")] == [[2, 3], [1, 3]]
    assert [reference.size_of(each) for each in ("tp", "pp", "dp", "cp")] == [2, 2, 1, 1]


def test_device_2_is_tensor_rank_1_of_the_actor_and_0_of_the_reference() -> None:
    device_map = map_roles(
        [
            ("actor", parse_backend("megatron:t2"), range(1, 3)),
            ("ref", parse_backend("megatron:p2t2"), range(4)),
        ]
    )
    assert device_map.scope("actor", device=2).rank_in("tp") == 1
    assert device_map.scope("ref", device=2).rank_in("tp") == 0


def test_every_device_is_in_the_group_that_it_names() -> None:
    device_map = parse_mode(
        "vllm[rollout]:d4t2e4+megatron[actor]:(attn:d2t2c2|ffn:t2e2)|fsdp[ref]:d4t2"
    ).device_map
    for role, placed in device_map.roles.items():
        for dimension in ("tp", "cp", "dp", "pp", "etp", "ep", "edp"):
            groups = placed.groups(dimension)
            assert sorted(chain.from_iterable(groups)) == list(placed.devices)
            for device in placed.devices:
                scope = device_map.scope(role, device=device)
                group = scope.group(dimension)
                assert group in groups
                assert group[scope.rank_in(dimension)] == device


def test_experts_have_groups_of_their_own() -> None:
    actor = parse_mode("megatron:(attn:d4t2|ffn:t2e2)").device_map.roles["actor"]
    assert actor.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert actor.groups("etp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert actor.groups("ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert actor.groups("edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_rollout_shares_experts_as_its_layout_says() -> None:
    device_map = parse_mode("vllm:d4p2t2e4").device_map
    placed = device_map.roles["rollout"]
    layout = placed.allocation.layout
    # Ranks are numbered tp first, then pp, then dp: stage 0 of replicas 0 and 1 is 0, 1, 4, 5.
    assert placed.groups("ep") == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    for device in range(16):
        scope = device_map.scope("rollout", device=device)
        assert scope.rank_in("ep") == layout.expert_rank_of(device)  # type: ignore[union-attr]
        assert scope.rank_in("tp") == layout.tensor_rank_of(device)  # type: ignore[union-attr]
        assert scope.rank_in("pp") == layout.stage_of(device)  # type: ignore[union-attr]
        assert scope.rank_in("dp") == layout.replica_of(device)


def test_batches_go_between_the_devices_that_speak_for_replicas() -> None:
    device_map = parse_mode("vllm:d2t2+megatron:d2p2").device_map
    assert device_map.roles["rollout"].leaders == [0, 2]
    # The last stage knows the results; of ranks 0 to 3, data parallel first, that is 2 and 3.
    assert device_map.roles["actor"].leaders == [6, 7]
    assert device_map.transfer_group("rollout", "actor") == [0, 2, 6, 7]


def test_what_does_not_lie_there_is_refused() -> None:
    device_map = four_devices()
    fsdp = parse_backend("fsdp:d4")
    for ask, message in (
        (
            lambda: device_map.scope("actor", device=2),
            "device 2 holds no part of actor; that lies on devices 0 to 1",
        ),
        (
            lambda: device_map.scope("rollout", device=0),
            "there is no 'rollout'; known: actor, critic, ref",
        ),
        (
            lambda: device_map.scope("ref", device=0).rank_in("vp"),
            "'vp' is no dimension; known: tp, cp, dp, pp, etp, ep, edp",
        ),
        (
            lambda: map_roles([("ref", fsdp, range(3))]),
            "ref=fsdp:d4 cannot lie on range(0, 3); it takes 4 devices one behind the other",
        ),
        (
            lambda: map_roles([("ref", fsdp, range(-2, 2))]),
            "ref=fsdp:d4 cannot lie on range(-2, 2); it takes 4 devices one behind the other",
        ),
        (
            lambda: map_roles([("ref", fsdp, range(0, 8, 2))]),
            "ref=fsdp:d4 cannot lie on range(0, 8, 2); it takes 4 devices one behind the other",
        ),
        (
            lambda: map_groups([{"ref": fsdp}, {"ref": fsdp}]),
            "ref is placed twice; leave one out",
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            ask()
