"""Rules of the PyTorch engines; tests/golden/check.yaml has what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.archon import ArchonConfig
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]
DEVICES = "rl_config.actor_resource.num_npus"
BACKEND = "actor_config.backend"
PP = "actor_config.pipeline_model_parallel_size"
VPP = "actor_config.virtual_pipeline_model_parallel_size"
AT = "actor_config.archon"
ARCHON = {DEVICES: 4, BACKEND: "archon:d4"}
STAGES = {DEVICES: 4, BACKEND: "archon:d2p2", PP: 2}
FSDP = {DEVICES: 2, BACKEND: "fsdp:d2", "rl_config.init_kl_coef": 0.1}
WHOLE_MODEL = {
    "actor_config.recompute_granularity": "full",
    "actor_config.recompute_method": "uniform",
    "actor_config.recompute_num_layers": 1,
}


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), overrides))]


@pytest.mark.parametrize(
    "given",
    [
        ARCHON | {f"{AT}.ac_mode": "memory_budget", f"{AT}.enable_compile": True},
        ARCHON | {f"{AT}.ac_mode": "selective", f"{AT}.selective_ac_option": 2},
        ARCHON | {f"{AT}.ac_mode": "full", f"{AT}.ac_debug": True, f"{AT}.fsdp_size": 2},
        STAGES | {f"{AT}.pp_schedule": "ZBV", VPP: 2, f"{AT}.ac_mode": "full"},
        STAGES | {f"{AT}.pp_schedule": "I1F1B", VPP: 3, f"{AT}.ac_mode": "selective"},
        {DEVICES: 2, BACKEND: "fsdp:d2", f"{AT}.ac_mode": "full"},
    ],
)
def test_what_it_does_is_not(given: dict[str, Any], run_config: MakeConfig) -> None:
    assert found(run_config, given) == []


def test_a_reference_of_other_sizes_shards_as_the_actor_only_where_that_divides_its_ranks(
    run_config: MakeConfig,
) -> None:
    reference = {"rl_config.init_kl_coef": 0.1, "ref_config.load": "other", f"{AT}.fsdp_size": 4}
    for tensor, shared in ((1, 4), (2, None)):
        keys = ARCHON | {"ref_config.tensor_model_parallel_size": tensor}
        config = run_config(Path("model"), reference | keys)
        assert config.learning("ref").archon.fsdp_size == shared
        assert config.learning("actor").archon.fsdp_size == 4


def test_of_full_recomputation_each_key_of_megatrons_is_named(run_config: MakeConfig) -> None:
    fields = [each.field for each in findings(run_config(Path("model"), ARCHON | WHOLE_MODEL))]
    assert fields == list(WHOLE_MODEL)


@pytest.mark.parametrize(
    ("asked", "chunks", "schedule"),
    [
        (None, 1, "1F1B"),
        (None, 2, "Interleaved1F1B"),
        ("I1F1B", 2, "Interleaved1F1B"),
        ("IZB", 2, "InterleavedZeroBubble"),
        ("ZBV", 2, "ZBVZeroBubble"),
        ("ZBVZeroBubble", 2, "ZBVZeroBubble"),
    ],
)
def test_a_short_name_or_none_stands_for_a_schedule(asked: Any, chunks: int, schedule: str) -> None:
    assert ArchonConfig(pp_schedule=asked).schedule(chunks) == schedule


def test_a_role_is_trained_by_the_engine_of_its_string_or_of_the_actors(
    run_config: MakeConfig,
) -> None:
    plain = run_config(Path("model"), {"rl_config.init_kl_coef": 0.1})
    assert [plain.training_backend(role) for role in plain.roles] == ["megatron"] * 2
    given = {"rl_config.init_kl_coef": 0.1, BACKEND: "archon:d2", DEVICES: 2}
    follows = run_config(Path("model"), given)
    assert [follows.training_backend(role) for role in follows.roles] == ["archon"] * 2
    apart = run_config(Path("model"), given | {"ref_config.backend": "megatron:(attn:t2|ffn:d2)"})
    assert [apart.training_backend(role) for role in apart.roles] == ["archon", "megatron"]


def test_a_reference_takes_the_schedule_of_the_stages_that_it_takes(run_config: MakeConfig) -> None:
    given = STAGES | {f"{AT}.pp_schedule": "ZBV", VPP: 2, f"{AT}.ac_mode": "full"}
    config = run_config(Path("model"), given)
    assert config.learning("ref").archon == ArchonConfig(pp_schedule="ZBV")
    assert config.layout("ref").folds
    assert config.layout("ref") == config.layout("actor")
    apart = run_config(Path("model"), given | {"ref_config.pipeline_model_parallel_size": 1})
    assert apart.learning("ref").archon == ArchonConfig()
    assert not apart.layout("ref").folds


def test_the_option_of_what_is_made_again_is_op_or_a_number_of_layers() -> None:
    assert ArchonConfig(selective_ac_option=3).selective_ac_option == "3"
    for wrong in ("0", "-1", "ops", True, None):
        with pytest.raises(ValueError, match="must be op or a number of layers from 1"):
            ArchonConfig(selective_ac_option=wrong)
