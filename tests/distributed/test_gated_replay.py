"""Replay of routes in mixtures with gated delta nets, against transformers with forced experts.

By transformers' layers (`fsdp`) and by mindrl's own (`archon`). As in test_router_replay.py an
update moves the weights so far that many choices change. Shapes: B sequences, T positions.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from assembly import put_together
from forked_workers import ForkedWorkers
from nightly import at_night_but
from replay_messages import Replayed
from safetensors.torch import save_file
from test_router_replay import Forced, differing, logprob_gap
from test_training_layouts import LOSS, OPTIMIZER, minibatches
from training_messages import Case, Course

from mindrl.batch.balance import MicroBatching
from mindrl.checkpoint.any_family import read_any_description
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.training.archon.sharding import archon_sharding

pytestmark = pytest.mark.distributed

RECOMPUTED = {"archon": ArchonConfig(ac_mode="full")}
ALONE = Case(folder="", backend="fsdp")
CASES: Mapping[str, Case] = {
    "fsdp DP2, recomputed": Case(
        folder="", layout=TrainLayout(dp=2), backend="fsdp", settings=RECOMPUTED
    ),
    "fsdp TP2": Case(folder="", layout=TrainLayout(tp=2), backend="fsdp"),
    "archon EP2": Case(folder="", layout=TrainLayout(dp=2, ep=2), backend="archon"),
    "archon TP2+SP+EP2, recomputed": Case(
        folder="",
        layout=TrainLayout(tp=2, ep=2),
        sequence_parallel=True,
        backend="archon",
        settings=RECOMPUTED,
    ),
    "archon PP2": Case(folder="", layout=TrainLayout(pp=2), backend="archon"),
}
EVERY_CHANGE = ("fsdp TP2", "archon EP2")
FAMILIES = ("qwen3_next", "qwen3_5_moe_text")


def replaying(case: Case, folder: Path) -> Case:
    """Return a case of a folder in which updates use the experts of the pass before them."""
    settings = {"router_replay": "R2", **case.settings}
    return replace(case, folder=str(folder), settings=settings)


@pytest.mark.parametrize(
    ("family", "names"),
    at_night_but(
        [("qwen3_next", EVERY_CHANGE)],
        [("qwen3_next", EVERY_CHANGE), *((family, tuple(CASES)) for family in FAMILIES)],
    ),
)
def test_a_second_update_uses_the_experts_of_the_pass_before_the_first(
    family: str,
    names: tuple[str, ...],
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = random_model_of(family, spread=0.04)
    first = minibatches(str(folder), 1)[0].with_route_keys()
    # Other sequences of each replica in the second update.
    second = first.rows(torch.arange(7, -1, -1))
    course = Course(
        minibatches=[first, second],
        loss=LOSS,
        optimizer={**OPTIMIZER, "lr": 0.06},
        micro_batching=MicroBatching(sequences=2),
    )
    alone: Replayed
    asked = [replaying(ALONE, folder)]
    ((alone,),) = forked_workers.run("replay_probe:replayed", asked, course)
    before_BT, routes = Forced(folder).read(first)
    torch.testing.assert_close(alone.logprobs[0], before_BT, atol=2e-5, rtol=0)
    assert alone.metrics[0]["differing_routes"] == 0.0

    shutil.copytree(folder, moved := tmp_path / "moved")
    model = read_any_description(str(folder))
    whole = [alone.weights[1]]
    weights = put_together(archon_sharding(model, TrainLayout()), logical_shapes(model), whole)
    save_file(weights, moved / "model.safetensors")
    network, (B, T) = Forced(moved), first.tokens_BT.shape
    turned = [each.view(B, T, -1).flip(0).flatten(0, 1) for each in routes]
    free_BT, _ = network.read(second)
    forced_BT, own = network.read(second, turned)
    share = differing(own, turned, second)
    assert share > 0.03
    assert (free_BT - forced_BT).abs().max() > 0.01
    torch.testing.assert_close(alone.logprobs[1], forced_BT, atol=5e-5, rtol=0)
    assert alone.metrics[1]["differing_routes"] == pytest.approx(share, abs=1 / 250)

    cases = [replaying(CASES[name], folder) for name in names]
    replies: list[list[Replayed]] = forked_workers.run(
        "replay_probe:replayed", cases, course, ranks=2
    )
    for name, case, *found in zip(names, cases, *replies, strict=True):
        for update in range(len(alone.logprobs)):
            gap = logprob_gap(found, alone, case, update)
            # Log-probs of size 5 to 20 in float32.
            assert gap < 1e-4, f"{name}: {gap} in update {update}"
            for each in found:
                expected = alone.metrics[update]["differing_routes"]
                # A tie may fall either way: one choice of 250.
                assert each.metrics[update]["differing_routes"] == pytest.approx(
                    expected, abs=1 / 250
                )
