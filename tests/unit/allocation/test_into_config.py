"""Layouts of a configuration written as strings: the sizes they stand for, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from mindrl.allocation.into_config import deprecation, in_words_of_backend, with_sizes
from mindrl.config.finding import Finding
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout

REQUIRED: dict[str, Any] = {
    "megatron_training": {
        "train_iters": 1,
        "global_batch_size": 8,
        "seq_length": 64,
        "data_path": "data.jsonl",
    },
    "actor_config": {"load": "model"},
    "rl_config": {"mini_batch_size": 8, "n_samples_per_prompt": 2},
    "generate_config": {},
}
PATH = {
    "actor": "actor_config.backend",
    "ref": "ref_config.backend",
    "critic": "critic_config.backend",
    "reward": "reward_config.backend",
    "rollout": "generate_config.backend",
    "mode": "rl_config.allocation_mode",
    "devices": "rl_config.actor_resource.num_npus",
    "rollout_devices": "rl_config.rollout_resource.num_npus",
    "critic_devices": "rl_config.critic_resource.num_npus",
    "actor_first": "rl_config.actor_resource.first_npu",
    "critic_first": "rl_config.critic_resource.first_npu",
    "integrated": "rl_config.use_integrated_worker",
    "tp": "actor_config.tensor_model_parallel_size",
    "pp": "actor_config.pipeline_model_parallel_size",
    "cp": "actor_config.context_parallel_size",
    "vpp": "actor_config.virtual_pipeline_model_parallel_size",
    "ep": "actor_config.expert_model_parallel_size",
    "etp": "actor_config.expert_tensor_parallel_size",
    "rollout_tp": "generate_config.infer_tensor_parallel_size",
    "rollout_ep": "generate_config.infer_expert_parallel_size",
    "ref_tp": "ref_config.tensor_model_parallel_size",
    "reward_model": "reward_config.load",
}


def sections(**given: Any) -> dict[str, Any]:
    values = {name: dict(section) for name, section in REQUIRED.items()}
    for name, value in given.items():
        *path, key = PATH[name].split(".")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[key] = value
    return values


def loaded(**given: Any) -> RunConfig:
    return load_run_config(with_sizes(sections(**given)))


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        with_sizes(sections(**given))
    return str(caught.value)


def test_stages_of_a_rollout_are_those_of_its_string() -> None:
    written = loaded(actor="megatron:d8", rollout="vllm:d2t2p2")
    assert written.rollout_layout == RolloutLayout(dp=2, tp=2, pp=2)
    assert written.world_size == 8


def test_strings_give_the_configuration_that_their_sizes_give() -> None:
    written = loaded(actor="megatron:d2p2t4c2v3e4", rollout="vllm:d4t8e8")
    sizes = {"tp": 4, "pp": 2, "cp": 2, "vpp": 3, "ep": 4, "rollout_tp": 8, "rollout_ep": 8}
    by_keys = loaded(**sizes, devices=32)
    without_strings = replace(
        written,
        actor_config=replace(written.actor_config, backend=""),
        generate_config=replace(written.generate_config, backend=""),
    )
    assert without_strings == by_keys
    assert written.layout("actor") == by_keys.layout("actor")
    assert written.rollout_layout == by_keys.rollout_layout


def test_experts_with_a_tensor_size_of_their_own_give_it_to_the_actor() -> None:
    actor = loaded(actor="megatron:(attn:d4p2t2c2|ffn:t4e2)").actor_config
    assert (actor.tensor_model_parallel_size, actor.expert_tensor_parallel_size) == (2, 4)
    assert actor.expert_model_parallel_size == 2


def test_without_strings_a_size_of_none_is_the_default_and_the_devices_are_1() -> None:
    config = loaded(tp=None, rollout_tp=None, devices=None)
    assert config == loaded()
    assert (config.world_size, config.actor_config.tensor_model_parallel_size) == (1, 1)


def test_an_empty_reference_lies_as_the_actor_and_one_of_its_own_where_its_string_says() -> None:
    follows = loaded(actor="megatron:d2t4", ref="")
    assert follows.layout("ref") == follows.layout("actor")
    own = loaded(actor="megatron:d2t4", ref="megatron:d4t2")
    assert (own.layout("ref").tp, own.layout("ref").dp) == (2, 4)


def test_critic_and_reward_model_take_strings_too() -> None:
    config = loaded(
        actor="megatron:d8", critic="megatron:d4p2", reward="megatron:t8", reward_model="judge"
    )
    assert config.layout("critic").pp == 2
    assert config.layout("reward").tp == 8


@pytest.mark.parametrize("engine", ["megatron", "archon", "fsdp"])
def test_engines_that_train_give_the_same_sizes_to_the_same_keys(engine: str) -> None:
    config = loaded(actor=f"{engine}:d2t2c2", ref=f"{engine}:d4t2")
    assert config.layout("actor") == loaded(actor="megatron:d2t2c2").layout("actor")
    assert (config.layout("ref").tp, config.layout("ref").dp) == (2, 4)
    assert config.training_backend("actor") == config.training_backend("ref") == engine


def test_a_role_beside_the_actor_may_have_another_engine() -> None:
    config = loaded(actor="archon:(attn:d1p4t2c2|ffn:t1e4)", ref="megatron:d4p4", critic="fsdp:d16")
    roles = ("actor", "ref", "critic")
    assert [config.training_backend(role) for role in roles] == ["archon", "megatron", "fsdp"]
    assert config.layout("actor").ep == 4
    assert config.layout("critic").pp == 1


def test_chunks_stand_beside_the_string_of_a_backend_that_has_no_letter_for_them() -> None:
    config = loaded(actor="archon:d2p2", vpp=2, ref="archon:d2p2", critic="archon:d4")
    sizes = [config.layout(role).vpp for role in ("actor", "ref", "critic")]
    assert sizes == [2, 2, 1]
    assert loaded(actor="archon:d2p2").layout("actor").vpp == 1


def test_the_actors_string_says_how_many_devices_there_are() -> None:
    assert loaded(actor="megatron:d4t2").world_size == 8
    assert loaded(rollout="vllm:d3t2").world_size == 6


def test_allocation_mode_stands_for_all_strings_and_says_what_to_write_instead() -> None:
    mode = "vllm:d4t2|megatron:d2t4"
    assert loaded(mode=mode).actor_config == loaded(actor="megatron:d2t4").actor_config
    assert loaded(mode=mode).generate_config == loaded(rollout="vllm:d4t2").generate_config
    assert deprecation(sections(mode=mode)) == (
        "rl_config.allocation_mode is deprecated; write generate_config.backend=vllm:d4t2, "
        "actor_config.backend=megatron:d2t4"
    )
    assert deprecation(sections(actor="megatron:d8")) is None


def test_a_plus_gives_the_rollout_devices_of_its_own_on_the_side_that_it_stands_on() -> None:
    behind, before = loaded(mode="megatron:d2t4+vllm:d3t2"), loaded(mode="vllm:d3t2+megatron:d2t4")
    assert before.rl_config.rollout_resource.first
    assert not behind.rl_config.rollout_resource.first
    for config in (behind, before):
        assert config.is_apart
        assert (config.world_size, config.rollout_devices, config.devices) == (8, 6, 14)
        assert config.rollout_layout.replicas == 3
    by_keys = loaded(integrated=False, actor="megatron:d2t4", rollout="vllm:d3t2")
    said = replace(behind.rl_config, allocation_mode=None)
    assert replace(behind, rl_config=said) == by_keys


def test_devices_of_the_rollout_are_counted_with_its_string() -> None:
    said = refusal(integrated=False, actor="megatron:d4", rollout="vllm:d2t2", rollout_devices=8)
    assert said == (
        "generate_config.backend=vllm:d2t2 has 4 ranks, "
        "and rl_config.rollout_resource.num_npus=8; write rl_config.rollout_resource.num_npus=4 "
        "or vllm:d4t2"
    )
    said = refusal(integrated=False, mode="vllm:d4|megatron:d4")
    assert said == (
        "rl_config.allocation_mode=vllm:d4|megatron:d4 shares the devices, but "
        "rl_config.use_integrated_worker=false gives the rollout its own; write "
        "vllm:d4+megatron:d4"
    )


def test_the_count_of_a_configuration_with_shared_devices_is_corrected_for_a_separate_rollout() -> (
    None
):
    devices, written = {"devices": 2}, {"actor": "megatron:d1", "rollout": "vllm:d1"}
    ways = "write rl_config.actor_resource.num_npus=1 or megatron:d2"
    what = f"megatron:d1 has 1 rank, and rl_config.actor_resource.num_npus=2; {ways}"
    said = refusal(integrated=False, **devices, **written)
    assert said == f"actor_config.backend={what}"
    # Named where the user has written it.
    mode = "megatron:d1+vllm:d1"
    assert refusal(mode=mode, **devices) == f"rl_config.allocation_mode={mode}: {what}"
    assert loaded(mode=mode, devices=1).devices == 2


def test_a_string_of_a_role_with_devices_of_its_own_is_counted_with_those() -> None:
    own = {"critic_devices": 2, "critic_first": 4}
    config = loaded(actor="megatron:d4", critic="megatron:p2", rollout="vllm:d6", **own)
    assert [config.layout(role).ranks for role in ("actor", "critic")] == [range(4), range(4, 6)]
    assert refusal(actor="megatron:d4", critic="megatron:d4", **own) == (
        "critic_config.backend=megatron:d4 has 4 ranks, and rl_config.critic_resource.num_npus=2; "
        "write megatron:d2"
    )
    assert refusal(actor="megatron:d4", critic="megatron:p2", rollout="vllm:d4", **own) == (
        "generate_config.backend=vllm:d4 has 4 ranks, and the number of devices of all roles=6; "
        "write vllm:d6"
    )


def test_a_role_from_device_0_has_devices_of_its_own() -> None:
    own = {"devices": 4, "actor_first": 4, "critic_first": 0}
    config = loaded(actor="megatron:d4", rollout="vllm:d8", **own)
    assert (config.world_size, config.rollout_layout.replicas) == (8, 8)
    assert config.role_devices("actor") == range(4, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"actor": "megatron:d4tt2"},
            (
                "actor_config.backend=megatron:d4tt2, character 13: t needs a size from 1 to "
                "99999, such as t2\n  megatron:d4tt2\n              ^"
            ),
        ),
        (
            {"actor": "fsdp:d8", "pp": 2},
            (
                "actor_config.pipeline_model_parallel_size=2 differs from 1 in "
                "actor_config.backend=fsdp:d8; remove "
                "actor_config.pipeline_model_parallel_size or set it to null"
            ),
        ),
        (
            {"actor": "archon:d2p2v2"},
            (
                "actor_config.backend=archon:d2p2v2, character 12: 'v' is not a "
                "dimension of archon; known: d, p, t, c, e\n  archon:d2p2v2\n             ^"
            ),
        ),
        (
            {"rollout": "sglang:d4t2"},
            (
                "generate_config.backend=sglang:d4t2: a run starts only vllm engines, "
                "and sglang needs generate_config.servers; nearest: vllm:d4t2"
            ),
        ),
        (
            {"actor": "megatron:d2t4", "tp": 2},
            (
                "actor_config.tensor_model_parallel_size=2 differs from 4 in "
                "actor_config.backend=megatron:d2t4; remove "
                "actor_config.tensor_model_parallel_size or set it to null"
            ),
        ),
        (
            {"actor": "megatron:d2t4", "ref": "megatron:d4t2", "ref_tp": 1},
            (
                "ref_config.tensor_model_parallel_size=1 differs from 2 in "
                "ref_config.backend=megatron:d4t2; remove "
                "ref_config.tensor_model_parallel_size or set it to null"
            ),
        ),
        (
            {"actor": "megatron:d2t4", "devices": 16},
            (
                "actor_config.backend=megatron:d2t4 has 8 ranks, "
                "and rl_config.actor_resource.num_npus=16; write megatron:d4t4"
            ),
        ),
        (
            {"actor": "megatron:d2t4", "rollout": "vllm:d2t2"},
            (
                "generate_config.backend=vllm:d2t2 has 4 ranks, "
                "and rl_config.actor_resource.num_npus=8; write vllm:d4t2"
            ),
        ),
        (
            {"actor": "megatron:d2t4", "rollout": "vllm:d1t3"},
            (
                "generate_config.backend=vllm:d1t3 has 3 ranks, "
                "and rl_config.actor_resource.num_npus=8; 3 must divide 8"
            ),
        ),
        (
            {"mode": "vllm[rollout]:d4t2+megatron[actor]:d4+megatron[critic]:d4"},
            (
                "rl_config.allocation_mode="
                "vllm[rollout]:d4t2+megatron[actor]:d4+megatron[critic]:d4: "
                "only the rollout can have its own devices; write "
                "vllm:d4t2+megatron[actor]:d4|megatron[critic]:d4, with equal numbers of "
                "ranks on both sides of each |"
            ),
        ),
        (
            {"mode": "vllm[rollout]:d8|megatron[actor]:d8|megatron[critic]:d8"},
            (
                "rl_config.allocation_mode="
                "vllm[rollout]:d8|megatron[actor]:d8|megatron[critic]:d8: "
                "this run has no critic; remove it"
            ),
        ),
        (
            {"mode": "vllm:d4t2|megatron:d2t4", "actor": "megatron:d8"},
            (
                "actor_config.backend=megatron:d8 and "
                "rl_config.allocation_mode=vllm:d4t2|megatron:d2t4 differ; remove "
                "rl_config.allocation_mode"
            ),
        ),
        (
            {"mode": "vllm:d4t2|megatron"},
            "rl_config.allocation_mode=vllm:d4t2|megatron, character 19: ",
        ),
    ],
)
def test_a_string_that_cannot_be_taken_is_answered_with_the_key_and_the_way_out(
    given: dict[str, Any], message: str
) -> None:
    said = refusal(**given)
    assert said == message or (message.endswith(": ") and said.startswith(message))


def test_sections_that_are_none_are_left_to_the_rules_of_the_configuration() -> None:
    broken = {"actor_config": 3, "rl_config": {"actor_resource": "all"}, "generate_config": None}
    assert with_sizes(broken) == broken


def test_a_finding_on_a_size_speaks_of_the_string_and_proposes_strings_of_as_many_ranks() -> None:
    key = "actor_config.tensor_model_parallel_size"
    finding = Finding(f"{key}=8 must divide num_attention_heads=28", key, 8, (7, 4, 2))
    told = in_words_of_backend(loaded(actor="megatron:d1t8"), finding)
    assert str(told) == (
        "actor_config.backend=megatron:d1t8: actor_config.tensor_model_parallel_size=8 must "
        "divide num_attention_heads=28"
    )
    assert (told.field, told.value) == ("actor_config.backend", "megatron:d1t8")
    # 7 does not divide the 8 ranks.
    assert told.legal == ("megatron:d2t4", "megatron:d4t2")
    assert in_words_of_backend(loaded(tp=8, devices=8), finding) is finding


def test_a_proposed_string_never_has_experts_that_do_not_fit_its_ranks() -> None:
    key = "generate_config.infer_tensor_parallel_size"
    finding = Finding(f"{key}=8 must be less", key, 8, (4, 3, 2))
    told = in_words_of_backend(loaded(actor="megatron:d8", rollout="vllm:d1t8e8"), finding)
    assert told.legal == ("vllm:d2t4e8", "vllm:d4t2e8")


def test_servers_may_be_of_an_engine_that_a_run_does_not_start() -> None:
    # The oldest form of the seeds: the first four devices generate, the others train.
    sections = {
        "rl_config": {"allocation_mode": "sglang.d2t2p1+d1t4p1"},
        "generate_config": {"servers": ["http://127.0.0.1:1", "http://127.0.0.1:2"]},
        "actor_config": {},
    }
    found = with_sizes(sections)
    assert found["generate_config"]["backend"] == "sglang:d2t2"
    assert found["generate_config"]["infer_tensor_parallel_size"] == 2
    resources = {"num_npus": 4, "first": True}
    assert found["rl_config"]["rollout_resource"] == resources
    assert found["rl_config"]["actor_resource"]["num_npus"] == 4
