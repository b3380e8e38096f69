"""The plan program as a user starts it, on a machine without torch: figures, refusals, help."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nightly import at_night_but
from user_programs import without_torch

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "configs" / "models"


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without_torch("cli/plan.py", *arguments)


def reshard(model: str, source: str, target: str, *more: str) -> subprocess.CompletedProcess[str]:
    folder = str(MODELS / model)
    return started("reshard", "--model", folder, "--from", source, "--to", target, *more)


def figures(model: str, source: str, target: str, *more: str) -> dict[str, Any]:
    ended = reshard(model, source, target, "--json", *more)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return ended.stderr.splitlines()


def gigabytes(count: int) -> float:
    return round(count / 1e9, 1)


def test_an_engine_whose_ranks_share_all_weights_moves_what_each_does_not_hold_yet() -> None:
    """Of 15.23 GB in bfloat16 each of 8 rollout ranks needs a quarter, and holds an eighth."""
    found = figures("Qwen2.5-7B", "archon:d8", "vllm:d2t4", "--rank-map", "default")
    assert found["training"] == "archon:d8"
    assert found["dtypes"] == ["float32", "bfloat16"]
    assert gigabytes(found["default"]["received_bytes"]["total"]) == 26.7
    assert gigabytes(found["default"]["copied_bytes"]["total"]) == 3.8
    said = reshard("Qwen2.5-7B", "fsdp:d4", "vllm:d2t2").stdout
    assert "fsdp's own order" in said


KNOWN = [
    ("Qwen2.5-7B", ("megatron:t2", "vllm:t4"), 8, 60.9, 15.2, 3.8, 0),
    ("Qwen2.5-7B", ("megatron:t4", "vllm:t2"), 8, 91.4, 45.7, 7.6, 30.5),
    ("Qwen2.5-7B", ("megatron:t2p2", "vllm:t4"), 8, 91.4, 22.8, 3.8, 15.2),
    ("Qwen2.5-7B", ("megatron:t4p2", "vllm:t2"), 8, 106.6, 53.3, 7.6, 45.7),
    ("Qwen2.5-32B", ("megatron:t4p2", "vllm:t8"), 16, 917.4, 114.7, 8.2, 65.5),
    ("Qwen3-30B-A3B", ("megatron:p2e4", "vllm:e8"), 8, 418.2, 63.1, 8.8, 41.3),
    ("Qwen3-30B-A3B", ("megatron:t2e4", "vllm:t4e8"), 8, 360.1, 46.5, 8.0, 0),
    ("Qwen3-30B-A3B", ("megatron:t4p2e8", "vllm:t4e16"), 32, 1825.5, 121.4, 4.0, 79.8),
]


@pytest.mark.parametrize(
    ("model", "layouts", "ranks", "gathered", "default", "largest", "best"),
    at_night_but([KNOWN[3], KNOWN[6]], KNOWN),
)
def test_bytes_of_known_models_are_those_of_a_model_of_their_own(  # noqa: PLR0917 - a row
    model: str,
    layouts: tuple[str, str],
    ranks: int,
    gathered: float,
    default: float,
    largest: float,
    best: float,
) -> None:
    """The expected gigabytes were computed from the shapes alone, before there was a plan."""
    found = figures(model, *layouts, "--world", str(ranks))
    assert gigabytes(found["full_gather_bytes"]) == gathered
    plan = found["default"]
    assert gigabytes(plan["received_bytes"]["total"]) == default
    assert gigabytes(plan["received_bytes"]["max"]) == largest
    assert gigabytes(found["rank_map"]["best_bytes"]) == best
    assert found["rank_map"]["default_bytes"] == plan["received_bytes"]["total"]
    for one in (plan, found["chosen"]):
        assert one["received_bytes"] == one["lower_bound_bytes"]
        assert one["sent_bytes"]["total"] == one["received_bytes"]["total"]
        assert one["peak_staging_bytes"]["max"] <= found["bucket_bytes"] == 256 << 20


def test_the_chosen_order_of_7b_moves_nothing_and_is_spelled_in_digits() -> None:
    found = figures("Qwen2.5-7B", "megatron:d4t2", "vllm:d2t4")
    assert found["rank_map"]["order"] == [["dp", 2], ["tp", 2], ["dp", 2]]
    assert found["rank_map"]["expert_order"] == []
    assert found["rank_map"]["applied_bytes"] == found["chosen"]["received_bytes"]["total"] == 0
    # All that 8 ranks need, two models of 15.2 GB, is copied inside them.
    assert gigabytes(found["chosen"]["copied_bytes"]["total"]) == 30.5
    assert found["chosen"]["busiest_rank"] is None
    assert found["chosen"]["busiest_pair"] is None
    assert found["chosen"]["seconds"] == 0


def test_per_rank_figures_add_up_to_the_totals_and_the_busiest_have_the_most() -> None:
    found = figures(
        "Qwen2.5-7B", "megatron:d4t2", "vllm:d2t4", "--ranks-per-node", "4", "--rank-map", "default"
    )
    plan = found["default"]
    assert found["rank_map"] is None
    assert plan == found["chosen"]
    for name in ("received_bytes", "sent_bytes", "copied_bytes", "lower_bound_bytes"):
        assert len(plan[name]["per_rank"]) == 8
        assert sum(plan[name]["per_rank"]) == plan[name]["total"]
        assert max(plan[name]["per_rank"]) == plan[name]["max"]
    # Each node of 4 holds the whole model twice and needs it once.
    assert plan["across_nodes_bytes"] == 0
    assert plan["within_nodes_bytes"] == plan["received_bytes"]["total"]
    busiest = plan["busiest_rank"]
    most = max(plan["received_bytes"]["max"], plan["sent_bytes"]["max"])
    assert most in (busiest["sent_bytes"], busiest["received_bytes"])
    assert plan["busiest_pair"]["bytes"] <= most
    # 3.81 GB at 25 GB/s.
    assert plan["seconds"] == pytest.approx(most / 25e9)


def test_half_the_bandwidth_takes_twice_as_long_and_half_the_type_half_the_bytes() -> None:
    layouts = ("Qwen2.5-7B", "megatron:d2t4", "vllm:d4t2", "--rank-map", "default")
    plan = figures(*layouts)["default"]
    slow = figures(*layouts, "--bandwidth-gbps-per-rank", "100")["default"]
    wide = figures(*layouts, "--dtype", "float32")["default"]
    cast = figures(*layouts, "--dtype", "float32,bfloat16")["default"]
    assert slow["seconds"] == pytest.approx(2 * plan["seconds"])
    assert wide["received_bytes"]["total"] == 2 * plan["received_bytes"]["total"]
    assert cast["received_bytes"] == plan["received_bytes"]


def test_a_smaller_bucket_makes_more_rounds_and_moves_as_much() -> None:
    layouts = ("Qwen2.5-7B", "megatron:d2t4", "vllm:d4t2", "--rank-map", "default")
    large = figures(*layouts)["default"]
    small = figures(*layouts, "--bucket-mib", "32")["default"]
    assert small["received_bytes"] == large["received_bytes"]
    assert small["rounds"] > 4 * large["rounds"]
    assert small["peak_staging_bytes"]["max"] <= 32 << 20


def test_disjoint_ranks_send_each_replica_whole_and_have_no_rank_map() -> None:
    found = figures("Qwen2.5-7B", "megatron:d1p2t4", "vllm:t4", "--world", "16", "--disjoint")
    assert (found["ranks"], found["rollout"]) == (16, "vllm:d2t4")
    assert found["rank_map"] is None
    plan = found["default"]
    # 15.2 GB to each of two replicas, from ranks 0 to 7 to ranks 8 to 15.
    assert gigabytes(plan["received_bytes"]["total"]) == 30.5
    assert plan["copied_bytes"]["total"] == 0
    assert plan["received_bytes"]["per_rank"][:8] == [0] * 8
    assert plan["sent_bytes"]["per_rank"][8:] == [0] * 8


def test_the_ranks_follow_from_whichever_side_states_d() -> None:
    only_to = figures("Qwen2.5-7B", "megatron:t4", "vllm:d4t2", "--rank-map", "default")
    assert (only_to["ranks"], only_to["training"]) == (8, "megatron:d2t4")
    only_from = figures("Qwen2.5-7B", "megatron:d2t4", "vllm:t2", "--rank-map", "default")
    assert (only_from["ranks"], only_from["rollout"]) == (8, "vllm:d4t2")


def test_uneven_stages_are_given_by_their_layers() -> None:
    found = figures("Qwen2.5-7B", "megatron:d1p2t2", "vllm:d1t4", "--layers-per-chunk", "20,8")
    assert found["default"]["received_bytes"] == found["default"]["lower_bound_bytes"]
    ended = reshard("Qwen2.5-7B", "megatron:p3", "vllm:t1", "--layers-per-chunk", "10,10,9")
    assert ended.returncode == 1
    assert errors(ended) == [
        (
            "error: --layers-per-chunk=10,10,9 must be 3 numbers from 1 with the sum "
            "num_hidden_layers=28"
        )
    ]


def test_all_findings_come_at_once_with_code_1() -> None:
    ended = reshard("Qwen2.5-7B", "megatron:p3t8e2", "vllm:t8e8", "--world", "24")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert errors(ended) == [
        "error: --from t=8 must divide num_attention_heads=28; nearest: 7, 14",
        (
            "error: --from p=3 must divide num_hidden_layers=28; nearest: 2, 4; "
            "or give --layers-per-chunk"
        ),
        "error: --from e=2 needs a model with experts; use 1",
        "error: --to t=8 must divide num_attention_heads=28; nearest: 7, 14",
        "error: --to e=8 needs a model with experts; use 1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("Qwen2.5-7B", "d4t2", "vllm:t4"),
            "error: d4t2, character 1: the backend is missing; write megatron:d4t2",
        ),
        (
            ("Qwen2.5-7B", "megatron:d4t2", "vllm:d4t4"),
            "error: vllm:d4t4, character 6: this layout has 16 ranks, not 8; write d2",
        ),
        (
            ("Qwen2.5-7B", "megatron:t2", "vllm:t4", "--world", "8", "--disjoint"),
            "error: --world 8 --disjoint: write d in --from or in --to",
        ),
        (
            ("Qwen2.5-7B", "megatron:d4t2", "vllm:t4", "--world", "8", "--disjoint"),
            "error: --world 8 --disjoint: one side alone needs 8 ranks",
        ),
        (
            ("Qwen2.5-7B", "megatron:d4t2", "vllm:t4", "--world", "6"),
            ("error: megatron:d4t2, character 10: this layout has 8 ranks, not 6; write d3"),
        ),
        (
            ("Qwen2.5-7B", "megatron:d99999t4", "vllm:t4"),
            "error: 399996 ranks are too many; the maximum is 4096",
        ),
    ],
)
def test_what_cannot_be_read_ends_with_code_2_and_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    ended = reshard(*arguments)
    assert ended.returncode == 2
    assert errors(ended) == [message]


def test_a_model_that_is_not_there_is_answered_with_the_well_known_names() -> None:
    ended = reshard("qwen2.5-7b", "megatron:d4t2", "vllm:t4")
    assert ended.returncode == 2
    [line] = errors(ended)
    assert line.startswith(
        f"error: model folder {MODELS}/qwen2.5-7b does not exist; did you mean 'Qwen2.5-7B'? known "
        "names: DeepSeek-R1, DeepSeek-V3, GLM-4.5-Air, Llama-3.1-8B, "
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--world", "0"), "argument --world: 0 must be 1 to 1048576"),
        (("--world", "eight"), "argument --world: eight must be 1 to 1048576"),
        (("--dtype", "int8"), "argument --dtype: int8 must be one or two of float32 and bfloat16"),
        (
            ("--bandwidth-gbps-per-rank", "0"),
            "argument --bandwidth-gbps-per-rank: 0 must be above 0",
        ),
    ],
)
def test_wrong_options_end_with_code_2_and_the_usage(more: tuple[str, ...], message: str) -> None:
    ended = reshard("Qwen2.5-7B", "megatron:t2", "vllm:t2", *more)
    assert ended.returncode == 2
    assert errors(ended)[-1] == f"mindrl plan reshard: error: {message}"


def test_the_table_shows_both_orders_in_units_of_a_thousand() -> None:
    ended = reshard("Qwen2.5-7B", "megatron:d4t2", "vllm:d2t4")
    assert ended.returncode == 0, ended.stderr
    rows = {
        cells[0]: cells[1:]
        for cells in (re.split(r"\s{2,}", line.strip()) for line in ended.stdout.splitlines())
    }
    assert rows["Megatron's order"] == ["chosen order"]
    assert rows["received, all ranks"] == ["15.23 GB", "0"]
    assert rows["if every rank gathered whole tensors"] == ["60.92 GB"]
    assert rows["chosen order, fastest first"] == ["dp2 tp2 dp2"]
    assert "megatron:d4t2 -> vllm:d2t4, 8 ranks, 8 per node" in rows
    assert "GB = 10^9 bytes; MB and kB likewise" in rows


def test_the_page_of_the_program_shows_what_it_prints_and_what_it_says_of_30_and_45_gb() -> None:
    page = (ROOT / "docs" / "how-to" / "plan-a-run.md").read_text("utf-8")
    command = re.search(r"--from (\S+) --to (\S+)\n", page)
    assert command is not None
    _, *printed = reshard("Qwen2.5-7B", *command.groups()).stdout.splitlines()
    assert len(printed) > 20
    shown = page.splitlines()
    assert [line for line in printed if line.rstrip() not in shown] == []
    wider = figures("Qwen2.5-7B", "megatron:d2t4", "vllm:d4t2")
    sizes = ("best_bytes", "applied_bytes")
    assert [gigabytes(wider["rank_map"][name]) for name in sizes] == [30.5, 45.7]


def test_help_has_an_example_that_works_and_a_plan_must_be_named() -> None:
    shown = started("reshard", "--help")
    assert shown.returncode == 0
    example = re.search(r"--from (megatron:\S+) --to (vllm:\S+)\n", shown.stdout)
    assert example is not None
    assert reshard("Qwen2.5-7B", *example.groups()).returncode == 0
    assert started().returncode == 2
    assert started("reshard").returncode == 2
