"""What may not grow with the number of ranks: peers, batches of operations, keys and bytes."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from nightly import at_night_but

LONGEST = 128
"""Tokens of the longest answer."""
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("bench_scale", "scale_batches"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = import_module("bench_scale")
    monkeypatch.setattr(found, "ASKED", 2)
    monkeypatch.setattr("scale_batches.LONGEST", LONGEST)
    return found


@pytest.mark.parametrize("ranks", at_night_but([64], [64, 256]))
def test_a_rank_of_a_large_model_has_few_peers_and_small_batches(
    bench: ModuleType, ranks: int
) -> None:
    """Before ways had one sender, 212 peers of 256 on average, and batches of 243."""
    found = bench.measure_plan(ranks)
    assert found["peers_mean"] <= 41
    assert found["peers_max"] <= (58 if ranks == 64 else 52)
    assert found["largest_batch"] <= 60
    assert found["received_over_bound"] == 1.0
    # The busiest sender of 256 ranks sent 42.85 GB when each slice had its own sender.
    assert ranks != 256 or found["busiest_sender_gb"] <= 42.85
    assert ranks != 256 or found["rounds"] <= 702


def test_equal_boxes_of_experts_are_one_object(bench: ModuleType) -> None:
    """They took 34 MiB of each worker of 1,024 ranks: 256 experts of 58 layers, on both sides."""
    source, target = bench.sides(64)
    for side in (source, target):
        boxes = [
            box
            for _, _, placement in side.placements()
            for box in (placement.source, placement.local)
        ]
        assert len(boxes) > 50_000
        assert len({*map(id, boxes)}) <= 1.05 * len({*boxes})


@pytest.mark.parametrize("ranks", [64, 256])
def test_ranks_ask_the_store_for_two_values_each(bench: ModuleType, ranks: int) -> None:
    assert bench.measure_agreement(ranks)["store_gets"] == 2 * ranks


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [64, 256])
def test_no_rank_and_no_node_writes_the_whole_model(bench: ModuleType, ranks: int) -> None:
    """Rank 0 wrote 1,343 GB. A file has 5 GiB at most; ranks have the same number but for one."""
    found = bench.measure_export(ranks)
    files = found["export_files"]
    assert files >= 250
    assert found["export_rank_gb"] <= -(-files // ranks) * 5.37
    assert found["export_node_gb"] <= -(-files * 8 // ranks) * 5.37


@pytest.mark.parametrize("ranks", [64, 256])
def test_metrics_have_as_many_names_for_any_number_of_workers(
    bench: ModuleType, ranks: int
) -> None:
    """Five names for each worker were 66 kB at 256 ranks and 263 kB at 1,024."""
    assert bench.measure_metrics(ranks)["metrics_json_bytes"] <= 1000


@pytest.mark.parametrize("ranks", [64, 256])
def test_the_driver_pickles_no_padding(bench: ModuleType, ranks: int) -> None:
    """Four bytes for a token of prompt or response; names and lengths of 128 responses."""
    found = bench.PARTS["batches"](ranks)
    per_response = (LONGEST + 1) / 2
    prompt = 256 / per_response
    assert found["bytes_per_token"] <= 4 * (1 + prompt) + 0.2 * (1 + prompt) + 40 / per_response
    assert found["answer_bytes_per_token"] <= 8 + 60 / per_response
