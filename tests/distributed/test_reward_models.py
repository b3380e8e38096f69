"""Training of reward models on real workers, against a loop of Hugging Face's classifier.

The formulas are written out here as they are published.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from answer_loops import is_the_same_from_step_2, learned, usual_updates
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_preferences import KEYS, ROWS, WAYS, rows_of
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from mindrl.batch.prompts import (
    Demonstration,
    GradedSteps,
    PreferencePair,
    Prompt,
    ScoredAnswer,
)
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.trainer.preference_trainer import answers_of
from mindrl.trainer.supervised_trainer import sequences_of
from mindrl.training.first_weights import random_value_head

pytestmark = pytest.mark.distributed

CENTRE = 0.05
FORMS: Mapping[str, Mapping[str, Any]] = {
    "bradley_terry": {
        "preference_config.loss": "bradley_terry",
        "preference_config.margin_column": "margin",
        "preference_config.center_rewards_coefficient": CENTRE,
    },
    "score": {"preference_config.loss": "score"},
    "steps": {"preference_config.loss": "steps"},
}
CASES = [*((form, way) for form in FORMS for way in WAYS)]
EVERY_CHANGE = (("bradley_terry", "by tokens"), ("score", "fsdp DP2"), ("steps", "by tokens"))


def rows_with_rewards(form: str) -> tuple[Prompt, ...]:
    """Return pairs with margins, answers with scores, or answers with graded steps."""
    if form == "bradley_terry":
        pairs = [row for row in rows_of("sigmoid") if isinstance(row, PreferencePair)]
        return tuple(replace(row, margin=row.uid % 3 / 4) for row in pairs)
    names = [each.name for each in fields(Demonstration)]
    singles = [{name: getattr(row, name) for name in names} for row in rows_of("kto")]
    if form == "steps":
        return tuple(GradedSteps(**row | in_steps(row["targets"])) for row in singles)
    return tuple(ScoredAnswer(**row, score=row["uid"] % 5 / 2 - 1) for row in singles)


def in_steps(targets: Sequence[bool]) -> dict[str, Any]:
    """Return the last tokens of steps of three tokens as targets, and a label of each step."""
    places = [at for at, is_target in enumerate(targets) if is_target]
    ends = {places[-1], *places[2::3]}
    labels = (1.0, 0.0, 0.25, 1.0, 0.5)[: len(ends)]
    return {"targets": tuple(at in ends for at in range(len(targets))), "labels": labels}


def score(model: PreTrainedModel, row: Demonstration, end: int | None = None) -> Tensor:
    """Return the score of an answer, or of its tokens before `end`."""
    return model(torch.tensor(row.token_ids[:end])[None]).logits[0]


def losses_of(model: PreTrainedModel, row: Prompt) -> Tensor:
    """Return the loss of a row, or of each of its steps."""
    if isinstance(row, PreferencePair):
        chosen, rejected = score(model, row.chosen), score(model, row.rejected)
        return -logsigmoid(chosen - rejected - row.margin) + CENTRE * (chosen + rejected) ** 2
    if isinstance(row, GradedSteps):
        ends = [at + 1 for at, is_end in enumerate(row.targets) if is_end]
        odds_S = torch.cat([score(model, row, end) for end in ends])
        labels_S = torch.tensor(row.labels)
        return -labels_S * logsigmoid(odds_S) - (1 - labels_S) * logsigmoid(-odds_S)
    assert isinstance(row, ScoredAnswer)
    return (score(model, row) - row.score) ** 2


def classifier(folder: Path, seed: int) -> PreTrainedModel:
    """Load a language model as a classifier with the random head of a run."""
    # Without a padding token, whose embedding would get no gradient.
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32
    )
    with torch.no_grad():
        model.score.weight.copy_(random_value_head(model.config.hidden_size, seed))
    return model


def of_hugging_face(model: PreTrainedModel, rows: tuple[Prompt, ...]) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each update of the usual loop."""

    def loss(here: tuple[Prompt, ...]) -> Tensor:
        return torch.cat([losses_of(model, row) for row in here]).mean()

    steps = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
    return usual_updates(model, (partial(loss, here) for here in steps))


def by_the_role(config: RunConfig, rows: list[Demonstration], workers: ForkedWorkers) -> Tensor:
    """Return the scores of a run's reward model."""
    plan = unordered_shardings(config).ordered.plan
    group = workers.start(plan)
    try:
        return worker_handle(group, plan).compute_rewards(sequences_of(rows)).rewards_B
    finally:
        group.stop()


@pytest.mark.parametrize(("form", "way"), at_night_but(EVERY_CHANGE, CASES))
def test_five_updates_are_those_of_a_classifier_which_loads_the_export(
    form: str,
    way: str,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    folder, file, rows = random_model(False), tmp_path / "rows.jsonl", rows_with_rewards(form)
    file.write_text("{}\n")
    given = KEYS | FORMS[form] | WAYS[way] | {"megatron_training.data_path": str(file)}
    del given["preference_config.beta"]
    config, root = run_config(folder, given), tmp_path / "run"
    root.mkdir()
    ours = learned(rows, root, config, forked_workers)
    model = classifier(folder, config.megatron_training.seed)
    # A squared error has twice the relative difference of the error.
    root_of = 0.5 if form == "score" else 1.0
    for step, (loss, norm) in zip(ours, of_hugging_face(model, rows), strict=True):
        # Sums of float32 in another order; a norm grows by the differences of the steps before it.
        assert step["preference/loss"] ** root_of == pytest.approx(loss**root_of, rel=2e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=5e-6)
    exported = AutoModelForSequenceClassification.from_pretrained(root / "model")
    assert exported.config.num_labels == 1
    for name, weight in exported.named_parameters():
        torch.testing.assert_close(weight, model.get_parameter(name), rtol=1e-5, atol=1e-5)
    shown = answers_of(rows[:ROWS])
    with torch.no_grad():
        theirs_B = torch.cat([score(exported, row) for row in shown])
    scoring = run_config(folder, {"reward_config.load": str(root / "model")})
    ours_B = by_the_role(scoring, shown, forked_workers)
    torch.testing.assert_close(ours_B, theirs_B, rtol=0, atol=1e-5)
    is_the_same_from_step_2(rows, root, config, forked_workers, ours)
