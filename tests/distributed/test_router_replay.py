"""Replay of routes in the update, against a network of transformers with forced experts.

An update moves the weights so far that a third of the choices change; the log-probs of the next one
show which experts were used. Shapes: B sequences, T positions, N tokens, K experts of a token.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from assembly import assembled
from forked_workers import ForkedWorkers
from replay_messages import Replayed
from safetensors.torch import save_file
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from torch import Tensor, nn
from training_messages import Case, Course, Weights
from transformers import AutoModelForCausalLM

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
OF_ARCHON = {"archon": ArchonConfig(ac_mode="full")}
LAYOUTS: dict[str, Case] = {
    "megatron EP2, unequal shares": Case(
        folder="", layout=TrainLayout(dp=2, ep=2), shares=(1, 7), settings=FULL
    ),
    "megatron with shared prompts": Case(
        folder="", layout=TrainLayout(dp=2), settings={"shares_prompts": True}
    ),
    "megatron TP2": Case(folder="", layout=TrainLayout(tp=2, ep=2), sequence_parallel=True),
    "megatron CP2": Case(folder="", layout=TrainLayout(cp=2), settings=FULL),
    "megatron PP2": Case(folder="", layout=TrainLayout(pp=2, vpp=2), settings=FULL),
    "archon EP2": Case(folder="", layout=TrainLayout(dp=2, ep=2), backend="archon"),
    "archon TP2": Case(
        folder="", layout=TrainLayout(tp=2), sequence_parallel=True, backend="archon"
    ),
    "archon CP2": Case(folder="", layout=TrainLayout(cp=2), backend="archon", settings=OF_ARCHON),
    "archon PP2": Case(
        folder="", layout=TrainLayout(pp=2, vpp=2), backend="archon", settings=OF_ARCHON
    ),
}

EVERY_CHANGE = [
    "megatron EP2, unequal shares",
    "megatron with shared prompts",
    "megatron TP2",
    "megatron PP2",
    "archon PP2",
]
AT_NIGHT = [name for name in LAYOUTS if name not in EVERY_CHANGE]


class Forced:
    """A network of transformers that can be given its experts."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.given: list[Tensor] = []
        self.own: list[Tensor] = []
        modules = self.model.modules()
        gates = [each for each in modules if type(each).__name__.endswith("TopKRouter")]
        for layer, gate in enumerate(gates):
            gate.forward = partial(self.route, gate, layer)

    def route(self, gate: Any, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of a layer's router, and weights and numbers of the experts."""
        logits_NE = nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
        probs_NE = logits_NE.softmax(-1, dtype=torch.float32)
        own_NK = probs_NE.topk(gate.top_k, -1).indices
        self.own.append(own_NK)
        used_NK = self.given[layer] if self.given else own_NK
        weights_NK = probs_NE.gather(-1, used_NK)
        if getattr(gate, "norm_topk_prob", True):
            weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        return logits_NE, weights_NK, used_NK

    @torch.no_grad()
    def read(self, batch: Minibatch, given: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """Return log-probs [B, T] of the response and the router's own choices of each layer."""
        self.given, self.own = [*given], []
        all_BTV = self.model(batch.tokens_BT).logits.log_softmax(-1)
        chosen_BT = all_BTV[:, :-1].gather(2, batch.tokens_BT[:, 1:, None])[..., 0]
        return nn.functional.pad(chosen_BT, (1, 0)) * batch.response_mask_BT, self.own


@pytest.fixture(scope="module")
def course(mixed_model: Path) -> Course:
    batch = sequences()
    # Pairs with one prompt, of which another one is first in the second update.
    batch.tokens_BT[1::2, :3] = batch.tokens_BT[::2, :3]
    first = minibatches(str(mixed_model), 1, batch)[0].with_route_keys()
    # Other sequences of each replica in the second update.
    second = first.rows(torch.arange(7, -1, -1))
    return Course(
        minibatches=[first, second],
        loss=LOSS,
        optimizer={**OPTIMIZER, "lr": 0.5},
        micro_batching=MicroBatching(sequences=2),
    )


@pytest.fixture(scope="module")
def alone(mixed_model: Path, course: Course, forked_workers: ForkedWorkers) -> Replayed:
    """Updates of one process, which keeps all activations."""
    case = Case(folder=str(mixed_model), settings={"router_replay": "R2"})
    ((found,),) = forked_workers.run("replay_probe:replayed", [case], course)
    return found


def saved(folder: Path, weights: Weights, target: Path) -> Path:
    """Save other weights of a folder's model."""
    shutil.copytree(folder, target)
    save_file(assembled(str(folder), TrainLayout(), [weights]), target / "model.safetensors")
    return target


def differing(own: Sequence[Tensor], given: Sequence[Tensor], batch: Minibatch) -> float:
    """Return the share of real tokens and layers whose experts differ."""
    inside_N = (torch.arange(batch.tokens_BT.size(1)) < batch.lengths_B[:, None]).flatten()
    differs = [
        (mine.sort(-1).values != theirs.sort(-1).values).any(-1)[inside_N]
        for mine, theirs in zip(own, given, strict=True)
    ]
    return torch.stack(differs).double().mean().item()


def test_a_second_update_uses_the_experts_of_the_pass_before_the_first(
    mixed_model: Path, course: Course, alone: Replayed, tmp_path: Path
) -> None:
    first, second = course.minibatches
    before_BT, routes = Forced(mixed_model).read(first)
    torch.testing.assert_close(alone.logprobs[0], before_BT, atol=2e-5, rtol=0)
    assert alone.metrics[0]["differing_routes"] == 0.0

    moved = Forced(saved(mixed_model, alone.weights[1], tmp_path / "moved"))
    B, T = first.tokens_BT.shape
    turned = [each.view(B, T, -1).flip(0).flatten(0, 1) for each in routes]
    free_BT, _ = moved.read(second)
    forced_BT, own = moved.read(second, turned)
    share = differing(own, turned, second)
    assert share > 0.05
    assert (free_BT - forced_BT).abs().max() > 0.1
    torch.testing.assert_close(alone.logprobs[1], forced_BT, atol=2e-5, rtol=0)
    assert alone.metrics[1]["differing_routes"] == pytest.approx(share, abs=1e-9)


def logprob_gap(found: Sequence[Replayed], alone: Replayed, case: Case, update: int) -> float:
    """Return the largest difference between the log-probs of the ranks and of one process."""
    heads = [each for each in found if each.logprobs]
    parts = heads if case.layout.dp > 1 else heads[:1]
    wanted_BT = alone.logprobs[update]
    parts_BT = [part.logprobs[update] for part in parts]
    joined_BT = torch.cat(
        [nn.functional.pad(p, (0, wanted_BT.size(1) - p.size(1))) for p in parts_BT]
    )
    return (joined_BT - wanted_BT).abs().max().item()


@pytest.mark.parametrize("names", [EVERY_CHANGE, pytest.param(AT_NIGHT, marks=pytest.mark.nightly)])
def test_each_layout_replays_as_one_process(
    names: list[str],
    mixed_model: Path,
    course: Course,
    alone: Replayed,
    forked_workers: ForkedWorkers,
) -> None:
    cases = [
        replace(
            LAYOUTS[name],
            folder=str(mixed_model),
            settings={"router_replay": "R2", **LAYOUTS[name].settings},
        )
        for name in names
    ]
    replies: list[list[Replayed]] = forked_workers.run(
        "replay_probe:replayed", cases, course, ranks=2
    )
    for name, case, index in zip(names, cases, count()):
        found = [reply[index] for reply in replies]
        for update in range(2):
            gap = logprob_gap(found, alone, case, update)
            # Log-probs of size 20 in float32, after an update.
            assert gap < 5e-4, f"{name}: {gap} in update {update}"
            for each in found:
                share = alone.metrics[update]["differing_routes"]
                # A tie may fall either way: one choice of 255.
                assert each.metrics[update]["differing_routes"] == pytest.approx(share, abs=1 / 250)
