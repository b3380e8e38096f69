"""Training on preferences on real workers, against a loop of Hugging Face's model.

The formulas are written out here as they are published. Shapes: B answers, T positions, P pairs.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from answer_loops import FIVE_STEPS, is_the_same_from_step_2, learned, usual_updates
from forked_workers import ForkedWorkers
from nightly import at_night_but
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, PreTrainedModel

from mindrl.batch.prompts import Demonstration, LabelledAnswer, PreferencePair, Prompt
from mindrl.config.run import RunConfig

pytestmark = pytest.mark.distributed

STEPS, ROWS, BETA, SMOOTHING = 5, 4, 0.3, 0.1
GOOD, BAD = 1.5, 0.5
KEYS = {
    "preference_config.beta": BETA,
    "rl_config.mini_batch_size": ROWS,
    "megatron_training.global_batch_size": ROWS,
    # A pair's answers are in two micro-batches.
    "actor_config.micro_batch_size": 4,
    **FIVE_STEPS,
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "sigmoid": {},
    "smoothed": {"preference_config.label_smoothing": SMOOTHING},
    "sigmoid_norm": {"preference_config.loss": "sigmoid_norm"},
    "ipo": {"preference_config.loss": "ipo"},
    "hinge": {"preference_config.loss": "hinge"},
    "reference free": {"preference_config.reference_free": True},
    "kto": {
        "preference_config.loss": "kto",
        "preference_config.desirable_weight": GOOD,
        "preference_config.undesirable_weight": BAD,
    },
}
TWO = {"rl_config.actor_resource.num_npus": 2}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "megatron": {},
    "by tokens": {"rl_config.use_dynamic_bsz": True, "rl_config.max_packing_token_size": 64},
    "archon": {"actor_config.backend": "archon:d1"},
    "fsdp DP2": TWO | {"actor_config.backend": "fsdp:d2"},
    "archon TP2": TWO | {"actor_config.backend": "archon:t2"},
    "TP2": TWO | {"actor_config.tensor_model_parallel_size": 2},
    "PP2": TWO | {"actor_config.pipeline_model_parallel_size": 2},
    "CP2": TWO | {"actor_config.context_parallel_size": 2},
    "DP2": TWO,
}
CASES = [*((form, "megatron") for form in FORMS)]
CASES += [(form, way) for form in ("sigmoid", "kto") for way in WAYS if way != "megatron"]
EVERY_CHANGE = (("sigmoid", "by tokens"), ("kto", "megatron"), ("sigmoid", "fsdp DP2"))


def rows_of(form: str, vocabulary: int = 96) -> tuple[Prompt, ...]:
    """Make the rows of five steps, with answers of other lengths to one prompt."""
    generator = torch.Generator().manual_seed(3)

    def drawn(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (), generator=generator))
        return torch.randint(0, vocabulary, (count,), generator=generator).tolist()

    def answer(uid: int, prompt: list[int]) -> dict[str, Any]:
        tokens = drawn(1, 12)
        targets = (False,) * len(prompt) + (True,) * len(tokens)
        common = {"uid": uid, "text": "", "answer": ""}
        return common | {"token_ids": (*prompt, *tokens), "targets": targets}

    def row(uid: int) -> Prompt:
        prompt = drawn(3, 9)
        if form == "kto":
            return LabelledAnswer(**answer(uid, prompt), is_desirable=uid % 3 != 1)
        chosen, rejected = (Demonstration(**answer(uid, prompt)) for _ in range(2))
        longer = max(chosen.token_ids, rejected.token_ids, key=len)
        common: dict[str, Any] = {"uid": uid, "text": "", "answer": "", "token_ids": longer}
        return PreferencePair(**common, chosen=chosen, rejected=rejected)

    return tuple(row(uid) for uid in range(STEPS * ROWS))


def logprob(model: PreTrainedModel, token_ids: tuple[int, ...], start: int) -> Tensor:
    """Return the log-prob of the tokens from `start`, computed without padding."""
    tokens_T = torch.tensor(token_ids)
    logprobs_TV = model(tokens_T[None]).logits[0, :-1].log_softmax(dim=-1)
    return logprobs_TV.gather(1, tokens_T[1:, None]).squeeze(1)[start - 1 :].double().sum()


def ratio(policy: PreTrainedModel, reference: PreTrainedModel | None, row: Demonstration) -> Tensor:
    """Return the log-prob of an answer less that of the reference, if there is one."""
    return _ratio(policy, reference, row.token_ids, row.targets.index(True))


def _ratio(
    policy: PreTrainedModel,
    reference: PreTrainedModel | None,
    token_ids: tuple[int, ...],
    start: int,
) -> Tensor:
    found = logprob(policy, token_ids, start)
    if reference is None:
        return found
    with torch.no_grad():
        theirs = logprob(reference, token_ids, start)
    return found - theirs


def pair_loss(form: str, margin: Tensor, lengths: tuple[int, int], ratios: list[Tensor]) -> Tensor:
    """Return the loss of one pair."""
    by_token = ratios[0] / lengths[0] - ratios[1] / lengths[1]
    match form:
        case "ipo":
            return (by_token - 1 / (2 * BETA)) ** 2
        case "sigmoid_norm":
            return -logsigmoid(BETA * by_token)
        case "hinge":
            return torch.relu(1 - BETA * margin)
        case "smoothed":
            right, wrong = logsigmoid(BETA * margin), logsigmoid(-BETA * margin)
            return -(1 - SMOOTHING) * right - SMOOTHING * wrong
    return -logsigmoid(BETA * margin)


def loss_of_pairs(
    form: str, policy: PreTrainedModel, reference: PreTrainedModel | None, rows: tuple[Prompt, ...]
) -> Tensor:
    """Return the mean loss of pairs."""
    losses = []
    for row in rows:
        assert isinstance(row, PreferencePair)
        ratios = [ratio(policy, reference, each) for each in (row.chosen, row.rejected)]
        lengths = sum(row.chosen.targets), sum(row.rejected.targets)
        losses.append(pair_loss(form, ratios[0] - ratios[1], lengths, ratios))
    return torch.stack(losses).mean()


def loss_of_labels(
    policy: PreTrainedModel, reference: PreTrainedModel | None, rows: tuple[Prompt, ...]
) -> Tensor:
    """Return the mean loss of KTO; its reference point comes from prompts with others' answers."""
    shown = [row for row in rows if isinstance(row, LabelledAnswer)]
    starts = [row.targets.index(True) for row in shown]
    answers = [row.token_ids[start:] for row, start in zip(shown, starts, strict=True)]
    with torch.no_grad():
        others = [
            _ratio(policy, reference, row.token_ids[:start] + answers[at - 1], start)
            for at, (row, start) in enumerate(zip(shown, starts, strict=True))
        ]
        point = torch.stack(others).mean().clamp(min=0)
    losses = []
    for row in shown:
        gain = ratio(policy, reference, row) - point
        sign, weight = (1, GOOD) if row.is_desirable else (-1, BAD)
        losses.append(weight * (1 - torch.sigmoid(BETA * sign * gain)))
    return torch.stack(losses).mean()


def of_hugging_face(form: str, folder: Path) -> list[tuple[float, float]]:
    """Return loss and gradient norm of each update of the usual loop."""
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2)
    )
    frozen, rows = None if form == "reference free" else reference, rows_of(form)
    loss_of = loss_of_labels if form == "kto" else partial(loss_of_pairs, form)
    steps = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
    return usual_updates(policy, (partial(loss_of, policy, frozen, here) for here in steps))


@pytest.mark.parametrize(("form", "way"), at_night_but(EVERY_CHANGE, CASES))
def test_five_updates_are_those_of_a_hugging_face_loop_and_the_same_from_a_checkpoint(
    form: str,
    way: str,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    model, file = random_model(False), tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    given = KEYS | FORMS[form] | WAYS[way] | {"megatron_training.data_path": str(file)}
    config, root = run_config(model, given), tmp_path / "run"
    root.mkdir()
    ours = learned(rows_of(form), root, config, forked_workers)
    theirs = of_hugging_face(form, model)
    # A margin is a difference of four sums of float32, in another order. Computed in float64, the
    # losses of Hugging Face's loop differ by up to 4.1e-6 of the first loss.
    atol = 5e-6 * theirs[0][0]
    for step, (loss, norm) in zip(ours, theirs, strict=True):
        assert step["preference/loss"] == pytest.approx(loss, abs=atol)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=5e-6)
    is_the_same_from_step_2(rows_of(form), root, config, forked_workers, ours)


@pytest.mark.parametrize("keys", [{}, {"actor_config.lora.r": 4}], ids=["whole", "LoRA"])
def test_a_kept_reference_gives_the_bits_of_one_that_each_update_reads(
    keys: Mapping[str, Any],
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    file, rows = tmp_path / "rows.jsonl", rows_of("sigmoid")[: 2 * ROWS]
    file.write_text("{}\n")
    # The second epoch of two steps. Adapters change the policy, and their base is the reference.
    own = {"megatron_training.train_iters": 4, "megatron_training.save_interval": 0}
    given = KEYS | keys | own | {"megatron_training.data_path": str(file)}
    found = {}
    kept = str(tmp_path / "reference.npz")
    for name, reference in {"read": None, "kept": kept, "kept before": kept}.items():
        root = tmp_path / name
        root.mkdir()
        path = {"preference_config.reference_file": reference}
        config = run_config(random_model(False), given | path)
        found[name] = learned(rows, root, config, forked_workers)
        lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
        seconds = ["seconds/ref_log_prob" in each for each in lines if "seconds/step" in each]
        assert seconds == [reference is None] * 4
    assert found["kept"] == found["kept before"] == found["read"]
    margins = [step["preference/margin"] for step in found["read"]]
    assert margins[0] == pytest.approx(0.0, abs=1e-4)
    assert margins[-1] > 0.01
