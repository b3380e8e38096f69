"""Every family in every layout of the training side: weights, logits, updates.

Shapes: B sequences, T positions, V the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from assembly import assembled, assert_moved_alike
from forked_workers import ForkedWorkers
from nightly import at_night_but, crossed
from safetensors.torch import load_file
from torch import Tensor
from training_messages import LOSS, Case, Course, Updated, Weights
from training_messages import OPTIMIZER as TWO_UPDATES
from transformers import AutoModelForCausalLM

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
FAMILIES = ("qwen2", "qwen3", "qwen3_moe")
# Families whose tables are those of Qwen, but for what a few layouts show.
RELATED = ("llama", "mistral", "phi3")
LENGTHS = (5, 17, 9, 12, 7, 16, 11, 8)
OPTIMIZER = {**TWO_UPDATES, "updates": 3}


def digits(*places: str | int) -> RankOrder:
    """Write an order as name, radix, name, radix, the fastest first."""
    names, radices = places[::2], places[1::2]
    return RankOrder(digits=tuple(zip(map(str, names), map(int, radices), strict=True)))


# Ranks 0 and 2 share a dense matrix, ranks 0 and 1 an expert, and both grids have two stages.
STAGES_FIRST = TrainLayout(
    tp=2,
    dp=2,
    pp=2,
    ep=2,
    order=digits("pp", 2, "dp", 2, "tp", 2),
    expert_order=digits("pp", 2, "ep", 2, "dp", 2, "etp", 1),
)
# Tensor-parallel ranks are two apart, and data-parallel ones on both sides of that digit.
SPLIT = TrainLayout(
    tp=2,
    dp=4,
    ep=4,
    etp=2,
    order=digits("dp", 2, "tp", 2, "dp", 2, "pp", 1),
    expert_order=digits("etp", 2, "ep", 4, "dp", 1, "pp", 1),
)
SPLIT_EXPERTS = TrainLayout(
    tp=2,
    dp=4,
    ep=2,
    order=digits("dp", 2, "tp", 2, "dp", 2, "pp", 1),
    expert_order=digits("etp", 1, "dp", 2, "ep", 2, "dp", 2, "pp", 1),
)
ANY_FAMILY = [
    TrainLayout(tp=2),
    TrainLayout(pp=2),
    TrainLayout(pp=2, vpp=2),
    TrainLayout(pp=2, layers_per_chunk=(1, 3)),
    TrainLayout(cp=2),
    # Two key-value heads: each lies on two ranks.
    TrainLayout(tp=4),
    TrainLayout(tp=2, pp=2, vpp=2, layers_per_chunk=(1, 1, 1, 1)),
    TrainLayout(tp=2, dp=2, order=digits("dp", 2, "tp", 2, "pp", 1)),
    TrainLayout(tp=2, dp=4, order=digits("dp", 2, "tp", 2, "dp", 2, "pp", 1)),
]
FEW = [TrainLayout(tp=2), TrainLayout(pp=2), TrainLayout(tp=4)]
EXPERTS = [
    TrainLayout(dp=2, ep=2),
    TrainLayout(dp=2, etp=2),
    TrainLayout(dp=4, ep=4),
    TrainLayout(tp=2, dp=2, ep=2),
    TrainLayout(tp=2, dp=2, ep=4),
    TrainLayout(dp=4, ep=2, etp=2),
    TrainLayout(tp=2, dp=2, pp=2, ep=2),
    STAGES_FIRST,
    SPLIT,
    SPLIT_EXPERTS,
]
TIED = [TrainLayout(pp=2), TrainLayout(pp=2, vpp=2), TrainLayout(tp=2, pp=2)]


def cases_to_build(random_model_of: MakeModel) -> Iterator[Case]:
    for family, layout in crossed(FAMILIES, ANY_FAMILY):
        yield Case(folder=str(random_model_of(family)), layout=layout)
    for family, layout in crossed(RELATED, FEW):
        yield Case(folder=str(random_model_of(family)), layout=layout)
    for layout in EXPERTS:
        yield Case(folder=str(random_model_of("qwen3_moe")), layout=layout)
    for family, layout in crossed(("qwen2", "qwen3"), TIED):
        yield Case(folder=str(random_model_of(family, tied=True)), layout=layout)
    yield Case(folder=str(random_model_of("llama", tied=True)), layout=TrainLayout(pp=2))


@pytest.mark.parametrize("ranks", at_night_but([4], [2, 4, 8]))
def test_what_the_ranks_hold_of_each_layout_is_the_file_to_the_bit(
    ranks: int, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    cases = [case for case in cases_to_build(random_model_of) if case.layout.world_size == ranks]
    assert cases
    replies: list[list[Weights]] = forked_workers.run("training_probe:held", cases, ranks=ranks)
    for index, case in enumerate(cases):
        filed = load_file(Path(case.folder) / "model.safetensors")
        found = assembled(case.folder, case.layout, [reply[index] for reply in replies])
        assert found.keys() == filed.keys()
        for name, tensor in filed.items():
            assert torch.equal(found[name], tensor), f"{name} in {case.layout}"


def test_an_order_in_which_megatron_would_mix_up_tokens_is_refused(
    forked_workers: ForkedWorkers,
) -> None:
    order = digits("ep", 2, "etp", 2, "dp", 1, "pp", 1)
    layout = TrainLayout(dp=4, ep=2, etp=2, expert_order=order)
    (reason,) = forked_workers.run("training_probe:refusal", layout)
    assert reason.startswith("etp must come before ep: ")


def sequences() -> Sequences:
    """Make eight sequences of which all but the first three tokens are the response."""
    generator = torch.Generator().manual_seed(1)
    B, T = len(LENGTHS), max(LENGTHS)
    lengths_B = torch.tensor(LENGTHS)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    return Sequences(
        tokens_BT=torch.randint(0, 211, (B, T), generator=generator) * inside_BT,
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (torch.arange(T) >= 3),
    )


def reference_logits(folder: str, batch: Sequences) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits_BTV: Tensor = model(batch.tokens_BT).logits
    return logits_BTV


def check_logits(case: Case, batch: Sequences, ranks: list[Tensor], tolerance: float) -> None:
    """Compare the logits of each replica with Hugging Face."""
    expected_BTV = reference_logits(case.folder, batch)
    assert logits_gap(case.layout, batch, expected_BTV, ranks) <= tolerance


def logits_gap(
    layout: TrainLayout, batch: Sequences, expected_BTV: Tensor, ranks: list[Tensor]
) -> float:
    """Return the largest difference of any replica's logits, put together from its ranks."""
    # The last token of a row predicts nothing.
    inside_BT = torch.arange(max(LENGTHS)) < batch.lengths_B[:, None] - 1
    gaps = []
    for replica in range(layout.dp):
        # Ranks of earlier stages have none; each context-parallel rank has some tokens, 0 else.
        parts = [torch.zeros(())] * layout.tp
        for place, part in zip(layout.dense_order.coordinates, ranks, strict=True):
            if place["dp"] == replica and place["pp"] == layout.last_stage:
                parts[place["tp"]] = parts[place["tp"]] + part
        found_BTV = torch.cat(parts, dim=-1)[..., : expected_BTV.size(-1)]
        gaps.append((found_BTV - expected_BTV)[inside_BT].abs().max().item())
    return max(gaps)


@pytest.mark.parametrize("ranks", at_night_but([4], [1, 2, 4]))
def test_logits_of_each_family_and_layout_are_those_of_hugging_face_to_1e_4(
    ranks: int, forked_workers: ForkedWorkers, random_model_of: MakeModel, mixed_model: Path
) -> None:
    dense, mixture = str(random_model_of("qwen3")), str(random_model_of("qwen3_moe"))
    cases = [
        Case(folder=folder, layout=TrainLayout(tp=ranks), sequence_parallel=ranks > 1)
        for folder in (dense, mixture, str(mixed_model))
    ]
    cases += [
        Case(folder=str(random_model_of(family)), layout=TrainLayout(tp=ranks))
        for family in (*RELATED, "qwen3_linear")
    ]
    if ranks > 1:
        cases += [
            Case(folder=dense, layout=TrainLayout(tp=ranks)),
            Case(folder=mixture, layout=TrainLayout(dp=ranks, ep=ranks)),
            Case(folder=str(mixed_model), layout=TrainLayout(tp=ranks, ep=ranks // 2, etp=2)),
        ]
    batch = sequences()
    replies: list[list[Tensor]] = forked_workers.run(
        "training_probe:logits", cases, batch, ranks=ranks
    )
    for index, case in enumerate(cases):
        # Logits of size 30 in float32, four layers.
        check_logits(case, batch, [reply[index] for reply in replies], 1e-4)


def minibatches(folder: str, count: int = 3, batch: Sequences | None = None) -> list[Minibatch]:
    """Make updates on the same eight sequences, a step away from the policy that wrote them."""
    batch = batch or sequences()
    all_BTV = torch.log_softmax(reference_logits(folder, batch), dim=-1)
    chosen_BT = all_BTV[:, :-1].gather(2, batch.tokens_BT[:, 1:, None])[..., 0]
    logprobs_BT = torch.nn.functional.pad(chosen_BT, (1, 0)) * batch.response_mask_BT
    generator = torch.Generator().manual_seed(2)
    noise_BT = 0.3 * torch.randn(logprobs_BT.shape, generator=generator)
    advantages_B = torch.tensor([1.5, -0.5, 0.25, -1.0, 0.75, -0.25, 1.0, -1.25])
    made = Minibatch(
        tokens_BT=batch.tokens_BT,
        lengths_B=batch.lengths_B,
        response_mask_BT=batch.response_mask_BT,
        old_logprobs_BT=(logprobs_BT + noise_BT) * batch.response_mask_BT,
        advantages_BT=advantages_B[:, None] * batch.response_mask_BT,
        token_weights_BT=token_mean_weights(batch.response_mask_BT),
        ref_logprobs_BT=(logprobs_BT - noise_BT) * batch.response_mask_BT,
    )
    return [made] * count


@pytest.fixture(scope="module")
def course(random_model_of: MakeModel) -> Course:
    return Course(
        minibatches=minibatches(str(random_model_of("qwen3_moe"))),
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )


@pytest.fixture(scope="module")
def alone(
    course: Course, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """What three updates of one process give: metrics and whole weights."""
    folder = str(random_model_of("qwen3_moe"))
    ((done,),) = forked_workers.run("training_probe:updates", [Case(folder=folder)], course)
    return done.metrics, assembled(folder, TrainLayout(), [done.weights])


TRAINED = {
    2: [
        Case(folder="", layout=TrainLayout(dp=2)),
        Case(folder="", layout=TrainLayout(dp=2, ep=2)),
        # Two replicas of three and four micro-batches.
        Case(folder="", layout=TrainLayout(dp=2, ep=2), shares=(1, 7)),
        Case(folder="", layout=TrainLayout(tp=2, ep=2)),
        # Experts are cut where nothing else is, and nothing but experts is whole.
        Case(folder="", layout=TrainLayout(dp=2, etp=2)),
        Case(folder="", layout=TrainLayout(tp=2)),
    ],
    4: [
        Case(folder="", layout=TrainLayout(tp=2, dp=2, ep=2)),
        Case(folder="", layout=TrainLayout(tp=2, dp=2, ep=4)),
        Case(folder="", layout=TrainLayout(dp=4, ep=2, etp=2)),
    ],
    8: [Case(folder="", layout=SPLIT), Case(folder="", layout=SPLIT_EXPERTS)],
}


@pytest.mark.parametrize("ranks", at_night_but([2], TRAINED))
def test_three_updates_of_a_mixture_are_those_of_one_process(
    ranks: int,
    alone: tuple[list[dict[str, float]], dict[str, Tensor]],
    course: Course,
    forked_workers: ForkedWorkers,
    random_model_of: MakeModel,
) -> None:
    folder = random_model_of("qwen3_moe")
    cases = [replace(case, folder=str(folder)) for case in TRAINED[ranks]]
    metrics, weights = alone
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", cases, course, ranks=ranks
    )
    check_updates(folder, cases, replies, metrics, weights)


def check_updates(
    folder: Path,
    cases: Sequence[Case],
    replies: Sequence[Sequence[Updated]],
    metrics: Sequence[dict[str, float]],
    weights: Mapping[str, Tensor],
) -> None:
    """Compare what the ranks say of each case with metrics and whole weights of one process."""
    before = load_file(folder / "model.safetensors")
    for index, case in enumerate(cases):
        for reply in replies:
            for ours, theirs in zip(reply[index].metrics, metrics, strict=True):
                # A gradient norm of 3 in float32; the others are sums of terms below 10.
                assert ours.pop("grad_norm") == pytest.approx(theirs["grad_norm"], rel=1e-4)
                assert ours == pytest.approx({name: theirs[name] for name in ours}, abs=2e-6)
        whole = assembled(str(folder), case.layout, [reply[index].weights for reply in replies])
        assert_moved_alike(whole, weights, before)


def test_replicas_that_share_experts_score_unequal_shares_and_wait_for_each_other(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder, batch = str(random_model_of("qwen3_moe")), sequences()
    case = Case(folder=folder, layout=TrainLayout(dp=2, ep=2), shares=(1, 7))
    replies: list[list[Logprobs]] = forked_workers.run(
        "training_probe:scores", case, batch, [1, 3], ranks=2
    )
    ((whole, *_),) = forked_workers.run("training_probe:scores", Case(folder=folder), batch, [8])
    for first, second in zip(*replies, strict=True):
        assert [len(first.logprobs_BT), len(second.logprobs_BT)] == [1, 7]
        pad = (0, whole.logprobs_BT.size(1) - first.logprobs_BT.size(1))
        found_BT = torch.cat([torch.nn.functional.pad(first.logprobs_BT, pad), second.logprobs_BT])
        # Log-probs of size 20 in float32.
        torch.testing.assert_close(found_BT, whole.logprobs_BT, atol=2e-5, rtol=0)


def test_experts_leave_the_device_between_updates_without_a_trace(
    course: Course, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = str(random_model_of("qwen3_moe"))
    cases = [Case(folder=folder, layout=TrainLayout(dp=2, ep=2), bf16=True)]
    stayed = forked_workers.run("training_probe:updates", cases, course, ranks=2)
    swapped = forked_workers.run(
        "training_probe:updates", cases, replace(course, swap=True), ranks=2
    )
    for (ours,), (theirs,) in zip(swapped, stayed, strict=True):
        assert ours.metrics == theirs.metrics
        assert ours.device_bytes == [0, 0, 0]
        assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


def test_all_chunks_of_all_stages_leave_the_device_and_come_back_as_they_were(
    course: Course, forked_workers: ForkedWorkers, mixed_model: Path
) -> None:
    # Two chunks and experts on each rank; a stage whose one layer has no experts.
    layouts = [TrainLayout(pp=2, vpp=2, dp=2, ep=2), TrainLayout(pp=4)]
    cases = [Case(folder=str(mixed_model), layout=layout) for layout in layouts]
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:swapped", cases, course, ranks=4
    )
    filed = load_file(mixed_model / "model.safetensors")
    for index, case in enumerate(cases):
        assert [reply[index].device_bytes for reply in replies] == [[0]] * 4
        weights = [reply[index].weights for reply in replies]
        found = assembled(case.folder, case.layout, weights)
        assert all(torch.equal(found[name], tensor) for name, tensor in filed.items())
