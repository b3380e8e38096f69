"""Vision-language networks of transformers on FSDP2, next to transformers' own forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from safetensors.torch import load_file
from test_training_state import STOP, assert_equal, run, whole
from training_messages import Case, Course, Life
from vision_rows import (
    PAD,
    SIZES,
    Shown,
    kept_pictures,
    noise,
    reference,
    reference_logprobs,
    save_tiny,
    sequences_of,
    shown_rows,
)

from mindrl.algorithms.answer_loss import answer_loss
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import WeightedSequences
from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.any_family import read_any_description
from mindrl.config.backends import TrainingBackend
from mindrl.config.generate import SamplingConfig
from mindrl.config.images import ImageConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.pictures import feature_bytes
from mindrl.rollout.engine import Sampling

pytestmark = pytest.mark.distributed

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
ALONE, TWO, CUT, TENSOR = TrainLayout(), TrainLayout(dp=2), TrainLayout(cp=2), TrainLayout(tp=2)
LAYOUTS: Sequence[tuple[TrainLayout, tuple[int, ...] | None]] = [
    (ALONE, None),
    (TWO, (4, 2)),
    (CUT, None),
    (TENSOR, None),
]
"""Layouts, and the sequences of each data-parallel rank."""
NETWORKS = [*product(FAMILIES, ("fsdp", "archon"))]
EVERY_CHANGE = [("qwen2_5_vl", "fsdp"), ("qwen3_vl", "archon")]
"""Networks of the short suite: each family and each engine."""
UPDATES = 5
OPTIMIZER: Mapping[str, Any] = {
    "lr": 1e-3,
    "min_lr": 0.0,
    "lr_decay_style": "constant",
    "updates": UPDATES,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    # Wide, so that the step of a gradient near zero does not hang on its rounding.
    "adam_eps": 1e-2,
}
GAP_BOUND = 1e-5
"""Of log-probs of the engine, whose kernels round otherwise."""
LOGPROB_BOUND = 5e-6
"""Of log-probs of size 5 to 15 in float32, whose last bit is 1e-6."""


@dataclass(frozen=True)
class Seen:
    """A model, rows with pictures, and how they are read and learned."""

    folder: Path
    images: ImageConfig
    rows: list[Shown]

    def case(self, layout: TrainLayout, backend: TrainingBackend = "fsdp", **settings: Any) -> Case:
        more = {"images": self.images, **settings}
        return Case(folder=str(self.folder), layout=layout, backend=backend, settings=more)

    def course(self, cut: MicroBatching, rows: list[Shown] | None = None) -> Course:
        batch = sequences_of(rows or self.rows)
        weights_BT = token_mean_weights(batch.response_mask_BT)
        minibatch = batch.into(WeightedSequences, token_weights_BT=weights_BT)
        return Course(
            minibatches=[minibatch] * UPDATES,
            loss=answer_loss,
            optimizer=OPTIMIZER,
            micro_batching=cut,
        )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Seen]:
    found = {}
    images, numbers = kept_pictures(tmp_path_factory.mktemp("pictures"))
    for family in FAMILIES:
        folder = save_tiny(tmp_path_factory.mktemp(family) / "model", family)
        found[family] = Seen(folder, images, shown_rows(folder, numbers))
    return found


def pictures_of(seen: Seen) -> dict[int, Any]:
    return dict(zip(numbers_of(seen), map(noise, SIZES, range(len(SIZES))), strict=True))


def numbers_of(seen: Seen) -> list[int]:
    return [seen.rows[row].images[at].number for row, at in ((0, 0), (2, 0), (2, 1))]


@pytest.mark.parametrize(("family", "backend"), at_night_but(EVERY_CHANGE, NETWORKS))
def test_packs_with_pictures_read_as_transformers_reads_each_sequence(
    family: str,
    backend: TrainingBackend,
    seen: Mapping[str, Seen],
    forked_workers: ForkedWorkers,
) -> None:
    this = seen[family]
    with torch.no_grad():
        wanted = reference_logprobs(
            reference(this.folder), this.folder, this.rows, pictures_of(this)
        )
    for cut in (MicroBatching(sequences=6), MicroBatching(sequences=1)):
        course = this.course(cut)
        asked = [(this.case(ALONE, backend), replace(course, minibatches=[]))]
        (found,) = forked_workers.run("archon_probe:lives", asked, sequences_of(this.rows))
        logprobs_BT = found[0].logprobs_BT
        for row, expected, ours_T in zip(this.rows, wanted, logprobs_BT, strict=True):
            gap = (ours_T[row.asked : len(row.token_ids)] - expected).abs().max()
            assert gap <= LOGPROB_BOUND


@pytest.mark.parametrize(("family", "backend"), at_night_but(EVERY_CHANGE, NETWORKS))
def test_updates_are_those_of_a_loop_over_transformers_on_any_rank_count(
    family: str,
    backend: TrainingBackend,
    seen: Mapping[str, Seen],
    forked_workers: ForkedWorkers,
) -> None:
    this = seen[family]
    # The second of two ranks has no picture.
    rows = [this.rows[at] for at in (0, 1, 2, 4, 3, 5)]
    course = this.course(MicroBatching(sequences=3), rows)
    batch = sequences_of(rows)
    wanted, weights = hugging_face_course(this, rows)
    ways = [(*each, False) for each in LAYOUTS]
    if backend == "archon":
        ways.append((TENSOR, None, True))
    for layout, shares, cuts_sequences in ways:
        case = this.case(layout, backend)
        case = replace(case, shares=shares, sequence_parallel=cuts_sequences)
        replies = forked_workers.run(
            "archon_probe:lives", [(case, course)], batch, ranks=layout.world_size
        )
        lives: list[Life] = [reply[0] for reply in replies]
        for ours, (loss, norm) in zip(lives[0].metrics, wanted, strict=True):
            assert abs(ours["answer_loss"] - loss) <= 2e-6
            assert abs(ours["grad_norm"] / norm - 1) <= 1e-5
        if layout.world_size == 1:
            for name, tensor in lives[0].weights.items():
                assert (tensor - weights[name]).abs().max() <= 2e-6, name


def hugging_face_course(
    this: Seen, rows: list[Shown], *, freezes_tower: bool = False
) -> tuple[list[tuple[float, float]], Mapping[str, torch.Tensor]]:
    """Train transformers' network by a loop of its own; return losses, norms and weights."""
    network = reference(this.folder)
    network.model.visual.requires_grad_(not freezes_tower)
    names = {name: each for name, each in network.named_parameters() if each.requires_grad}
    matrices = [each for each in names.values() if each.dim() > 1]
    vectors = [each for each in names.values() if each.dim() == 1]
    decay = OPTIMIZER["weight_decay"]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_eps"],
    )
    found = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        logprobs = reference_logprobs(network, this.folder, rows, pictures_of(this))
        loss = -torch.cat(logprobs).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(names.values(), OPTIMIZER["clip_grad"])
        optimizer.step()
        found.append((float(loss.detach()), float(norm)))
    network.save_pretrained(folder := this.folder.with_name("learned"))
    return found, load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("family", "backend"), at_night_but([("qwen3_vl", "fsdp")], NETWORKS))
def test_a_frozen_tower_reads_each_picture_once_and_learns_nothing(
    family: str,
    backend: TrainingBackend,
    seen: Mapping[str, Seen],
    forked_workers: ForkedWorkers,
) -> None:
    this = seen[family]
    rows = [this.rows[at] for at in (0, 1, 2, 4, 3, 5)]
    wanted, weights = hugging_face_course(this, rows, freezes_tower=True)
    before = load_file(this.folder / "model.safetensors")
    # Of two ranks the second has one picture, in its first pack; in the third it sends a blank one
    # through the tower for the first, which has two new ones.
    cases = [(ALONE, 3, [[3]]), (TWO, 1, [[1, 2], [1, 1]])]
    cases += [(layout, 3, [[3], [3]]) for layout in (CUT, TENSOR)]
    for layout, cut, pictures in cases:
        course = this.course(MicroBatching(sequences=cut), rows)
        case = replace(this.case(layout, backend), freezes_tower=True)
        replies = forked_workers.run(
            "tower_probe:counted_life", case, course, sequences_of(rows), ranks=layout.world_size
        )
        assert [each.pictures for each in replies] == pictures
        assert [each.state_bytes for each in replies] == [each.planned_bytes for each in replies]
        for ours, (loss, norm) in zip(replies[0].life.metrics, wanted, strict=True):
            assert abs(ours["answer_loss"] - loss) <= 2e-6
            assert abs(ours["grad_norm"] / norm - 1) <= 1e-5
        if layout == ALONE:
            learned = {name: each for name, each in before.items() if "visual." not in name}
            size = 4 * sum(each.numel() for each in learned.values())
            assert replies[0].state_bytes[1:] == (size, 2 * size)
            for name, tensor in replies[0].life.weights.items():
                bound = 2e-6 if name in learned else 0.0
                assert (tensor - weights[name]).abs().max() <= bound, name


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "freezes_tower"), [*product(FAMILIES, (False, True))])
def test_what_one_network_wrote_the_other_goes_on_with_and_the_first_one_again(
    family: str,
    freezes_tower: bool,
    seen: Mapping[str, Seen],
    forked_workers: ForkedWorkers,
    tmp_path: Path,
) -> None:
    this, written = seen[family], tmp_path
    ways: list[tuple[TrainLayout, TrainingBackend]] = [(TENSOR, "fsdp"), (TWO, "archon")]
    ways += [(TENSOR, "archon"), (TENSOR, "fsdp")]
    first, *others = (
        replace(this.case(layout, backend), freezes_tower=freezes_tower) for layout, backend in ways
    )
    course = this.course(MicroBatching(sequences=3))
    straight = run(forked_workers, "save", first, course, tmp_path)
    for case in others:
        resumed = run(forked_workers, "load", case, course, written)
        # Each writes what it has taken over, before it goes on.
        written /= "again"
        assert_equal(whole(written), whole(tmp_path))
        for ours, theirs in zip(resumed[0].metrics, straight[0].metrics[STOP:], strict=True):
            assert abs(ours["answer_loss"] - theirs["answer_loss"]) <= 2e-6
            assert abs(ours["grad_norm"] / theirs["grad_norm"] - 1) <= 1e-5
    for ours, theirs in zip(resumed, straight, strict=True):
        assert_equal(ours.weights, theirs.weights)


def test_a_sampled_image_token_is_a_token_like_others(
    seen: Mapping[str, Seen], forked_workers: ForkedWorkers
) -> None:
    """Transformers refuses it, so another token gets its embedding there."""
    this, twin = seen["qwen2_5_vl"], 300
    row = this.rows[4]
    drawn = replace(row, token_ids=[*row.token_ids[:-2], PAD, row.token_ids[-1]])
    renamed = replace(row, token_ids=[*row.token_ids[:-2], twin, row.token_ids[-1]])
    network = reference(this.folder)
    with torch.no_grad():
        network.get_input_embeddings().weight[twin] = network.get_input_embeddings().weight[PAD]
        (wanted,) = reference_logprobs(
            network, this.folder, [renamed], pictures_of(this), [drawn.token_ids]
        )
    course = replace(this.course(MicroBatching(sequences=1)), minibatches=[])
    asked = [(this.case(TrainLayout()), course)]
    (found,) = forked_workers.run("archon_probe:lives", asked, sequences_of([drawn]))
    ours = found[0].logprobs_BT[0, row.asked : len(row.token_ids)]
    assert (ours - wanted).abs().max() <= LOGPROB_BOUND


@pytest.mark.parametrize("family", at_night_but(["qwen2_5_vl"], [*FAMILIES]))
def test_the_engine_samples_what_transformers_computes_after_each_load(
    family: str,
    seen: Mapping[str, Seen],
    forked_workers: ForkedWorkers,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    this = seen[family]
    later = save_tiny(tmp_path_factory.mktemp("later") / "model", family, seed=8)
    section = SamplingConfig(temperature=1.0, max_tokens=8)
    sampling = Sampling(section=section, stop_token_ids=(258,))
    # Three samples of one prompt: the tower reads its picture once.
    rows = [this.rows[at] for at in (0, 0, 0, 2, 3)]
    (life,) = forked_workers.run(
        "vision_probe:life_of_an_engine", (this.folder, later), this.images, rows, sampling
    )
    assert life.towers == [3, 3, 3]
    assert "expanded a prompt" in life.refused
    other = read_any_description(str(this.folder)).other
    assert other is not None
    assert other.vision is not None
    tokens = sum(image.tokens for row in (rows[0], rows[3]) for image in row.images)
    assert life.cached_bytes == tokens * feature_bytes(other.vision.sizes, "float32")
    for folder, responses in ((this.folder, life.first), (later, life.later), (later, life.awoken)):
        asked = [replace(row, token_ids=row.token_ids[: row.asked]) for row in rows]
        assert gap_to_transformers(this, folder, asked, responses) <= GAP_BOUND
    # Each whole row, with its answer, as the prompt of a further turn.
    assert gap_to_transformers(this, later, rows, life.in_rounds) <= GAP_BOUND


def gap_to_transformers(this: Seen, folder: Path, rows: list[Shown], responses: Responses) -> float:
    """Return the largest difference of log-probs of drawn tokens."""
    network, gaps = reference(folder), []
    for row, (tokens_N, logprobs_N) in zip(rows, responses.each(), strict=True):
        drawn = tokens_N.tolist()
        assert PAD not in drawn, "transformers refuses it"
        longer = replace(row, token_ids=row.token_ids + drawn, asked=len(row.token_ids))
        with torch.no_grad():
            (wanted,) = reference_logprobs(network, folder, [longer], pictures_of(this))
        gaps.append(float((wanted - logprobs_N).abs().max()))
    return max(gaps)
