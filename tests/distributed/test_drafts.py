"""An engine with drafts samples from the model's distribution, in fewer steps.

Shapes: T positions, V the vocabulary.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from draft_messages import Drafted
from forked_workers import ForkedWorkers
from rollout_messages import Question, Tokens
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2ForCausalLM

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig, SpeculativeConfig
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import read_description
from mindrl.rollout.engine import Sampling
from mindrl.rollout.planning import rollout_sharding

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

REPEATED: Tokens = (49, 50, 51, 52) * 5
PROMPTS: tuple[Tokens, ...] = (REPEATED, (7, 8) * 6, (5, 9, 40), tuple(range(20, 41)))
SEEDS = (11, 12, 13, 14)
SECTION = SamplingConfig(temperature=0.7, max_tokens=16)
GREEDY = Sampling(section=SECTION, stop_token_ids=(), is_greedy=True)
SAMPLED = replace(GREEDY, is_greedy=False)
CUT = replace(SAMPLED, section=replace(SECTION, top_p=0.9, top_k=20))
"""Draws from the likely tokens alone."""
STOPPED = replace(SAMPLED, stop_token_ids=tuple(range(0, 96, 4)))
QUESTIONS = {
    "greedy": Question(prompts=PROMPTS, sampling=GREEDY, seeds=SEEDS),
    "greedy alone": Question(prompts=PROMPTS, sampling=GREEDY, seeds=SEEDS).only(0),
    "cut": Question(prompts=PROMPTS, sampling=CUT, seeds=SEEDS),
    "stopped": Question(prompts=PROMPTS, sampling=STOPPED, seeds=SEEDS),
    "alone": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=SEEDS).only(1),
    "unseeded": Question(prompts=PROMPTS, sampling=replace(SAMPLED, is_seeded=False), seeds=SEEDS),
    "sampled": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=SEEDS),
}
DRAWS = 3000
EACH_ONCE: Tokens = tuple(range(20, 90))
"""Behind most tokens there is a draft."""
PAIRS = Question(
    prompts=(EACH_ONCE,) * DRAWS,
    sampling=replace(SAMPLED, section=SamplingConfig(temperature=1.0, max_tokens=2)),
    seeds=tuple(range(DRAWS)),
)


@pytest.fixture(scope="module")
def model(random_model: Callable[[bool], Path]) -> Path:
    return random_model(True)


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose most probable tokens are mostly the same."""
    folder = tmp_path_factory.mktemp("draft") / "model"
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for tensor in weights.values():
        tensor.add_(0.05 * tensor.std() * torch.randn(tensor.shape, generator=generator))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=["ngram", "draft_model"])
def config(request: pytest.FixtureRequest, other: Path) -> SpeculativeConfig:
    if request.param == "ngram":
        return SpeculativeConfig(method="ngram", prompt_lookup_min=1)
    return SpeculativeConfig(method="draft_model", model=str(other))


@pytest.fixture(scope="module")
def drafted(forked_workers: ForkedWorkers, model: Path, config: SpeculativeConfig) -> Drafted:
    return run(forked_workers, model, config)


@pytest.fixture(scope="module")
def plain(forked_workers: ForkedWorkers, model: Path) -> Drafted:
    return run(forked_workers, model, SpeculativeConfig())


def run(workers: ForkedWorkers, model: Path, config: SpeculativeConfig) -> Drafted:
    pairs = PAIRS.only(*range(DRAWS if config.method else 1))
    arguments = (str(model), [*QUESTIONS.values()], pairs, config)
    found: list[Drafted] = workers.run("draft_probe:answers_of", *arguments, ranks=1)
    return found[0]


def answer(of: Drafted, name: str) -> Responses:
    return of.answers[[*QUESTIONS].index(name)]


def counts(of: Drafted, name: str) -> dict[str, float]:
    return of.counts[[*QUESTIONS].index(name)]


def exact_logprobs(model: Path, ids: Tokens, sampling: Sampling) -> Tensor:
    """Return the log-probs that tokens are drawn with, by transformers."""
    with torch.no_grad():
        found = Qwen2ForCausalLM.from_pretrained(model)(torch.tensor([ids]))
    logits_TV = found.logits[0] / sampling.section.temperature
    if sampling.section.top_k > 0:
        least_T1 = logits_TV.topk(sampling.section.top_k).values[:, -1:]
        logits_TV = logits_TV.masked_fill(logits_TV < least_T1, -torch.inf)
    ranked_TV, order_TV = logits_TV.softmax(-1).sort(descending=True)
    is_cut_TV = ranked_TV.cumsum(-1) - ranked_TV > sampling.section.top_p
    is_cut_TV = torch.zeros_like(is_cut_TV).scatter(-1, order_TV, is_cut_TV)
    return logits_TV.masked_fill(is_cut_TV, -torch.inf).log_softmax(-1)


def test_the_engine_has_the_weights_that_are_planned(
    drafted: Drafted, model: Path, config: SpeculativeConfig
) -> None:
    folders = [str(model), *filter(None, [config.model])]
    planned = [
        rollout_sharding(read_description(each), RolloutLayout(), dtype="float32", int8=False)
        for each in folders
    ]
    assert drafted.weight_bytes == sum(each.held_bytes()[0] for each in planned)


@pytest.mark.parametrize("name", ["cut", "stopped", "alone", "unseeded", "sampled"])
def test_logprobs_are_those_of_transformers_at_each_drawn_token(
    name: str, drafted: Drafted, model: Path
) -> None:
    question = QUESTIONS[name]
    for prompt, (ids_N, logprobs_N) in zip(
        question.prompts, answer(drafted, name).each(), strict=True
    ):
        ids = (*prompt, *ids_N.tolist())
        exact = exact_logprobs(model, ids, question.sampling)[len(prompt) - 1 : -1]
        expected = exact.gather(-1, ids_N.long()[:, None])[:, 0]
        torch.testing.assert_close(logprobs_N, expected, rtol=0, atol=1e-5)


def test_greedy_answers_are_those_without_drafts_in_fewer_steps(
    drafted: Drafted, plain: Drafted
) -> None:
    assert torch.equal(answer(drafted, "greedy").token_ids_N, answer(plain, "greedy").token_ids_N)
    found = counts(drafted, "greedy")
    assert 0 < found["throughput/accepted_tokens"] <= found["throughput/drafted_tokens"]
    alone = counts(drafted, "greedy alone")
    # Each accepted token of a sequence alone saves a step.
    steps = SECTION.max_tokens - alone["throughput/accepted_tokens"]
    assert alone["throughput/engine_steps"] == steps < SECTION.max_tokens
    assert "throughput/drafted_tokens" not in counts(plain, "greedy")


def test_a_model_that_drafts_has_the_weights_of_its_folder(
    drafted: Drafted, config: SpeculativeConfig
) -> None:
    found = counts(drafted, "greedy")
    share = found["throughput/accepted_tokens"] / found["throughput/drafted_tokens"]
    assert share > 0.5 or config.method == "ngram"


def test_a_stop_token_within_a_draft_ends_a_response(drafted: Drafted) -> None:
    found = answer(drafted, "stopped")
    assert found.finished_B.any()
    for (ids_N, _), is_finished in zip(found.each(), found.finished_B.tolist(), strict=True):
        stops = [token in STOPPED.stop_token_ids for token in ids_N.tolist()]
        assert stops.index(True) == len(stops) - 1 if is_finished else not any(stops)


def test_a_seed_gives_one_response_alone_in_a_batch_and_in_rounds(drafted: Drafted) -> None:
    together = answer(drafted, "sampled")
    (ids_N, _), *_ = answer(drafted, "alone").each()
    assert torch.equal(ids_N, together.each()[1][0])
    assert torch.equal(drafted.in_rounds.token_ids_N, together.token_ids_N)


def test_pairs_of_tokens_are_as_frequent_as_the_model_says(drafted: Drafted, model: Path) -> None:
    found = Counter(tuple(ids_N.tolist()) for ids_N, _ in drafted.pairs.each())
    sampling = PAIRS.sampling
    first_V = exact_logprobs(model, EACH_ONCE, sampling)[-1].exp()
    square, cells, seen, wanted = 0.0, 0, 0, 0.0
    for first in first_V.topk(12).indices.tolist():
        second_V = exact_logprobs(model, (*EACH_ONCE, first), sampling)[-1].exp()
        for second in second_V.topk(6).indices.tolist():
            expected = float(first_V[first] * second_V[second]) * DRAWS
            if expected >= 8:
                square += (found[first, second] - expected) ** 2 / expected
                cells, seen, wanted = cells + 1, seen + found[first, second], wanted + expected
    square += (DRAWS - seen - (DRAWS - wanted)) ** 2 / (DRAWS - wanted)
    assert cells > 5
    assert drafted.pair_counts["throughput/drafted_tokens"] > DRAWS / 2
    assert drafted.pair_counts["throughput/accepted_tokens"] > 0
    # Four deviations of a chi-square with as many degrees of freedom; the seeds are fixed.
    assert square < cells + 4 * (2 * cells) ** 0.5
