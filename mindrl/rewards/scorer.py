"""Score responses in separate processes, with a time limit per response."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Self

from mindrl.batch.prompts import Prompt
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError, RewardError
from mindrl.observability.terminal import note, printable
from mindrl.observability.units import quoted
from mindrl.platform.device import usable_cores
from mindrl.rewards.host import HostLostError, RewardService
from mindrl.rewards.inputs import Answered, BatchTexts, RewardInputs
from mindrl.rewards.scores import (
    Failure,
    FailureKind,
    Failures,
    Graded,
    Outcome,
    Outcomes,
    PoolPlan,
    Ranges,
    Ready,
    Scores,
    WorstScores,
    failures_of,
    without_any_score,
)
from mindrl.rewards.trial import Remark, remarks

logger = logging.getLogger(__name__)

_ANSWERED = "<think>so it is</think><answer>Answer: \\boxed{%s}</answer>"
_HOST_TRIES = 3
"""Maximum number of services that a batch is sent to, if they are killed."""
_MOST_PROCESSES = 16
"""Default maximum: processes share a chunk of responses, and a step has hundreds."""


def reward_processes(rl: RLConfig, cores: int) -> int:
    """Return the number of processes: as configured, else the cores that a node's workers leave."""
    if rl.verifier_parallel is not None:
        return rl.verifier_parallel
    workers = min(rl.actor_resource.num_npus, rl.actor_resource.npus_per_node)
    return max(1, min(_MOST_PROCESSES, cores - workers))


class RewardScorer:
    """Scores batches; a context manager. Threads wait for each other.

    A response that hangs, kills its process or makes a function raise gets that function's worst
    score, and is counted and logged; others are not affected.
    """

    def __init__(
        self,
        rl: RLConfig,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        inputs: RewardInputs | None = None,
    ) -> None:
        """Set the functions and their limits; no process starts before `warm_up` or `score`.

        `weights` are those of the functions by `data_source`, as in `RunConfig.reward_weights`;
        None uses those of `rl`. Without `inputs` rows have no columns.
        """
        own = dict(zip(rl.verifier_function, rl.verifier_weight, strict=True))
        self._weights = weights or {"": own}
        functions = {name: None for each in self._weights.values() for name in each}
        own_kwargs = dict(zip(rl.verifier_function, rl.verifier_kwargs, strict=False))
        inputs = inputs or RewardInputs(kwargs=own_kwargs)
        self._plan = PoolPlan(
            rewards=tuple(inputs.named(name) for name in functions),
            timeout_seconds=rl.verifier_timeout,
            processes=reward_processes(rl, usable_cores()),
            prints=inputs.prints,
        )
        self._service: RewardService | None = None
        self._turn = Lock()
        self._logged: set[tuple[str, FailureKind]] = set()
        self._worst = {source: WorstScores(each) for source, each in self._weights.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def warm_up(self) -> RewardService:
        """Start the processes and their imports, unless they exist, and return immediately."""
        self._service = self._service or RewardService(self._plan)
        return self._service

    def score(
        self,
        responses: Sequence[str],
        answers: Sequence[str],
        sources: Sequence[str] = (),
        answered: Answered | None = None,
    ) -> Scores:
        """Score each response against its reference with the functions of its source.

        A response whose source has no functions, or without a source, uses the functions of the
        empty source. `answered` is further input of functions.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: no responses, a different number of answers, or the service is lost; never
                because of a response's content.
        """
        return self.score_parts([len(responses)], responses, answers, sources, answered)[0]

    def score_parts(
        self,
        lengths: Sequence[int],
        responses: Sequence[str],
        answers: Sequence[str],
        sources: Sequence[str] = (),
        answered: Answered | None = None,
    ) -> list[Scores]:
        """Score batches of these lengths in one call of the functions; arguments as in `score`."""
        if len(responses) != len(answers) or not responses:
            raise RewardError(
                f"{len(responses)} responses and {len(answers)} references; "
                "need one reference for each of at least 1 response"
            )
        with self._turn:
            rated = self._rated(sources or ("",) * len(responses))
            texts, places = BatchTexts(responses, answers, answered), _places(rated, self._weights)
            ready, outcomes = self._scored(texts, places)
            by_row = {
                name: dict(zip(rows, outcomes[name], strict=True)) for name, rows in places.items()
            }
            self._log(_failures(by_row), responses)
            parts, start = [], 0
            for length in lengths:
                part = range(start, start + length)
                own = {
                    name: {row - start: column[row] for row in part if row in column}
                    for name, column in by_row.items()
                    if not column.keys().isdisjoint(part)
                }
                parts.append(self._scores(length, own, sources[start : part.stop], ready.ranges))
                start = part.stop
        return parts

    def _scores(
        self,
        count: int,
        by_row: Mapping[str, Mapping[int, Outcome]],
        sources: Sequence[str],
        ranges: Ranges,
    ) -> Scores:
        """Return the scores of a batch, given each function's results for its rows."""
        rewards, components = self._weighed(self._rated(sources or ("",) * count), by_row, ranges)
        return Scores(
            rewards=rewards,
            components=components,
            ranges=ranges,
            failures=_failures(by_row),
            sources=tuple(sources) if any(sources) else (),
            judges={source: next(iter(each)) for source, each in self._weights.items() if each},
            accuracies={
                name: tuple(accuracies.get(row) for row in range(count))
                for name, outcomes in by_row.items()
                if (accuracies := _accuracies(outcomes))
            },
        )

    def _scored(
        self, texts: BatchTexts, places: Mapping[str, Sequence[int]]
    ) -> tuple[Ready, Outcomes]:
        """Score the responses; restart the service if it is killed meanwhile."""
        for tries_left in reversed(range(_HOST_TRIES)):
            service = self.warm_up()
            try:
                ready = service.ready()
                asked = {
                    name: texts.rows(rows, ready.fields[name]) for name, rows in places.items()
                }
                return ready, service.score(asked)
            except HostLostError as error:
                # A thread that calls `abort` removes the service first.
                if self._service is not service or not service.is_up or not tries_left:
                    raise
                self._service = None
                note(f"{error}; restarting it to score the batch again")
            except BaseException:  # Ctrl-C too: a late reply must not answer the next request
                service.kill()
                self._service = None
                raise
        raise AssertionError("the last try returns or raises")

    def _rated(self, sources: Sequence[str]) -> dict[str, list[int]]:
        """Return the rows by the source whose functions score them."""
        rated: dict[str, list[int]] = {}
        for row, source in enumerate(sources):
            rated.setdefault(source if source in self._weights else "", []).append(row)
        return rated

    def _weighed(
        self,
        rated: Mapping[str, Sequence[int]],
        by_row: Mapping[str, Mapping[int, Outcome]],
        ranges: Ranges,
    ) -> tuple[tuple[float, ...], dict[str, tuple[float | None, ...]]]:
        """Return the rewards and their components, in the order of the rows."""
        count = sum(map(len, rated.values()))
        rewards: list[float] = [0.0] * count
        parts: dict[str, list[float | None]] = {name: [None] * count for name in by_row}
        for source, rows in rated.items():
            weights = self._weights[source]
            own = {name: tuple(_plain(by_row[name][row]) for row in rows) for name in weights}
            filled = self._worst[source].filled(own, ranges)
            for place, row in enumerate(rows):
                given = {name: filled[name][place] for name in weights}
                scores = [(name, each) for name, each in given.items() if each is not None]
                rewards[row] = sum(weights[name] * score for name, score in scores)
                for name, score in scores:
                    parts[name][row] = score
        return tuple(rewards), {name: tuple(part) for name, part in parts.items()}

    def state(self) -> dict[str, dict[str, float]]:
        """Return the worst score so far of each function, by source, for a resume."""
        return {source: dict(each.found) for source, each in self._worst.items()}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Continue with these worst scores; an empty state forgets all scores."""
        for source, each in self._worst.items():
            each.found = dict(state.get(source, {}))

    def close(self) -> None:
        """End all processes; a later call starts new ones."""
        if service := self._service:
            self._service = None
            service.stop()

    def abort(self) -> None:
        """Kill the processes: a `score` in another thread then raises RewardError."""
        if service := self._service:
            self._service = None
            service.kill()

    def _log(self, failures: Sequence[Failures], responses: Sequence[str]) -> None:
        """Log the first failure of each function and kind; new ones with their traceback."""
        for each in failures:
            is_new = (each.function, each.kind) not in self._logged
            self._logged.add((each.function, each.kind))
            text = (
                f"{each.function} failed for {each.count} of {len(responses)} responses: "
                f"{each.kind}: {each.first.detail}; the first is response {each.response}: "
                f"{quoted(responses[each.response])}"
            )
            trace = f"\n{printable(each.first.trace)}".rstrip() if is_new else ""
            logger.warning("%s%s", text, trace)


def _plain(outcome: Outcome) -> float | Failure | None:
    return outcome.score if isinstance(outcome, Graded) else outcome


def _accuracies(outcomes: Mapping[int, Outcome]) -> dict[int, float]:
    """Return the accuracy of responses, by row, if the function returns one."""
    return {row: each.accuracy for row, each in outcomes.items() if isinstance(each, Graded)}


def _failures(by_row: Mapping[str, Mapping[int, Outcome]]) -> tuple[Failures, ...]:
    """Return the failures of each function and kind, with rows of the batch."""
    found = failures_of({name: tuple(column.values()) for name, column in by_row.items()})
    return tuple(replace(each, response=[*by_row[each.function]][each.response]) for each in found)


def _places(
    rated: Mapping[str, Sequence[int]], weights: Mapping[str, Mapping[str, float]]
) -> dict[str, list[int]]:
    """Return the rows that each function scores."""
    found: dict[str, list[int]] = {}
    for source, rows in rated.items():
        for name in weights[source]:
            found.setdefault(name, []).extend(rows)
    return {name: sorted(rows) for name, rows in found.items()}


def try_rewards(
    field: str,
    functions: Sequence[str],
    prompts: Sequence[Prompt],
    inputs: RewardInputs,
    *,
    seconds: float,
) -> list[Remark]:
    """Let each of the user's functions score the right answer to each prompt, and an empty one.

    Returns remarks about functions that gave scores. The calls are like those of a run, in a
    process that can be killed. `field` is the configuration key, for errors; `seconds` is the limit
    per answer.

    Raises:
        ConfigError: A function returns no finite number, or fails for both.
        RewardError: The process that calls them is lost.
    """
    own = tuple(function for function in functions if ":" in function)
    if not own:
        return []
    responses = [text for prompt in prompts for text in (_ANSWERED % prompt.answer, "")]
    asked = [prompt for prompt in prompts for _ in range(2)]
    plan = PoolPlan(
        rewards=tuple(map(inputs.named, own)), timeout_seconds=seconds, processes=1, is_trial=True
    )
    service, rows = RewardService(plan), range(len(responses))
    answered = Answered(
        prompts=asked,
        groups=[row // 2 for row in rows],
        token_ids=[((0,), ())[row % 2] for row in rows],
    )
    texts = BatchTexts(responses, [prompt.answer for prompt in asked], answered)
    try:
        facts = service.ready()
        fields = facts.fields
        outcomes = service.score({name: texts.rows(rows, fields[name]) for name in own})
    finally:
        service.kill()
    if found := [*_refusals(outcomes, responses)]:
        first = {(each.function, each.kind): text for each, text in reversed(found)}
        lines = dict.fromkeys(first[each.function, each.kind] for each, _ in found)
        raise ConfigError("\n".join(f"{field}={line}" for line in lines))
    return [*remarks(outcomes, responses, facts)]


def _refusals(outcomes: Outcomes, responses: Sequence[str]) -> Iterator[tuple[Failures, str]]:
    """Yield failures that refuse the run, with their text, for each prompt's two responses."""
    for first in range(0, len(responses), 2):
        of_prompt = {name: column[first : first + 2] for name, column in outcomes.items()}
        failures = failures_of(of_prompt)
        hopeless = without_any_score(failures, dict.fromkeys(outcomes, 2))
        for each in failures:
            if each.kind == "value" or each.function in {none.function for none in hopeless}:
                response = quoted(responses[first + each.response])
                text = f"{each.function!r} fails in a trial call: {each.kind}: {each.first.detail}"
                yield each, f"{text}; the response was {response}"
