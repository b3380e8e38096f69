"""The derived numbers of a run as a user reads them, each derived here by hand."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from user_programs import without_torch

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "configs" / "models"
RUN = ("--config-name", "grpo_qwen25_7b")
MIB = 1 << 20

LAYER = (28 + 2 * 4) * 128 * (3584 + 1) + 3584 * 3584 + 3 * 3584 * 18944 + 2 * 3584
"""Parameters of a layer: query, key, value with bias; output; three of the MLP; two norms."""
PARAMETERS = 28 * LAYER + 2 * 152064 * 3584 + 3584
"""All layers, both embeddings, the last norm."""


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without_torch("cli/plan.py", "explain", *arguments)


def figures(*arguments: str) -> dict[str, Any]:
    ended = started(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """The shipped run of Qwen2.5-7B on an Atlas A2 node, whose devices have 62,400 MiB."""
    return figures(*RUN)


def test_eight_ranks_are_two_training_replicas_of_four_and_four_rollout_replicas_of_two(
    shipped: dict[str, Any],
) -> None:
    actor, rollout = shipped["roles"]["actor"], shipped["roles"]["rollout"]
    assert (actor["ranks"], actor["ranks_per_replica"], actor["replicas"]) == (8, 4, 2)
    assert actor["groups"] == {
        "tp": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }
    assert shipped["roles"]["ref"]["groups"] == actor["groups"]
    assert rollout["groups"] == {"tp": [[0, 1], [2, 3], [4, 5], [6, 7]]}


def test_a_rank_has_coordinates_in_each_role() -> None:
    """Rank 5 of training tp4 dp2 and of rollout tp2 pp2 dp2."""
    stages = "generate_config.infer_pipeline_parallel_size=2"
    found = figures(*RUN, "--rank", "5", stages)
    place = {"tp": 1, "cp": 0, "dp": 1, "pp": 0}
    rollout = {"tp": 1, "pp": 0, "dp": 1}
    assert found["rank"] == {
        "rank": 5,
        "roles": {"actor": place, "ref": place, "rollout": rollout},
    }
    groups = found["roles"]["rollout"]["groups"]
    assert groups["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups["pp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    refused = started(*RUN, "--rank", "8")
    assert refused.returncode == 2
    assert "--rank=8 must be one of 0 to 7" in refused.stderr
    printed = started(*RUN, "--rank", "5", stages).stdout
    assert "rank 5, by role" in printed


def test_a_step_of_32_prompts_has_256_sequences_and_64_micro_batches_a_replica(
    shipped: dict[str, Any],
) -> None:
    batch = shipped["batch"]
    assert batch["sequences_per_step"] == 32 * 8
    assert batch["rollout_sequences_per_replica"] == 256 / 4
    assert (batch["updates_per_step"], batch["sequences_per_update"]) == (1, 256)
    # 128 sequences a replica: 4 in each pass of the log-probs, 2 in each of the update.
    assert batch["micro_batches_of_replica"] == {"reference": 32, "update": 64}
    assert batch["longest_sequence_tokens"] == 2048 + 2048


def test_regions_are_the_parameters_over_those_that_share_them(shipped: dict[str, Any]) -> None:
    """Norms and some biases lie on every rank, less than a part in ten thousand."""
    assert PARAMETERS == 7_615_616_512
    largest = {name: region["largest"] for name, region in shipped["regions"].items()}
    by_hand = {
        "actor_weights": PARAMETERS * 2 / 4,
        "actor_gradients": PARAMETERS * 4 / 4,
        # Main weights and two moments, of 4 bytes each, over 4 x 2 ranks.
        "actor_optimizer": PARAMETERS * 12 / 8,
        "reference_weights": PARAMETERS * 2 / 4,
        "rollout_weights": PARAMETERS * 2 / 2,
    }
    for name, expected in by_hand.items():
        assert largest[name] == pytest.approx(expected, rel=1e-3), name
    # Half the device less the rollout weights, and 11 graphs of 28 layers, in whole MiB.
    left = 31_200 * MIB - largest["rollout_weights"] - 11 * 28 * MIB
    assert largest["kv_cache"] == left >> 20 << 20
    # Keys and values of 28 layers, 2 of 4 heads, 128 numbers, 2 bytes.
    assert shipped["kv_cache_tokens"] == largest["kv_cache"] // (2 * 28 * 2 * 128 * 2)
    kept = ("actor_weights", "actor_optimizer", "reference_weights")
    rounding = shipped["host_bytes"] - sum(largest[name] for name in kept)
    # Less than 512 bytes for each storage of two models.
    assert 0 < rounding < 1 * MIB


def test_the_peak_of_a_phase_is_what_it_needs(shipped: dict[str, Any]) -> None:
    totals = {phase["label"]: phase["total_bytes"] for phase in shipped["phases"]}
    largest = {name: region["largest"] for name, region in shipped["regions"].items()}
    assert list(totals) == ["reshard", "rollout", "reference", "train"]
    assert totals["rollout"] == largest["rollout_weights"] + largest["kv_cache"]
    trained = ("actor_weights", "actor_gradients", "actor_optimizer")
    assert totals["train"] == sum(largest[name] for name in trained)
    assert (shipped["peak_moment"], shipped["peak_bytes"]) == ("rollout", totals["rollout"])


def test_a_reshard_moves_three_quarters_of_what_the_rollout_holds(shipped: dict[str, Any]) -> None:
    """Ranks 0, 3, 4 and 7 lack a quarter of the model, the others a half."""
    quarter = PARAMETERS * 2 / 4
    moved = shipped["reshard"]
    expected = [quarter, 2 * quarter, 2 * quarter, quarter] * 2
    assert moved["received_bytes"]["per_rank"] == pytest.approx(expected, rel=1e-3)
    assert moved["copied_bytes"]["total"] == pytest.approx(4 * quarter, rel=1e-3)
    assert moved["across_nodes_bytes"] == 0


def test_a_mixture_shows_groups_of_experts_and_no_count_of_token_batches() -> None:
    mixture = figures(
        "--config-name",
        "grpo_qwen25_7b",
        f"actor_config.load={MODELS / 'Qwen3-30B-A3B'}",
        "actor_config.expert_model_parallel_size=8",
        "rl_config.device_memory_mib=null",
        "rl_config.use_dynamic_bsz=true",
    )
    actor = mixture["roles"]["actor"]
    assert actor["sizes"] == {"tp": 4, "cp": 1, "pp": 1, "dp": 2, "ep": 8, "etp": 1}
    assert actor["groups"]["ep"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert mixture["batch"]["micro_batches_of_replica"] is None
    assert mixture["kv_cache_tokens"] is None


def test_the_page_shows_what_the_program_prints() -> None:
    page = (ROOT / "docs" / "how-to" / "check-a-run.md").read_text("utf-8")
    ended = started(*RUN)
    assert ended.returncode == 0, ended.stderr
    (printed,) = [part for part in page.split("```") if part.startswith("text\ngrpo_qwen25_7b: 8")]
    assert [line.rstrip() for line in ended.stdout.splitlines()] == printed.splitlines()[1:]


def test_what_cannot_run_is_refused_with_code_2() -> None:
    ended = started(*RUN, "actor_config.tensor_model_parallel_size=8")
    assert ended.returncode == 2
    assert "must divide num_attention_heads=28" in ended.stderr


def test_help_has_an_example() -> None:
    ended = started("--help")
    assert ended.returncode == 0
    assert "mindrl plan explain --config-name grpo_qwen25_7b" in ended.stdout


def test_ranks_that_only_generate_have_the_numbers_behind_those_that_train() -> None:
    apart = ("rl_config.use_integrated_worker=false", "rl_config.rollout_resource.num_npus=4")
    found = figures(*RUN, *apart)
    assert found["ranks"] == 12
    assert found["roles"]["rollout"]["groups"] == {"tp": [[8, 9], [10, 11]]}
    ended = without_torch("cli/plan.py", "memory", *RUN, *apart, "--json")
    assert ended.returncode == 0, ended.stderr
    rollout = json.loads(ended.stdout)["rollout"]
    assert [each["label"] for each in rollout["moments"]] == ["receive weights", "rollout"]
    assert rollout["ranks"] == 2


def test_a_replica_apart_is_explained_with_its_own_memory_and_the_order_of_steps() -> None:
    apart = ("rl_config.use_integrated_worker=false", "rl_config.rollout_resource.num_npus=4")
    ended = started(*RUN, *apart, "rl_config.step_order=asynchronous", "rl_config.max_staleness=2")
    assert ended.returncode == 0, ended.stderr
    order = "asynchronous, 96 prompts in flight, tokens from up to 2 step(s) ago"
    assert order in " ".join(ended.stdout.split())
    _, _, replica = ended.stdout.partition("all ranks, a replica of the rollout\n")
    assert {"rollout weights", "kv cache"} <= {line[2:17].strip() for line in replica.splitlines()}


def test_servers_have_numbers_behind_all_ranks_and_memory_of_their_own(tmp_path: Path) -> None:
    """One training rank, and a server of two: it was -1 and 0."""
    (tmp_path / "token").write_text("secret")
    served = (
        *("--config-name", "grpo_tiny_cpu", f"actor_config.load={MODELS / 'Qwen2.5-7B'}"),
        *("rl_config.use_integrated_worker=false", "rl_config.actor_resource.num_npus=1"),
        "rl_config.rollout_resource.num_npus=2",
        "generate_config.infer_tensor_parallel_size=2",
        "generate_config.servers=[http://127.0.0.1:8000]",
        f"generate_config.server_token_file={tmp_path / 'token'}",
    )
    found = figures(*served)
    assert found["roles"]["rollout"]["groups"] == {"tp": [[1, 2]]}
    assert "rollout" not in found
    ended = without_torch("cli/plan.py", "memory", *served)
    assert "memory of http://127.0.0.1:8000: set where they are started" in ended.stdout


def test_one_half_of_a_run_apart_is_planned_on_the_devices_that_are_its_own(tmp_path: Path) -> None:
    """As the run itself does, of which `job.py` or `rl_config.debug` makes one half."""
    apart = ("rl_config.use_integrated_worker=false", "rl_config.rollout_resource.num_npus=4")
    job = ("spool_config.job=rollout", f"spool_config.folder={tmp_path}")
    rolling = figures(*RUN, *apart, *job)
    assert (rolling["ranks"], rolling["roles"]["rollout"]["ranks"]) == (4, 4)
    stored = ("rl_config.debug=train_only", f"rl_config.debug_rollouts={tmp_path}")
    training = figures(*RUN, *apart, *stored)
    assert (training["ranks"], {*training["roles"]}) == (8, {"actor", "ref"})
