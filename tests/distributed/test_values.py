"""Value heads on the training side: critics and reward models, against Hugging Face and torch.

Shapes: B sequences, T positions, H the hidden size.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from assembly import assembled, assert_moved_alike
from forked_workers import ForkedWorkers
from nightly import UPDATES, few_unless_night
from safetensors.torch import load_file
from test_training_layouts import LENGTHS, sequences
from torch import Tensor, nn
from training_messages import OPTIMIZER as TWO_UPDATES
from training_messages import Case
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from value_messages import CriticCourse, Judged, ValueTrial

from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import CriticMinibatch
from mindrl.batch.sequences import Sequences
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
FAMILIES = ("qwen2", "qwen3", "llama", "qwen3_moe")
LOSS = ValueLoss(clip_range=0.5)
OPTIMIZER = {**TWO_UPDATES, "updates": UPDATES}
# Of two ranks, by the name of the family.
LAYOUTS = {
    "qwen3": [
        Case(folder="", layout=TrainLayout(tp=2), sequence_parallel=True),
        Case(folder="", layout=TrainLayout(pp=2, vpp=2)),
        Case(folder="", layout=TrainLayout(cp=2)),
        Case(folder="", layout=TrainLayout(dp=2)),
        *few_unless_night(
            [],
            [
                Case(folder="", layout=TrainLayout(tp=2)),
                Case(folder="", layout=TrainLayout(pp=2)),
            ],
        ),
    ],
    "qwen3_moe": [Case(folder="", layout=TrainLayout(dp=2, ep=2))],
}


@pytest.fixture(scope="session")
def valued(
    random_model_of: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Make a folder of a family's random model with a head of one label, by transformers."""
    made: dict[tuple[str, type], str] = {}

    def make(family: str, classifier: Any = AutoModelForTokenClassification) -> str:
        if (family, classifier) not in made:
            torch.manual_seed(5)
            plain = random_model_of(family)
            config = AutoConfig.from_pretrained(plain)
            config.num_labels, config.token_classification_bias = 1, False
            model = classifier.from_pretrained(plain, config=config, dtype=torch.float32)
            nn.init.normal_(model.score.weight, std=0.1)
            folder = tmp_path_factory.mktemp(f"{family}-valued")
            model.save_pretrained(folder)
            made[family, classifier] = str(folder)
        return made[family, classifier]

    return make


def plain_values(model: Any, batch: Sequences) -> Tensor:
    """Read the value of a response token where its log-prob is read: at the token before it."""
    logits_BT = model(batch.tokens_BT).logits[..., 0]
    return nn.functional.pad(logits_BT[:, :-1], (1, 0)) * batch.response_mask_BT


def plain_rewards(folder: str, batch: Sequences) -> Tensor:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    rows = zip(batch.tokens_BT, LENGTHS, strict=True)
    with torch.no_grad():
        return torch.cat([model(tokens_T[None, :length]).logits[0] for tokens_T, length in rows])


def course(folder: str, updates: int = UPDATES, sequences_per_pass: int = 3) -> CriticCourse:
    """Make updates on the same sequences, a step away from the critic that valued them."""
    batch = sequences()
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        values_BT = plain_values(model, batch)
    generator = torch.Generator().manual_seed(2)
    noise_2BT = torch.randn(2, *values_BT.shape, generator=generator)
    minibatch = CriticMinibatch(
        tokens_BT=batch.tokens_BT,
        lengths_B=batch.lengths_B,
        response_mask_BT=batch.response_mask_BT,
        old_values_BT=(values_BT + 0.4 * noise_2BT[0]) * batch.response_mask_BT,
        returns_BT=(values_BT + noise_2BT[1]) * batch.response_mask_BT,
        token_weights_BT=token_mean_weights(batch.response_mask_BT),
    )
    return CriticCourse(
        minibatches=[minibatch] * updates,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=sequences_per_pass),
    )


@pytest.fixture(scope="module")
def alone(forked_workers: ForkedWorkers, valued: Callable[..., str]) -> dict[str, Judged]:
    """What one process says of each family, and of the updates of two of them."""
    trials = [
        ValueTrial(
            case=Case(folder=valued(family)),
            course=course(valued(family)) if family in LAYOUTS else None,
        )
        for family in FAMILIES
    ]
    trials.append(ValueTrial(case=Case(folder=valued("qwen2", AutoModelForSequenceClassification))))
    (found,) = forked_workers.run("value_probe:judged", trials, sequences())
    return dict(zip((*FAMILIES, "of sequences"), found, strict=True))


@pytest.fixture(scope="module")
def cases(valued: Callable[..., str]) -> list[tuple[str, Case]]:
    return [
        (family, replace(case, folder=valued(family)))
        for family, listed in LAYOUTS.items()
        for case in listed
    ]


@pytest.fixture(scope="module")
def two_ranks(
    cases: list[tuple[str, Case]],
    forked_workers: ForkedWorkers,
    random_model_of: MakeModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[list[Judged]], Path]:
    """What two processes say in each layout, by case and rank; and where the exports are.

    Behind the cases come two of a causal language model with a tied head, which has no value head.
    """
    exports = tmp_path_factory.mktemp("exports")
    trials = [ValueTrial(case=case, course=course(case.folder)) for _, case in cases]
    trials[0] = replace(trials[0], export_to=str(exports / "trained"))
    tied = Case(folder=str(random_model_of("qwen2", tied=True)), layout=TrainLayout(tp=2))
    in_stages = replace(tied, layout=TrainLayout(pp=2))
    trials.append(ValueTrial(case=tied, head_seed=11))
    trials.append(ValueTrial(case=in_stages, head_seed=11, export_to=str(exports / "drawn")))
    replies = forked_workers.run("value_probe:judged", trials, sequences(), ranks=2)
    return list(map(list, zip(*replies, strict=True))), exports


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_hugging_face_to_1e_4(
    family: str, alone: dict[str, Judged], valued: Callable[..., str]
) -> None:
    model = AutoModelForTokenClassification.from_pretrained(valued(family), dtype=torch.float32)
    with torch.no_grad():
        expected_BT = plain_values(model, sequences())
    values = alone[family].values
    assert values is not None
    # Products of 128 hidden states of size 3 in float32, four layers.
    torch.testing.assert_close(values.values_BT, expected_BT, atol=1e-4, rtol=0)
    assert expected_BT.abs().max() > 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_rewards_are_those_of_hugging_face_at_the_last_token_to_1e_4(
    family: str, alone: dict[str, Judged], valued: Callable[..., str]
) -> None:
    rewards = alone[family].rewards
    assert rewards is not None
    expected_B = plain_rewards(valued(family), sequences())
    # As for values: the same head, read elsewhere.
    torch.testing.assert_close(rewards.rewards_B, expected_B, atol=1e-4, rtol=0)
    assert len(set(expected_B.tolist())) == 8


def test_updates_in_each_layout_are_those_of_one_process(
    alone: dict[str, Judged],
    cases: list[tuple[str, Case]],
    two_ranks: tuple[list[list[Judged]], Path],
) -> None:
    for (family, case), ranks in zip(cases, two_ranks[0][:-2], strict=True):
        one = alone[family]
        for metrics in (reply.metrics for reply in ranks):
            # Values of size 1 in float32; a stage before the last one knows no losses.
            first, expected = metrics[0]["grad_norm"], one.metrics[0]["grad_norm"]
            assert first == pytest.approx(expected, rel=2e-6), case.layout
            if metrics[0].keys() == one.metrics[0].keys():
                losses = [update["value_loss"] for update in metrics]
                wanted = [update["value_loss"] for update in one.metrics]
                assert losses == pytest.approx(wanted, abs=2e-6), case.layout
        _same_weights(case, ranks, one)
    losses = [update["value_loss"] for update in alone["qwen3"].metrics]
    assert losses[-1] < 0.9 * losses[0]


def _same_weights(case: Case, ranks: list[Judged], one: Judged) -> None:
    whole = assembled(case.folder, case.layout, [reply.weights for reply in ranks], head="value")
    expected = assembled(case.folder, TrainLayout(), [one.weights], head="value")
    before = load_file(Path(case.folder) / "model.safetensors")
    assert_moved_alike(whole, expected, before, least=1e-5)


def test_values_and_rewards_in_each_layout_are_those_of_one_process(
    alone: dict[str, Judged],
    cases: list[tuple[str, Case]],
    two_ranks: tuple[list[list[Judged]], Path],
) -> None:
    for (family, case), ranks in zip(cases, two_ranks[0][:-2], strict=True):
        one = alone[family]
        assert one.values is not None
        assert one.rewards is not None
        for rank, found in enumerate(ranks):
            assert (found.values is None) == (case.layout.pp == 2 and rank == 0)
            if found.values is None or found.rewards is None:
                continue
            replica = case.layout.replica_of(rank)
            size = len(LENGTHS) // case.layout.dp
            rows = slice(replica * size, (replica + 1) * size)
            T = found.values.values_BT.size(1)
            # Values of size 5 in float32.
            torch.testing.assert_close(
                found.values.values_BT, one.values.values_BT[rows, :T], atol=2e-5, rtol=0
            )
            torch.testing.assert_close(
                found.rewards.rewards_B, one.rewards.rewards_B[rows], atol=2e-5, rtol=0
            )


def test_updates_move_every_weight_as_plain_torch_does(
    alone: dict[str, Judged], valued: Callable[..., str]
) -> None:
    model = AutoModelForTokenClassification.from_pretrained(valued("qwen3"), dtype=torch.float32)
    metrics = plain_updates(model, course(valued("qwen3")))
    for ours, theirs in zip(alone["qwen3"].metrics, metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"clip_fraction"}:  # It compares errors that may be equal.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
    before = load_file(Path(valued("qwen3")) / "model.safetensors")
    whole = assembled(valued("qwen3"), TrainLayout(), [alone["qwen3"].weights], head="value")
    assert_moved_alike(whole, model.state_dict(), before)


def plain_updates(model: Any, course: CriticCourse) -> list[dict[str, float]]:
    """Take the updates with Hugging Face's model, its dropout off, and torch's AdamW."""
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    adam = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_eps"],
        weight_decay=OPTIMIZER["weight_decay"],
    )
    metrics = []
    for batch in course.minibatches:
        ones_BT = torch.ones_like(batch.returns_BT)
        terms = course.loss(LossInputs.of((plain_values(model, batch),), batch, ones_BT))
        adam.zero_grad()
        torch.autograd.backward(terms.loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip_grad"])
        adam.step()
        found = {name: value.item() for name, value in terms.metrics.items()}
        metrics.append(found | {"grad_norm": norm.item(), "lr": OPTIMIZER["lr"], "skipped": 0.0})
    return metrics


def test_a_folder_of_a_sequence_classifier_is_a_reward_model(
    alone: dict[str, Judged], valued: Callable[..., str]
) -> None:
    folder = valued("qwen2", AutoModelForSequenceClassification)
    rewards = alone["of sequences"].rewards
    assert rewards is not None
    # As above.
    torch.testing.assert_close(
        rewards.rewards_B, plain_rewards(folder, sequences()), atol=1e-4, rtol=0
    )


def test_equal_sequences_have_the_reward_of_each(
    alone: dict[str, Judged], valued: Callable[..., str], forked_workers: ForkedWorkers
) -> None:
    folder, batch = valued("qwen2", AutoModelForSequenceClassification), sequences()
    rows = torch.arange(len(batch)).repeat_interleave(2)
    trial = ValueTrial(case=Case(folder=folder, settings={"shares_prompts": True}))
    ((found,),) = forked_workers.run("value_probe:judged", [trial], batch.rows(rows))
    rewards, one = found.rewards, alone["of sequences"].rewards
    assert rewards is not None
    assert one is not None
    torch.testing.assert_close(rewards.rewards_B, one.rewards_B[rows], atol=2e-5, rtol=0)


def test_packs_that_are_read_after_their_ends_keep_to_the_budget(
    alone: dict[str, Judged], valued: Callable[..., str], forked_workers: ForkedWorkers
) -> None:
    folder, batch = valued("qwen2", AutoModelForSequenceClassification), sequences()
    rows = torch.arange(len(batch)).repeat_interleave(4)
    case = Case(folder=folder, settings={"shares_prompts": True})
    budget = MicroBatching(sequences=1, tokens=2 * max(LENGTHS))
    asked = (case, batch.rows(rows), budget)
    ((rewards_B, sizes),) = forked_workers.run("value_probe:scored_packs", *asked)
    # No token is shared.
    assert sum(sizes) == 4 * sum(LENGTHS)
    assert max(sizes) <= 2 * max(LENGTHS)
    one = alone["of sequences"].rewards
    assert one is not None
    torch.testing.assert_close(rewards_B, one.rewards_B[rows], atol=2e-5, rtol=0)


def test_an_exported_critic_is_a_token_classifier_with_the_weights_of_the_ranks(
    cases: list[tuple[str, Case]], two_ranks: tuple[list[list[Judged]], Path]
) -> None:
    found, exports = two_ranks
    model = loaded(exports / "trained")
    assert model.config.architectures == ["Qwen3ForTokenClassification"]
    case = cases[0][1]
    ranks = [reply.weights for reply in found[0]]
    whole = assembled(case.folder, case.layout, ranks, head="value")
    assert whole.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, whole[name]), name


def test_a_critic_of_a_causal_language_model_draws_the_same_head_on_every_rank(
    two_ranks: tuple[list[list[Judged]], Path],
) -> None:
    (one, other), (first_stage, last_stage) = two_ranks[0][-2:]
    assert one.head is not None
    assert one.head.shape == (1, 128)
    # 128 draws of deviation 129 ** -0.5 = 0.088: theirs is within a fifth of it.
    assert one.head.std().item() == pytest.approx(0.088, rel=0.2)
    assert other.head is not None
    assert last_stage.head is not None
    assert torch.equal(one.head, other.head)
    assert torch.equal(one.head, last_stage.head)
    assert first_stage.head is None


def test_a_critic_with_a_drawn_head_is_exported_as_what_it_says(
    two_ranks: tuple[list[list[Judged]], Path],
) -> None:
    found, exports = two_ranks
    values = found[-1][1].values
    assert values is not None
    with torch.no_grad():
        expected_BT = plain_values(loaded(exports / "drawn"), sequences())
    # As above.
    torch.testing.assert_close(values.values_BT, expected_BT, atol=1e-4, rtol=0)


def loaded(folder: Path) -> Any:
    """Load an export by transformers, which must find every weight and no other."""
    model, info = AutoModelForTokenClassification.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    return model


def test_a_reward_model_without_a_head_is_refused(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = str(random_model_of("qwen2"))
    (reason,) = forked_workers.run("value_probe:refusal", Case(folder=folder))
    assert reason == (
        f"{folder}: no tensor score.weight; a reward model needs this head, and a causal "
        "language model lacks it"
    )
