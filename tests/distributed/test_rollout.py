"""A real engine inside a process against Hugging Face: greedy, sampled, asleep, and reloaded.

Shapes: T positions, V the vocabulary.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from rollout_messages import Life, Question, Tokens
from torch import Tensor
from transformers import Qwen2ForCausalLM

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.platform.device import PLATFORMS
from mindrl.rollout.engine import Sampling

pytestmark = pytest.mark.distributed

MakeModel = Callable[[bool], Path]
PROMPTS: tuple[Tokens, ...] = ((5, 9, 40), tuple(range(20, 41)), (7, 7, 7, 7), (90, 3), (5, 9, 40))
GREEDY = Sampling(section=SamplingConfig(max_tokens=12), stop_token_ids=(), is_greedy=True)
SAMPLED = Sampling(section=SamplingConfig(temperature=0.7, max_tokens=12), stop_token_ids=())
UNSEEDED = replace(SAMPLED, is_seeded=False)
SEEDS = (11, 12, 13, 14, 15)
STOPS = tuple(range(0, 96, 3))
"""Every third token ends a response."""
LONG: tuple[Tokens, ...] = (tuple(3 + at * at % 91 for at in range(140)),)
"""Longer than a block of the KV cache, 128 tokens on CPU: only whole blocks are kept for others."""
QUESTIONS = {
    "greedy": Question(prompts=PROMPTS, sampling=GREEDY, seeds=SEEDS),
    "long": Question(prompts=LONG, sampling=GREEDY, seeds=SEEDS[:1]),
    "long once more": Question(prompts=LONG, sampling=GREEDY, seeds=SEEDS[:1]),
    "greedy with stops": Question(
        prompts=PROMPTS, sampling=replace(GREEDY, stop_token_ids=STOPS), seeds=SEEDS
    ),
    "sampled": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=SEEDS),
    "sampled backwards": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=SEEDS).only(
        4, 3, 2, 1, 0
    ),
    "sampled alone": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=SEEDS).only(1),
    "unseeded": Question(prompts=PROMPTS, sampling=UNSEEDED, seeds=SEEDS),
    "unseeded again": Question(prompts=PROMPTS, sampling=UNSEEDED, seeds=SEEDS),
    "unseeded later": Question(prompts=PROMPTS, sampling=UNSEEDED, seeds=(21, 12, 13, 14, 15)),
    "other seeds": Question(prompts=PROMPTS, sampling=SAMPLED, seeds=(21, 22, 23, 24, 25)),
    "two most likely": Question(
        prompts=PROMPTS,
        sampling=replace(SAMPLED, section=replace(SAMPLED.section, top_k=2)),
        seeds=SEEDS,
    ),
    "nothing": Question(prompts=(), sampling=SAMPLED, seeds=()),
    # Each leaves one token to draw from.
    "top_p": Question(
        prompts=PROMPTS,
        sampling=replace(SAMPLED, section=replace(SAMPLED.section, top_p=1e-6)),
        seeds=SEEDS,
    ),
    "min_p": Question(
        prompts=PROMPTS,
        sampling=replace(SAMPLED, section=replace(SAMPLED.section, min_p=1.0)),
        seeds=SEEDS,
    ),
    "unseeded twice": Question(prompts=2 * PROMPTS, sampling=UNSEEDED, seeds=2 * SEEDS),
    "unseeded twice again": Question(prompts=2 * PROMPTS, sampling=UNSEEDED, seeds=2 * SEEDS),
    "unseeded twice later": Question(
        prompts=2 * PROMPTS, sampling=UNSEEDED, seeds=(21, *SEEDS[1:], *SEEDS)
    ),
}


@pytest.fixture(scope="module")
def later_models(
    random_model: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], Path]:
    """The same architecture with other weights, as after an update."""

    def make(tied: bool) -> Path:
        model = Qwen2ForCausalLM.from_pretrained(random_model(tied))
        torch.manual_seed(9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * parameter.std() * torch.randn_like(parameter))
        folder = tmp_path_factory.mktemp("later")
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def engine(
    request: pytest.FixtureRequest,
    forked_workers: ForkedWorkers,
    random_model: MakeModel,
    later_models: MakeModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Life, Path, Path]:
    """What one engine said and held, and the folders of its weights."""
    folder, later = random_model(request.param), later_models(request.param)
    folder = _with_positions(folder, 192, tmp_path_factory.mktemp("first"))
    (life,) = forked_workers.run(
        "rollout_probe:life_of_an_engine", str(folder), str(later), list(QUESTIONS.values())
    )
    return life, folder, later


def _with_positions(model: Path, positions: int, folder: Path) -> Path:
    """Copy a model, and let its sequences be longer: its embedding turns by any position."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": positions})
    )
    return folder


def answers(life: Life, name: str) -> Responses:
    found: Responses = life.answers[list(QUESTIONS).index(name)]
    return found


def tokens(responses: Responses) -> list[Tokens]:
    return [tuple(each.tolist()) for each in per_response(responses, responses.token_ids_N)]


def per_response(responses: Responses, column_N: Tensor) -> tuple[Tensor, ...]:
    return column_N.split(responses.lengths_B.tolist())


def logits_behind(model: Qwen2ForCausalLM, prompt: Tokens, response: Tokens) -> Tensor:
    """Return the logits that each token of a response was drawn from."""
    with torch.no_grad():
        logits_TV: Tensor = model(torch.tensor([[*prompt, *response]])).logits[0]
    return logits_TV[len(prompt) - 1 : -1]


def check_greedy(folder: Path, responses: Responses, prompts: tuple[Tokens, ...] = PROMPTS) -> None:
    model = Qwen2ForCausalLM.from_pretrained(folder)
    for prompt, response in zip(prompts, tokens(responses), strict=True):
        best_T = logits_behind(model, prompt, response).argmax(-1)
        assert best_T.tolist() == list(response)


def test_greedy_answers_are_the_most_likely_tokens_of_hugging_face(
    engine: tuple[Life, Path, Path],
) -> None:
    life, folder, _ = engine
    responses = answers(life, "greedy")
    check_greedy(folder, responses)
    assert responses.lengths_B.tolist() == [12] * 5
    assert not responses.finished_B.any()
    assert responses.logprobs_N.tolist() == [0.0] * 60
    assert tokens(responses)[0] == tokens(responses)[4]
    assert len(set(tokens(responses))) == 4


@pytest.mark.nightly
def test_compiled_graphs_compute_with_the_weights_that_arrived_last(
    random_model: MakeModel, later_models: MakeModel, tmp_path: Path
) -> None:
    folder, later = random_model(True), later_models(True)
    # Workers on CPU compile nothing.
    environment = PLATFORMS["cpu"].worker_environment(workers=1, one_machine=True)
    workers = ForkedWorkers(
        tmp_path / "log", environment={**environment, "TORCH_COMPILE_DISABLE": "0"}
    )
    try:
        arguments = (str(folder), str(later), QUESTIONS["greedy"])
        ((graphs, found),) = workers.run("rollout_probe:captured_answers", *arguments)
    finally:
        workers.stop()
    assert graphs > 0
    for weights, responses in zip((folder, later), found, strict=True):
        check_greedy(weights, responses)
    assert tokens(found[0]) != tokens(found[1])


def test_greedy_answers_in_rounds_are_the_same_however_often_they_are_taken_back(
    engine: tuple[Life, Path, Path],
) -> None:
    """Twelve tokens in rounds of five: two breaks."""
    life, _, _ = engine
    whole, taken_back, *_ = life.in_rounds
    assert tokens(whole) == tokens(taken_back) == tokens(answers(life, "greedy"))
    assert not whole.finished_B.any()


def test_sampled_answers_in_rounds_are_those_of_one_call_to_the_bit_also_of_what_comes_later(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, _ = engine
    expected = answers(life, "sampled")
    for found in life.in_rounds[2:4]:
        assert tokens(found) == tokens(expected)
        assert found.logprobs_N.tolist() == expected.logprobs_N.tolist()


def test_weights_that_come_after_a_sleep_are_the_ones_that_answer(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, later = engine
    responses = life.later_answers[list(QUESTIONS).index("greedy")]
    check_greedy(later, responses)
    assert tokens(responses) != tokens(answers(life, "greedy"))


@pytest.mark.parametrize("name", ["long", "long once more"])
def test_a_prefix_is_kept_for_the_weights_that_read_it_and_for_no_others(
    name: str, engine: tuple[Life, Path, Path]
) -> None:
    life, folder, later = engine
    check_greedy(folder, answers(life, name), LONG)
    check_greedy(later, life.later_answers[list(QUESTIONS).index(name)], LONG)


def test_the_time_limit_of_a_collective_reaches_megatrons_groups_and_the_engines(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, _ = engine
    assert life.megatron_timeouts["TENSOR_MODEL_PARALLEL_GROUP"] == 7 * 60
    assert {*life.megatron_timeouts.values()} == {7 * 60}
    assert life.engine_timeouts == {540}


def test_a_stop_token_ends_an_answer_and_belongs_to_it(engine: tuple[Life, Path, Path]) -> None:
    life, _, _ = engine
    whole, cut = answers(life, "greedy"), answers(life, "greedy with stops")
    assert cut.finished_B.any()
    ended = cut.finished_B.tolist()
    for response, longer, finished in zip(tokens(cut), tokens(whole), ended, strict=True):
        stops = [place for place, token in enumerate(longer) if token in STOPS]
        length = stops[0] + 1 if stops else 12
        assert response == longer[:length]
        assert finished == bool(stops)


def test_log_probs_at_temperature_0_7_are_those_of_hugging_face_over_0_7(
    engine: tuple[Life, Path, Path],
) -> None:
    life, folder, _ = engine
    model = Qwen2ForCausalLM.from_pretrained(folder)
    responses = answers(life, "sampled")
    found = per_response(responses, responses.logprobs_N)
    for prompt, response, found_T in zip(PROMPTS, tokens(responses), found, strict=True):
        logits_TV = logits_behind(model, prompt, response)
        all_TV = torch.log_softmax(logits_TV / 0.7, dim=-1)
        expected_T = all_TV.gather(1, torch.tensor(response)[:, None])[:, 0]
        # float32 logits of size 10, divided by 0.7.
        assert found_T.tolist() == pytest.approx(expected_T.tolist(), abs=2e-5)


def test_log_probs_of_a_truncated_distribution_are_those_that_were_drawn_with(
    engine: tuple[Life, Path, Path],
) -> None:
    life, folder, _ = engine
    model = Qwen2ForCausalLM.from_pretrained(folder)
    responses = answers(life, "two most likely")
    found = per_response(responses, responses.logprobs_N)
    for prompt, response, found_T in zip(PROMPTS, tokens(responses), found, strict=True):
        two_T2, ids_T2 = (logits_behind(model, prompt, response) / 0.7).topk(2)
        chosen_T2 = ids_T2 == torch.tensor(response)[:, None]
        assert chosen_T2.any(1).all()
        expected_T = torch.log_softmax(two_T2, dim=-1)[chosen_T2]
        assert found_T.tolist() == pytest.approx(expected_T.tolist(), abs=2e-5)


@pytest.mark.parametrize("cut", ["top_p", "min_p"])
def test_the_least_top_p_and_the_largest_min_p_leave_the_most_likely_token(
    engine: tuple[Life, Path, Path], cut: str
) -> None:
    life, _, _ = engine
    assert tokens(answers(life, cut)) == tokens(answers(life, "greedy"))


def test_a_sequence_depends_on_its_own_seed_and_on_no_other_sequence(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, _ = engine
    sampled = tokens(answers(life, "sampled"))
    assert tokens(answers(life, "sampled backwards")) == sampled[::-1]
    assert tokens(answers(life, "sampled alone")) == [sampled[1]]
    # Equal prompts with different seeds, and the same prompts with other seeds.
    assert sampled[0] != sampled[4]
    others = tokens(answers(life, "other seeds"))
    assert all(one != other for one, other in zip(sampled, others, strict=True))


def test_without_seeds_of_their_own_the_answers_of_a_call_follow_from_its_first_seed(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, _ = engine
    first, again = (tokens(answers(life, name)) for name in ("unseeded", "unseeded again"))
    assert first == again
    # Equal prompts are drawn apart, and another call draws otherwise.
    assert first[0] != first[4]
    assert tokens(answers(life, "unseeded later")) != first


def test_without_seeds_of_their_own_rounds_draw_other_numbers_and_follow_from_the_first_seed(
    engine: tuple[Life, Path, Path],
) -> None:
    first, again, later = map(tokens, engine[0].in_rounds[4:])
    assert first == again
    # The second round has the prompts of the first.
    assert all(one != other for one, other in zip(first[:5], first[5:], strict=True))
    assert all(one != other for one, other in zip(first, later, strict=True))


def test_no_prompts_have_no_answers(engine: tuple[Life, Path, Path]) -> None:
    nothing = answers(engine[0], "nothing")
    assert (len(nothing.token_ids_N), len(nothing.lengths_B)) == (0, 0)


def test_an_engine_that_cannot_answer_all_says_so_and_answers_the_next_question(
    engine: tuple[Life, Path, Path],
) -> None:
    life, _, later = engine
    assert life.refused == {
        "given up": "vLLM completed 4 of 5 prompts",
        "asleep": "the engine received a request while only [] are awake",
        "half awake": "the engine received a request while only ['weights'] are awake",
    }
    check_greedy(later, life.answer_behind)


def test_asleep_the_engine_holds_no_weight_and_no_kv_cache(
    engine: tuple[Life, Path, Path],
) -> None:
    seen = engine[0].device_bytes
    for moment in ("started", "asleep"):
        assert (seen[moment].weights, seen[moment].packed_layers) == (0, 0), moment
        assert (seen[moment].kv_cache, seen[moment].kv_pages) == (0, 0), moment
    # The embedding's 96 x 128 floats; a linear layer is allocated when it is packed.
    assert seen["weights allocated"].weights >= 96 * 128 * 4
    assert seen["weights allocated"].kv_cache == 0
    # 4 MiB, rounded down to whole blocks.
    assert 2 << 20 < seen["awake"].kv_cache <= 4 << 20
    assert seen["awake"].packed_layers > 0
    assert 0 < seen["used"].kv_pages <= seen["used"].kv_cache == seen["awake"].kv_cache


def test_the_engine_leaves_the_random_numbers_of_the_trainer_alone(
    engine: tuple[Life, Path, Path],
) -> None:
    assert engine[0].random_state_kept
    # Also when it drops requests that are taken back.
    assert engine[0].steps_with_own_seeds


def test_a_sequence_that_a_full_cache_takes_back_is_counted_and_answered_all_the_same(
    forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    folder = _with_positions(random_model(True), 192, tmp_path / "model")
    # A block of the cache has 128 tokens: each needs a second one behind its third token.
    prompts = tuple(tuple(3 + (at + first) * at % 91 for at in range(125)) for first in range(4))
    question = Question(prompts=prompts, sampling=GREEDY, seeds=SEEDS[:4])
    ((asked, counts),) = forked_workers.run("rollout_probe:full_cache", str(folder), question)
    alone, together = asked
    assert torch.equal(together.token_ids_N, alone.token_ids_N)
    assert counts[0] == counts[2] == 0
    assert counts[1] >= 1
