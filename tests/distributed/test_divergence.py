"""Distillation by the divergence over a teacher's most probable tokens, on real workers.

Against a loop of Hugging Face's models, with the divergence written out. Shapes: T positions, V
tokens of the vocabulary, K candidates.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from answer_loops import FIVE_STEPS, is_the_same_from_step_2, learned, usual_updates
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_supervised import ROWS, demonstrations
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mindrl.batch.prompts import Demonstration
from mindrl.config.run import RunConfig

pytestmark = pytest.mark.distributed

VOCABULARY, TOP_K, COEF, ANSWER_COEF = 96, 5, 0.5, 0.25
KEYS = {
    "sft_config.answer_coef": ANSWER_COEF,
    "teacher_config.candidates": TOP_K,
    "teacher_config.divergence_coef": COEF,
    "actor_config.micro_batch_size": 2,
    **FIVE_STEPS,
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "reverse": {},
    "forward": {"teacher_config.divergence": "forward"},
    # One rank has 48 of the 96 tokens, and there is no other token.
    "whole vocabulary": {"teacher_config.candidates": VOCABULARY},
}
TWO = {"rl_config.actor_resource.num_npus": 2}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "megatron": {},
    "by tokens": {"rl_config.use_dynamic_bsz": True, "rl_config.max_packing_token_size": 64},
    "archon": {"actor_config.backend": "archon:d1"},
    "TP2": TWO | {"actor_config.tensor_model_parallel_size": 2},
    "TP2, teacher DP2": TWO
    | {"actor_config.backend": "megatron:t2", "teacher_config.backend": "archon:d2"},
    "PP2": TWO | {"actor_config.pipeline_model_parallel_size": 2},
    "CP2": TWO | {"actor_config.context_parallel_size": 2},
    "archon TP2": TWO | {"actor_config.backend": "archon:t2"},
    "fsdp DP2": TWO | {"actor_config.backend": "fsdp:d2"},
}
CASES = [("reverse", way) for way in WAYS]
CASES += [("forward", "megatron"), ("forward", "TP2"), ("whole vocabulary", "TP2")]
EVERY_CHANGE = (("forward", "megatron"), ("reverse", "TP2, teacher DP2"))


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, random_model: Callable[[bool], Path]
) -> tuple[Path, Path]:
    """Return a student, and a teacher with other sizes and a vocabulary that is padded further."""
    torch.manual_seed(11)
    sizes = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
    ends = {"bos_token_id": None, "eos_token_id": 1, "tie_word_embeddings": False}
    config = Qwen2Config(vocab_size=128, initializer_range=0.1, **sizes, **heads, **ends)
    folder = tmp_path_factory.mktemp("larger")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return random_model(False), folder


def logprobs(model: PreTrainedModel, row: Demonstration) -> tuple[Tensor, Tensor]:
    """Return the log-probs before each target token, and the targets, computed without padding."""
    tokens_T, targets_T = torch.tensor(row.token_ids), torch.tensor(row.targets)
    all_TV = model(tokens_T[None]).logits[0, :-1].log_softmax(dim=-1)
    return all_TV[targets_T[1:]], tokens_T[1:][targets_T[1:]]


def kl(first_TK: Tensor, other_TK: Tensor) -> Tensor:
    """Return KL(first || other) of each row, over its columns and all other tokens as one."""
    rest_T, other_rest_T = (1 - each.exp().sum(dim=-1) for each in (first_TK, other_TK))
    among_T = (first_TK.exp() * (first_TK - other_TK)).sum(dim=-1)
    # Without other tokens there is no rest but rounding.
    is_rest_T = (rest_T > 1e-6) & (other_rest_T > 1e-6)
    ratio_T = torch.where(is_rest_T, rest_T, 1.0) / torch.where(is_rest_T, other_rest_T, 1.0)
    return among_T + torch.where(is_rest_T, rest_T, 0.0) * ratio_T.log()


def mean_losses(
    form: str, student: PreTrainedModel, teacher: PreTrainedModel, rows: list[Demonstration]
) -> tuple[Tensor, Tensor]:
    """Return the mean negative log-prob and the mean divergence of the target tokens of rows."""
    answers, divergences = [], []
    for row in rows:
        ours_TV, targets_T = logprobs(student, row)
        with torch.no_grad():
            theirs_TV, _ = logprobs(teacher, row)
        count = VOCABULARY if form == "whole vocabulary" else TOP_K
        theirs_TK, ids_TK = theirs_TV[:, :VOCABULARY].topk(count, dim=-1)
        ours_TK = ours_TV.gather(1, ids_TK)
        pair = (theirs_TK, ours_TK) if form == "forward" else (ours_TK, theirs_TK)
        answers.append(-ours_TV.gather(1, targets_T[:, None])[:, 0])
        divergences.append(kl(*pair))
    return torch.cat(answers).mean(), torch.cat(divergences).mean()


@pytest.mark.parametrize(("form", "way"), at_night_but(EVERY_CHANGE, CASES))
def test_five_updates_are_those_of_a_hugging_face_loop_and_the_same_from_a_checkpoint(
    form: str,
    way: str,
    models: tuple[Path, Path],
    forked_workers: ForkedWorkers,
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    (folder, larger), file = models, tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    given = KEYS | {"teacher_config.load": str(larger), "megatron_training.data_path": str(file)}
    config, root = run_config(folder, given | FORMS[form] | WAYS[way]), tmp_path / "run"
    root.mkdir()
    rows = demonstrations(VOCABULARY)
    ours = learned(rows, root, config, forked_workers)

    student, teacher = (
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (folder, larger)
    )
    found: list[tuple[float, float]] = []

    def loss(here: list[Demonstration]) -> Tensor:
        answer, divergence = mean_losses(form, student, teacher, here)
        found.append((answer.item(), divergence.item()))
        return ANSWER_COEF * answer + COEF * divergence

    steps = [list(rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)]
    updates = usual_updates(student, (partial(loss, here) for here in steps))
    for step, terms, (_, norm) in zip(ours, found, updates, strict=True):
        # Sums of float32 in another order: packed, two micro-batches, two ranks.
        assert step["sft/loss"] == pytest.approx(terms[0], rel=1e-6)
        assert step["update/teacher_divergence"] == pytest.approx(terms[1], rel=2e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=4e-6)
    is_the_same_from_step_2(rows, root, config, forked_workers, ours)
