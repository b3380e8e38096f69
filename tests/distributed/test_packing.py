"""The gradient of an update, however its sequences are cut, padded, packed and recomputed.

Shapes: B sequences, T positions, E experts, K experts of a token, S tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from assembly import assembled
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_training_layouts import LENGTHS, LOSS, OPTIMIZER, minibatches
from torch import Tensor
from training_messages import Case, Course, Weights
from transformers import AutoModelForCausalLM

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
Found = list[tuple[dict[str, float], Weights]]
COURSE = Course(
    minibatches=[],
    loss=LOSS,
    # Nothing moves by more than float32 has, and nothing is clipped: every update sees the same
    # weights.
    optimizer=OPTIMIZER
    | {"lr": 1e-30, "weight_decay": 0.0, "clip_grad": 0.0, "updates": 1}
    # Every replica is to have the whole sum of the gradients.
    | {"use_distributed_optimizer": False},
    micro_batching=MicroBatching(sequences=1),
)
STAGES = TrainLayout(pp=2, vpp=2)
CUTS = [
    MicroBatching(sequences=1),
    MicroBatching(sequences=2),
    MicroBatching(sequences=4),
    MicroBatching(sequences=8),
    # The longest sequence has 17 tokens, all together have 85.
    MicroBatching(sequences=1, tokens=17),
    MicroBatching(sequences=1, tokens=40),
    MicroBatching(sequences=1, tokens=1000),
]


def course_on(folder: Path) -> Course:
    return replace(COURSE, minibatches=minibatches(str(folder), 1))


def check_equal(found: Found, expected: tuple[dict[str, float], Weights]) -> None:
    metrics, gradients = expected
    for ours, ours_gradients in found:
        assert ours == pytest.approx(metrics, rel=2e-6, abs=2e-7)
        largest = max(gradient.abs().max().item() for gradient in gradients.values())
        for name, gradient in gradients.items():
            # Sums of 85 tokens in float32, in another order: roundings of 6e-8 of the largest
            # entry, which four layers make larger on their way back.
            gap = (ours_gradients[name] - gradient).abs().max().item()
            assert gap <= largest * 1e-5, f"{name}: {gap:.1e} of {largest:.1e}"


@pytest.mark.parametrize("family", at_night_but(["qwen3_moe"], ["qwen3", "qwen3_moe"]))
def test_packed_or_padded_by_sequences_or_by_tokens_the_gradient_is_the_same(
    family: str, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of(family, spread=0.1)
    case, course = Case(folder=str(folder)), course_on(folder)
    padded = replace(case, settings={"removes_padding": False})
    (packed_found,) = forked_workers.run("training_probe:gradients", case, course, CUTS)
    (padded_found,) = forked_workers.run("training_probe:gradients", padded, course, CUTS[:4])
    assert len(packed_found) == 7
    check_equal(packed_found[1:] + padded_found, packed_found[0])


@pytest.mark.parametrize("chunk", at_night_but([7], [1, 7]))
def test_logits_of_a_few_tokens_at_a_time_give_the_same_gradient(
    chunk: int, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of("qwen2", tied=True, spread=0.1)
    whole = Case(folder=str(folder))
    cut = replace(whole, settings={"logprob_chunk_tokens": chunk})
    course, cuts = course_on(folder), [MicroBatching(sequences=8)]
    ((expected,),) = forked_workers.run("training_probe:gradients", whole, course, cuts)
    (found,) = forked_workers.run("training_probe:gradients", cut, course, cuts)
    check_equal(found, expected)


@pytest.mark.parametrize("family", at_night_but(["qwen3"], ["qwen3", "qwen3_moe"]))
def test_recomputed_activations_give_the_same_bits(
    family: str, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of(family, spread=0.1)
    case, course = Case(folder=str(folder)), course_on(folder)
    cuts = [MicroBatching(sequences=4)]
    ((kept,),) = forked_workers.run("training_probe:gradients", case, course, cuts)
    keys = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    for recompute in (
        ("selective", None, None),
        ("full", "uniform", 2),
        ("full", "block", 3),
    ):
        again = replace(case, settings=dict(zip(keys, recompute, strict=True)))
        ((found,),) = forked_workers.run("training_probe:gradients", again, course, cuts)
        assert found[0] == kept[0]
        assert all(torch.equal(found[1][name], kept[1][name]) for name in kept[1])


def balance_gradients(folder: Path) -> tuple[float, dict[str, Tensor]]:
    """Return the loss that balances experts and its gradients, by its definition.

    arXiv 2101.03961, eq. 4: E * sum over experts of the share of the choices that fell on it and
    of its mean probability; the mean over sequences and layers, one sequence at a time.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (minibatch,) = minibatches(str(folder), 1)
    losses = []
    for row, length in enumerate(LENGTHS):
        tokens_1S = minibatch.tokens_BT[row : row + 1, :length]
        for scores_SE in model(tokens_1S, output_router_logits=True).router_logits:
            probs_SE = scores_SE.softmax(dim=-1)
            chosen_SK = probs_SE.topk(2, dim=-1).indices
            share_E = torch.bincount(chosen_SK.flatten(), minlength=8) / chosen_SK.numel()
            losses.append(8 * (share_E * probs_SE.mean(0)).sum())
    loss = torch.stack(losses).mean()
    # The run adds the losses of four layers.
    torch.autograd.backward(4 * loss)
    return loss.item(), {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if name.endswith("mlp.gate.weight") and parameter.grad is not None
    }


@pytest.mark.parametrize(
    "layout",
    at_night_but([STAGES], [TrainLayout(), TrainLayout(dp=2, ep=2), STAGES]),
    ids=["alone", "EP2", "PP2+VPP2"],
)
def test_the_loss_that_balances_experts_moves_the_router_as_its_definition_says(
    layout: TrainLayout, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of("qwen3_moe", spread=0.1)
    off = Case(folder=str(folder), layout=layout)
    on = replace(off, settings={"moe_aux_loss_coeff": 0.5})
    course, cuts = course_on(folder), [MicroBatching(sequences=1)]
    ranks = layout.world_size
    without = forked_workers.run("training_probe:gradients", off, course, cuts, ranks=ranks)
    with_loss = forked_workers.run("training_probe:gradients", on, course, cuts, ranks=ranks)

    loss, expected = balance_gradients(folder)

    for ((metrics, _),) in with_loss:
        assert metrics["moe_aux_loss"] == pytest.approx(loss, rel=1e-5)
    found = whole_routers(folder, layout, [both[0][1] for both in with_loss])
    plain = whole_routers(folder, layout, [both[0][1] for both in without])
    assert len(expected) == 4
    for name, gradient in expected.items():
        ours = (found[name] - plain[name]) / 0.5
        # The difference of two gradients up to ten times as large, in float32.
        torch.testing.assert_close(ours, gradient, atol=gradient.abs().max().item() * 2e-4, rtol=0)


def test_within_a_sequence_experts_are_balanced_alike_however_the_sequences_are_cut(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of("qwen3_moe", spread=0.1)
    off = Case(folder=str(folder))
    batch = replace(off, settings={"moe_aux_loss_coeff": 0.5})
    kind = {"moe_router_load_balancing_type": "seq_aux_loss"}
    sequence = replace(off, settings=batch.settings | kind)
    course, cuts = course_on(folder), [*CUTS[:4]]
    ((_, plain),) = forked_workers.run("training_probe:gradients", off, course, cuts[:1])[0]
    (found,) = forked_workers.run("training_probe:gradients", sequence, course, cuts)
    (others,) = forked_workers.run("training_probe:gradients", batch, course, cuts)

    # That of one sequence at a time, which is what `aux_loss` is there.
    loss, expected = balance_gradients(folder)
    wanted = {name: gradient.abs().max().item() for name, gradient in expected.items()}
    first = whole_routers(folder, off.layout, [found[0][1]])
    before = whole_routers(folder, off.layout, [plain])
    for name, gradient in expected.items():
        ours = (first[name] - before[name]) / 0.5
        torch.testing.assert_close(ours, gradient, atol=wanted[name] * 2e-4, rtol=0)
    check_equal(found[1:], found[0])
    for metrics, _ in found:
        assert metrics["moe_aux_loss"] == pytest.approx(loss, rel=1e-5)
    # Over a micro-batch of eight sequences experts are more equally busy than within each.
    assert others[3][0]["moe_aux_loss"] < loss * 0.999


@pytest.mark.nightly
@pytest.mark.parametrize(
    "layout",
    [TrainLayout(cp=2), TrainLayout(tp=2), TrainLayout(dp=2, ep=2)],
    ids=["CP2", "TP2", "EP2"],
)
def test_of_one_sequence_at_a_time_both_balances_are_one_where_its_tokens_are_cut(
    layout: TrainLayout, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of("qwen3_moe", spread=0.1)
    batch = Case(folder=str(folder), layout=layout, settings={"moe_aux_loss_coeff": 0.5})
    kind = {"moe_router_load_balancing_type": "seq_aux_loss"}
    sequence = replace(batch, settings=batch.settings | kind)
    course, cuts = course_on(folder), [MicroBatching(sequences=1)]
    run = "training_probe:gradients"
    expected = forked_workers.run(run, batch, course, cuts, ranks=layout.world_size)
    found = forked_workers.run(run, sequence, course, cuts, ranks=layout.world_size)
    for ours, theirs in zip(found, expected, strict=True):
        check_equal(ours, theirs[0])


def test_idle_passes_of_a_round_leave_the_balance_as_it_is(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = random_model_of("qwen3_moe", spread=0.1)
    alone = Case(folder=str(folder), settings={"moe_aux_loss_coeff": 0.5})
    rounds = replace(alone, layout=TrainLayout(pp=2, vpp=2))
    # One micro-batch of two passes, and three of four.
    course, cuts = course_on(folder), [MicroBatching(sequences=8), MicroBatching(sequences=3)]
    (expected,) = forked_workers.run("training_probe:gradients", alone, course, cuts)

    first, last = forked_workers.run("training_probe:gradients", rounds, course, cuts, ranks=2)

    for at, (metrics, gradients) in enumerate(expected):
        whole = assembled(str(folder), rounds.layout, [first[at][1], last[at][1]])
        wanted = assembled(str(folder), alone.layout, [gradients])
        check_equal([(last[at][0], whole)], (metrics, wanted))


def whole_routers(folder: Path, layout: TrainLayout, ranks: list[Weights]) -> dict[str, Tensor]:
    """Put gradients together as if they were weights."""
    whole = assembled(str(folder), layout, ranks)
    return {name: tensor for name, tensor in whole.items() if name.endswith("mlp.gate.weight")}
