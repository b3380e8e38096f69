"""More requests than two engines take at once: what waits follows, and is answered alike."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from forked_workers import ForkedCall, ForkedGroup, ForkedWorkers

from mindrl.batch.prompts import Prompt, sequence_seed
from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engine_rounds import Completed, RoundEnds
from mindrl.trainer.worker_handle import Watched, WorkerHandle

pytestmark = pytest.mark.distributed

ROWS, REQUESTS, ROUND_STEPS, SEED = 2, 20, 3, 1234
"""Two engines of two rows have four requests each at most: twelve of the twenty wait."""
TWO_ENGINES = {
    "rl_config.actor_resource.num_npus": 2,
    "generate_config.max_num_seqs": ROWS,
    "megatron_training.seed": SEED,
}
PROMPTS = [
    Prompt(uid=uid, token_ids=tuple(range(5 + uid, 8 + 2 * uid)), text="", answer="")
    for uid in range(REQUESTS)
]
SAMPLED = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=16),
    # One token in twelve: responses of all lengths.
    stop_token_ids=tuple(range(0, 96, 12)),
)
GREEDY = replace(SAMPLED, is_greedy=True)
Answer = tuple[list[int], list[float], bool]


@dataclass
class Noting:
    """Workers, and how many requests each engine got behind its first, round by round."""

    group: ForkedGroup
    more: list[list[int]] = field(default_factory=list)

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> ForkedCall:
        if method == "advance_sequences":
            self.more.append([len(more) for _, more in arguments])
        return self.group.begin(method, arguments, answering, first=first)


@pytest.fixture(scope="module")
def noted(
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> Iterator[tuple[WorkerHandle, Noting]]:
    """Two engines, and what they were asked."""
    plan = unordered_shardings(run_config(random_model(True), TWO_ENGINES)).ordered.plan
    group = forked_workers.start(plan)
    noting = Noting(group)
    actor = worker_handle(noting, plan)
    assert (actor.engines.replicas, actor.engine_rows) == (2, ROWS)
    yield actor, noting
    group.stop()


def at_once(
    actor: WorkerHandle, sampling: Sampling, watched: Watched | None = None
) -> list[Answer]:
    """Answer all prompts in one call."""
    found = actor.generate_sequences(PROMPTS, sampling, step=1, watched=watched)
    rows = range(REQUESTS)
    tokens = found.response_tokens()[:REQUESTS]
    scores = [found.rollout_logprobs_BT[row][found.response_mask_BT[row]].tolist() for row in rows]
    return [*zip(tokens, scores, found.finished_B.tolist(), strict=True)]


def request(prompt: Prompt, drawn: Sequence[int] = ()) -> Request:
    seed = sequence_seed(SEED, step=1, uid=prompt.uid, sample=0)
    return Request(token_ids=(*prompt.token_ids, *drawn), drawn=len(drawn), seed=seed)


def answers(found: Responses) -> list[Answer]:
    drawn = [(tokens.tolist(), scores.tolist()) for tokens, scores in found.each()]
    return [(*each, bool(ended)) for each, ended in zip(drawn, found.finished_B, strict=True)]


def test_requests_that_waited_for_a_place_are_answered_as_if_all_had_begun_at_once(
    noted: tuple[WorkerHandle, Noting],
) -> None:
    actor, noting = noted
    expected = at_once(actor, SAMPLED)
    lengths = [len(tokens) for tokens, _, _ in expected]
    assert min(lengths) < 4
    assert max(lengths) == 16
    requests = [request(prompt) for prompt in PROMPTS]
    for rows, waiting in ((ROWS, 12), (REQUESTS, 0)):
        noting.more.clear()
        found = replace(actor, engine_rows=rows).generate_until(
            requests, SAMPLED, lambda whole: len(whole) == REQUESTS, rounds=RoundEnds(ROUND_STEPS)
        )
        assert sum(map(sum, noting.more)) == waiting
        assert answers(found) == expected


def test_a_rollout_in_rounds_is_that_of_one_call_and_reports_each_response_once(
    noted: tuple[WorkerHandle, Noting],
) -> None:
    actor, _ = noted
    rounds: list[dict[int, Completed]] = []

    def on_completed(new: Mapping[int, Completed]) -> None:
        rounds.append({**new})

    expected = at_once(actor, SAMPLED)
    assert at_once(actor, SAMPLED, Watched(ROUND_STEPS, on_completed)) == expected
    reported = [(row, each) for new in rounds for row, each in new.items()]
    assert sorted(row for row, _ in reported) == [*range(REQUESTS)]
    for row, (tokens_N, logprobs_N, finished) in reported:
        assert (tokens_N.tolist(), logprobs_N.tolist(), finished) == expected[row]
    assert sum(map(bool, rounds)) > 3


def test_what_a_step_leaves_goes_on_with_what_it_never_began_to_the_same_greedy_answers(
    noted: tuple[WorkerHandle, Noting],
) -> None:
    actor, _ = noted
    expected = [tokens for tokens, _, _ in at_once(actor, GREEDY)]

    def drawn_until(enough: int, requests: Sequence[Request]) -> list[Answer]:
        return answers(
            actor.generate_until(
                requests, GREEDY, lambda whole: len(whole) >= enough, rounds=RoundEnds(ROUND_STEPS)
            )
        )

    found = drawn_until(5, [request(prompt) for prompt in PROMPTS])
    drawn = [tokens for tokens, _, _ in found]
    left = [
        place for place, (tokens, _, ended) in enumerate(found) if not ended and len(tokens) < 16
    ]
    # Some wait to the end of the step, with nothing drawn; others are on their way.
    assert {0} < {len(drawn[place]) for place in left}
    more = drawn_until(len(left), [request(PROMPTS[place], drawn[place]) for place in left])
    for place, (tokens, _, _) in zip(left, more, strict=True):
        drawn[place] += tokens
    assert drawn == expected
