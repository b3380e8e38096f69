"""What is planned where roles are on some of the devices: actor on 0 to 3, critic on 4 to 7."""

import numpy as np

from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import ROLE_REGIONS, Phase, Region
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.programs.compose import composed_config

MODEL = "actor_config.load=configs/models/Qwen2.5-7B"
SPREAD = (
    *("rl_config.actor_resource.num_npus=4", "rl_config.critic_resource.num_npus=4"),
    *("rl_config.critic_resource.first_npu=4", "rl_config.reference_resource.num_npus=8"),
)


def shardings(*overrides: str) -> RunShardings:
    return unordered_shardings(composed_config("ppo_qwen25_7b", [MODEL, *overrides])).ordered


def planned(*overrides: str) -> MemoryPlan:
    return memory_plan(shardings(*overrides, "generate_config.kv_cache_mib=4096"), None)


def test_a_role_has_its_bytes_on_its_own_ranks_and_they_are_those_of_as_many_shared_ones() -> None:
    spread = planned(*SPREAD)
    four = planned("rl_config.actor_resource.num_npus=4")
    for role, ranks in {"actor": slice(0, 4), "critic": slice(4, 8)}.items():
        for region in ROLE_REGIONS[role]:  # type: ignore[index]
            sizes = spread.regions[region]
            assert sizes[ranks].tolist() == four.regions[region].tolist()
            assert sizes.sum() == sizes[ranks].sum()
    assert np.all(spread.regions[Region.REFERENCE_WEIGHTS] > 0)
    assert np.all(spread.regions[Region.ROLLOUT_WEIGHTS] > 0)


def test_a_device_goes_through_the_phases_of_its_own_roles_alone() -> None:
    spread = planned(*SPREAD)
    phases = [[at.phase for at in spread.of_rank(rank) if at.label == at.phase] for rank in (0, 7)]
    assert phases == [["rollout", "reference", "train"], phases[1]]
    assert phases[1] == ["rollout", "reference", "critic_forward", "critic_train"]
    held = [{name for at in spread.of_rank(rank) for name in at.region_bytes} for rank in (0, 7)]
    assert not any(name.startswith("critic") for name in held[0])
    # The way to a rollout passes by a place of the actor's weights that is empty here.
    assert {name for name in held[1] if name.startswith("actor")} == {"actor_weights"}
    emptied = [at.region_bytes.get("actor_weights", 0) for at in spread.of_rank(7)]
    assert set(emptied) == {0}


def test_the_peak_of_each_rank_is_that_of_its_own_moments() -> None:
    spread = planned(*SPREAD, "critic_config.offload_train_optimizer=false")
    for rank in range(8):
        most = max(at.total_bytes for at in spread.of_rank(rank))
        assert spread.totals[:, rank].max() == most
    # What stays on the critic's devices takes no room on the actor's.
    shared = planned("critic_config.offload_train_optimizer=false")
    assert shared.peak_bytes > 0
    kept = [Region.CRITIC_OPTIMIZER.value in at.region_bytes for at in spread.of_rank(0)]
    assert not any(kept)
    assert Phase.CRITIC_TRAIN in spread.phases


def test_weights_travel_from_the_actors_ranks_to_all_and_an_export_leaves_from_its_own() -> None:
    models = shardings(*SPREAD)
    assert [bool(shards) for shards in models.source.held_by] == [True] * 4 + [False] * 4
    sent = models.reshard.sent
    assert np.all(sent[:4] > 0)
    assert sent[4:].sum() == 0
    critic = models.plan.topology_of("critic")
    assert critic.nodes(4).tolist() == [0] * 4
    across = shardings(*SPREAD, "rl_config.actor_resource.npus_per_node=6").plan
    assert across.topology_of("critic").nodes(4).tolist() == [0, 0, 1, 1]
