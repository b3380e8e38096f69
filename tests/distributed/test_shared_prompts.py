"""Tokens that are computed once for all sequences that begin with them: the same updates.

Samples of a prompt, and turns of conversations, compared to Hugging Face, and to an engine that
computes each sequence whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but
from replay_messages import Replayed
from test_router_replay import FULL
from test_training_layouts import LOSS, OPTIMIZER, minibatches, reference_logits
from torch.testing import assert_close
from training_messages import Case, Course, Life

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]

# Length of the prompt, and of each answer. Two replicas take four sequences each.
PROMPTS = ((9, (4, 1, 8)), (4, (3, 5, 2, 6)), (5, (7,)))
LOGPROB_BOUND, LOSS_BOUND, NORM_BOUND = 2e-5, 2e-6, 5e-6
SHARES = {"shares_prompts": True}


def grouped() -> Sequences:
    """Make eight sequences of three prompts, one of which has a single answer."""
    generator = torch.Generator().manual_seed(5)
    rows, masks = [], []
    for prompt, answers in PROMPTS:
        asked = torch.randint(0, 211, (prompt,), generator=generator)
        for answer in answers:
            rows.append(torch.cat([asked, torch.randint(0, 211, (answer,), generator=generator)]))
            masks.append(torch.arange(prompt + answer) >= prompt)
    return Sequences(
        tokens_BT=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        lengths_B=torch.tensor([len(row) for row in rows]),
        response_mask_BT=torch.nn.utils.rnn.pad_sequence(masks, batch_first=True),
    )


def conversed() -> Sequences:
    """Make eight sequences of conversations about two prompts.

    A prompt repeats the response before it, or a part of that and other tokens.
    """
    generator = torch.Generator().manual_seed(6)

    def drawn(count: int) -> list[int]:
        return torch.randint(0, 211, (count,), generator=generator).tolist()

    asked, answer, other = drawn(9), drawn(20), drawn(5)
    shown = [*asked, *answer[:17], *drawn(18)]
    short = [*other, *drawn(17)]
    rows = [
        (asked, answer),
        ([*asked, *answer, *drawn(4)], drawn(5)),
        (shown, drawn(3)),
        (shown, drawn(6)),
        (asked, drawn(4)),
        ([*shown, *drawn(16)], drawn(2)),
        (short, drawn(7)),
        ([*short[:-1], *drawn(3)], drawn(4)),
    ]
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    masks = pad([torch.arange(len(p) + len(a)) >= len(p) for p, a in rows])
    # The last token but one of this response is what an environment gave.
    masks[3, len(shown) + 4] = False
    return Sequences(
        tokens_BT=pad([torch.tensor(prompt + answer) for prompt, answer in rows]),
        lengths_B=torch.tensor([len(prompt) + len(answer) for prompt, answer in rows]),
        response_mask_BT=masks,
        tree_B=torch.tensor([0] * 6 + [1] * 2),
    )


def course_of(folder: str, batch: Sequences, tokens: int | None = None) -> Course:
    """Take updates with micro-batches of three sequences, or of some tokens."""
    made = [replace(each, tree_B=batch.tree_B) for each in minibatches(folder, UPDATES, batch)]
    return Course(
        minibatches=made,
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": UPDATES},
        micro_batching=MicroBatching(sequences=3, tokens=tokens),
    )


def case(engine: Literal["megatron", "archon", "fsdp"], **sizes: int) -> Case:
    return Case(
        folder="",
        layout=TrainLayout(**sizes),
        backend=engine,
        sequence_parallel=sizes.get("tp", 1) > 1 and engine != "fsdp",
        settings=SHARES,
    )


CASES: Mapping[str, tuple[str, Case]] = {
    "archon alone": ("qwen3", case("archon")),
    "archon DP2": ("qwen3", case("archon", dp=2)),
    "archon TP2": ("qwen2", case("archon", tp=2)),
    "archon CP2": ("qwen3", case("archon", cp=2)),
    "archon PP2": ("llama", case("archon", pp=2)),
    "archon EP2": ("qwen3_moe", case("archon", dp=2, ep=2)),
    "fsdp alone": ("olmo2", case("fsdp")),
    "fsdp DP2": ("qwen3", case("fsdp", dp=2)),
    "fsdp TP2": ("qwen3", case("fsdp", tp=2)),
    "fsdp CP2": ("qwen3", case("fsdp", cp=2)),
    "Megatron alone": ("qwen2 tied", case("megatron")),
    "Megatron DP2": ("qwen3", case("megatron", dp=2)),
    "Megatron TP2": ("qwen3", case("megatron", tp=2)),
    "Megatron CP2": ("llama", case("megatron", cp=2)),
    "Megatron PP2": ("qwen2", case("megatron", pp=2)),
    "Megatron TP2 EP2": ("qwen3_moe", case("megatron", tp=2, ep=2)),
    "Megatron TP2 CP2": ("qwen3", case("megatron", tp=2, cp=2)),
    "Megatron PP2 VPP2": ("qwen3", case("megatron", pp=2, vpp=2)),
}
SHORT = ("archon CP2", "Megatron TP2")
OF_TURNS = CASES | {
    "archon recomputed": (
        "qwen3",
        replace(case("archon", dp=2), settings=SHARES | {"archon": ArchonConfig(ac_mode="full")}),
    ),
    "Megatron recomputed": ("qwen3", replace(case("megatron", tp=2), settings=SHARES | FULL)),
}
SHORT_OF_TURNS = ("archon DP2", "fsdp CP2", "Megatron CP2")


@pytest.mark.parametrize("name", at_night_but(SHORT, CASES))
def test_logprobs_and_updates_are_those_of_whole_sequences(
    name: str, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    check(CASES[name], grouped(), 40, random_model_of, forked_workers)


@pytest.mark.parametrize("name", at_night_but(SHORT_OF_TURNS, OF_TURNS))
def test_turns_that_share_what_their_prompts_repeat_are_learned_as_whole_sequences(
    name: str, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    check(OF_TURNS[name], conversed(), 100, random_model_of, forked_workers)


def check(
    named: tuple[str, Case],
    batch: Sequences,
    budget: int,
    random_model_of: MakeModel,
    forked_workers: ForkedWorkers,
) -> None:
    """Assert that a case learns as one process that computes each sequence whole."""
    family, case = named
    kind, *tied = family.split()
    case = replace(case, folder=str(random_model_of(kind, bool(tied), spread=0.1)))
    plain, of_tokens = course_of(case.folder, batch), course_of(case.folder, batch, budget)
    alone = replace(case, layout=TrainLayout(), sequence_parallel=False, settings={})
    ((whole,),) = forked_workers.run("training_probe:lives", [(alone, plain)], batch)
    shared = [(case, course) for course in (plain, of_tokens)]
    replies: list[list[Life]] = forked_workers.run(
        "training_probe:lives", shared, batch, ranks=case.layout.world_size
    )
    leaders = case.layout.leaders
    for index in range(len(shared)):
        found = [reply[index] for reply in replies]
        read = [found[rank].logprobs_BT for rank in leaders]
        parts = whole.logprobs_BT.split([len(read_BT) for read_BT in read])
        for read_BT, part_BT in zip(read, parts, strict=True):
            width = read_BT.size(1)
            assert_close(read_BT, part_BT[:, :width], rtol=0, atol=LOGPROB_BOUND)
        for step, theirs in enumerate(whole.metrics):
            ours = found[leaders[0]].metrics[step]
            assert abs(ours["policy_loss"] - theirs["policy_loss"]) <= LOSS_BOUND
            assert abs(ours["grad_norm"] / theirs["grad_norm"] - 1) <= NORM_BOUND


def replies_of(
    case: Case, course: Course, forked_workers: ForkedWorkers
) -> list[tuple[Replayed, ...]]:
    """Return the updates of each rank of a case."""
    ranks = case.layout.world_size
    return forked_workers.run("replay_probe:replayed", [case], course, ranks=ranks)  # type: ignore[no-any-return]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["archon DP2", "Megatron CP2"])
def test_tokens_of_several_turns_replay_the_experts_that_each_turn_chose(
    name: str, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen3_moe", spread=0.1))
    course = course_of(folder, conversed(), 100)
    first = course.minibatches[0].with_route_keys()
    course = replace(
        course,
        # Other sequences lend their prompts in the second update.
        minibatches=[first, first.rows(torch.arange(7, -1, -1))],
        # Far enough for other choices.
        optimizer={**OPTIMIZER, "lr": 0.5},
    )
    ((whole,),) = replies_of(
        Case(folder=folder, settings={"router_replay": "R2"}), course, forked_workers
    )
    case = CASES[name][1]
    case = replace(case, folder=folder, settings=SHARES | {"router_replay": "R2"})
    found = [reply for (reply,) in replies_of(case, course, forked_workers)]
    parts = [found[rank].logprobs for rank in case.layout.leaders]
    assert whole.metrics[1]["differing_routes"] > 0.01
    for update, bound in ((0, LOGPROB_BOUND), (1, 5e-4)):
        split = whole.logprobs[update].split([len(part[update]) for part in parts])
        for part, part_BT in zip(parts, split, strict=True):
            read_BT = part[update]
            assert_close(read_BT, part_BT[:, : read_BT.size(1)], rtol=0, atol=bound)


def test_logprobs_are_those_of_hugging_face(
    random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    folder, batch = str(random_model_of("qwen3", spread=0.1)), grouped()
    asked = [(replace(CASES["archon alone"][1], folder=folder), course_of(folder, batch))]
    ((life,),) = forked_workers.run("training_probe:lives", asked, batch)
    all_BTV = torch.log_softmax(reference_logits(folder, batch), dim=-1)
    chosen_BT = all_BTV[:, :-1].gather(2, batch.tokens_BT[:, 1:, None])[..., 0]
    theirs_BT = torch.nn.functional.pad(chosen_BT, (1, 0)) * batch.response_mask_BT
    assert_close(life.logprobs_BT, theirs_BT, rtol=0, atol=LOGPROB_BOUND)
