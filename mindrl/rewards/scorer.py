"""Score responses in processes of their own, within a time limit for each response.

The caller's end of the reward service: start it, ask it, end it.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Self

from mindrl.batch.prompts import Prompt
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError, MindrlError, RewardError
from mindrl.observability.terminal import printable
from mindrl.observability.units import quoted
from mindrl.rewards.inputs import Answered, BatchTexts, RewardInputs
from mindrl.rewards.scores import (
    Asked,
    FailureKind,
    Failures,
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

logger = logging.getLogger(__name__)

_ANSWERED = "<think>so it is</think><answer>Answer: \\boxed{%s}</answer>"
START_SECONDS = 300.0
"""For the imports of every reward function, on a slow disk."""
STOP_SECONDS = 5.0
GUARD_SECONDS = 10.0
"""For the guard to kill what is below it; beyond what it takes itself."""

_PROGRAM = """\
import sys
sys.path[:] = sys.argv[3:]
from mindrl.platform.guard import fork_guarded
connection_descriptor, caller_pid = map(int, sys.argv[1:3])
fork_guarded(caller_pid, connection_descriptor)
from mindrl.rewards.service import serve
serve(connection_descriptor)
"""


class RewardService:
    """One running service. Its constructor returns at once; the imports go on over there."""

    def __init__(self, plan: PoolPlan) -> None:
        self._connection, theirs = Pipe()
        paths = [str(Path.cwd()) if path == "" else path for path in sys.path]
        descriptor = theirs.fileno()
        command = [sys.executable, "-c", _PROGRAM, str(descriptor), str(os.getpid()), *paths]
        with theirs:
            # A session of its own, which Ctrl-C does not reach. The guard is this very process.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        self._connection.send(plan)
        self._facts: Ready | None = None

    def ready(self) -> Ready:
        """Wait until all functions are imported; returns what they take and give.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: the service did not start, or ended.
        """
        if self._facts is None:
            with self._told():
                self._facts = self._ready()
        return self._facts

    def score(self, asked: Asked) -> Outcomes:
        """Score the responses of each function.

        Raises:
            ConfigError, RewardError: as `ready`.
        """
        self.ready()
        with self._told():
            self._connection.send(asked)
            outcomes: Outcomes = self._connection.recv()
        return outcomes

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say so where the service has ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            self.kill()
            raise RewardError(
                f"the reward host ended with exit code {self._process.returncode}; "
                "its stderr may say why"
            ) from error

    def stop(self) -> None:
        """Let the service reap its workers, then make sure that nothing is left."""
        with contextlib.suppress(EOFError, OSError):  # the end of the connection: it has left
            self._connection.send(None)
            while self._connection.poll(STOP_SECONDS):
                self._connection.recv()
        self.kill()

    def kill(self) -> None:
        """Let the guard kill all its descendants, and reap it; a second call does nothing."""
        self._process.terminate()
        try:
            self._process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._connection.close()

    def _ready(self) -> Ready:
        if not self._connection.poll(START_SECONDS):
            raise RewardError(
                f"rl_config.verifier_function: the imports took more than {START_SECONDS:.0f} s"
            )
        reply: Ready | MindrlError = self._connection.recv()
        if isinstance(reply, MindrlError):
            raise reply
        return reply


class RewardScorer:
    """Scores batches; a context manager, used by one thread at a time.

    A response that hangs, kills its process or makes a function raise gets that function's
    worst score, is counted and logged, and costs no other anything.
    """

    def __init__(
        self,
        rl: RLConfig,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        inputs: RewardInputs | None = None,
    ) -> None:
        """Take the functions and their limits; no process starts before `warm_up` or `score`.

        `weights` are those of the functions by `data_source`, as `RunConfig.reward_weights`; None
        takes those of the section. Without `inputs` rows have no columns.
        """
        own = dict(zip(rl.verifier_function, rl.verifier_weight, strict=True))
        self._weights = weights or {"": own}
        functions = {name: None for each in self._weights.values() for name in each}
        own_kwargs = dict(zip(rl.verifier_function, rl.verifier_kwargs, strict=False))
        inputs = inputs or RewardInputs(kwargs=own_kwargs)
        self._plan = PoolPlan(
            rewards=tuple(inputs.named(name) for name in functions),
            timeout_seconds=rl.verifier_timeout,
            processes=rl.verifier_parallel,
            prints=inputs.prints,
        )
        self._service: RewardService | None = None
        self._logged: set[tuple[str, FailureKind]] = set()
        self._worst = {source: WorstScores(each) for source, each in self._weights.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def warm_up(self) -> RewardService:
        """Start the processes and their imports, where there are none, and return at once."""
        self._service = self._service or RewardService(self._plan)
        return self._service

    def score(
        self,
        responses: Sequence[str],
        answers: Sequence[str],
        sources: Sequence[str] = (),
        answered: Answered | None = None,
    ) -> Scores:
        """Score each response against the right answer, by the functions of its source.

        One that has no functions of its own, or no source, has those of the empty source.
        `answered` is what functions may take besides.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: no responses, an answer too few or too many, or the service
                is lost; never for what a response holds.
        """
        if len(responses) != len(answers) or not responses:
            raise RewardError(
                f"{len(responses)} responses and {len(answers)} references; "
                "need one reference for each of at least 1 response"
            )
        service, rated = self.warm_up(), self._rated(sources or ("",) * len(responses))
        texts, places = BatchTexts(responses, answers, answered), _places(rated, self._weights)
        try:
            ready = service.ready()
            outcomes = service.score(
                {name: texts.rows(rows, ready.fields[name]) for name, rows in places.items()}
            )
        except BaseException:  # Ctrl-C too: a late reply must not answer the next request
            service.kill()
            self._service = None
            raise
        failures = tuple(
            replace(each, response=places[each.function][each.response])
            for each in failures_of(outcomes)
        )
        self._log(failures, responses)
        by_row = {
            name: dict(zip(rows, outcomes[name], strict=True)) for name, rows in places.items()
        }
        rewards, components = self._weighed(rated, by_row, ready.ranges)
        return Scores(
            rewards=rewards,
            components=components,
            ranges=ready.ranges,
            failures=failures,
            sources=tuple(sources) if any(sources) else (),
            judges={source: next(iter(each)) for source, each in self._weights.items() if each},
        )

    def _rated(self, sources: Sequence[str]) -> dict[str, list[int]]:
        """Return the rows by the source whose functions rate them."""
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
        """Return the rewards, and the scores that they are sums of, in the order of the rows."""
        count = sum(map(len, rated.values()))
        rewards: list[float] = [0.0] * count
        parts: dict[str, list[float | None]] = {name: [None] * count for name in by_row}
        for source, rows in rated.items():
            weights = self._weights[source]
            own = {name: tuple(by_row[name][row] for row in rows) for name in weights}
            filled = self._worst[source].filled(own, ranges)
            for place, row in enumerate(rows):
                given = {name: filled[name][place] for name in weights}
                scores = [(name, each) for name, each in given.items() if each is not None]
                rewards[row] = sum(weights[name] * score for name, score in scores)
                for name, score in scores:
                    parts[name][row] = score
        return tuple(rewards), {name: tuple(part) for name, part in parts.items()}

    def close(self) -> None:
        """End every process that was started; a later call starts new ones."""
        if service := self._service:
            self._service = None
            service.stop()

    def abort(self) -> None:
        """Kill the processes: a `score` that another thread waits for raises a RewardError."""
        if service := self._service:
            self._service = None
            service.kill()

    def _log(self, failures: Sequence[Failures], responses: Sequence[str]) -> None:
        """Log the first failure of each function and kind; where it is new, with its calls."""
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


def _places(
    rated: Mapping[str, Sequence[int]], weights: Mapping[str, Mapping[str, float]]
) -> dict[str, list[int]]:
    """Return the rows that each function is asked of."""
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
) -> None:
    """Let each function of the user's score the right answer to each prompt, and an empty one.

    The calls are those of a run, in a process that can be killed. `field` is that of the
    configuration, for errors, `seconds` those for one answer.

    Raises:
        ConfigError: A function returns something that is no finite number, or fails for both.
        RewardError: The process that calls them is lost.
    """
    own = tuple(function for function in functions if ":" in function)
    if not own:
        return
    responses = [text for prompt in prompts for text in (_ANSWERED % prompt.answer, "")]
    asked = [prompt for prompt in prompts for _ in range(2)]
    plan = PoolPlan(rewards=tuple(map(inputs.named, own)), timeout_seconds=seconds, processes=1)
    service, rows = RewardService(plan), range(len(responses))
    answered = Answered(
        prompts=asked,
        groups=[row // 2 for row in rows],
        token_ids=[((0,), ())[row % 2] for row in rows],
    )
    texts = BatchTexts(responses, [prompt.answer for prompt in asked], answered)
    try:
        fields = service.ready().fields
        outcomes = service.score({name: texts.rows(rows, fields[name]) for name in own})
    finally:
        service.kill()
    if found := [*_refusals(outcomes, responses)]:
        first = {(each.function, each.kind): text for each, text in reversed(found)}
        lines = dict.fromkeys(first[each.function, each.kind] for each, _ in found)
        raise ConfigError("\n".join(f"{field}={line}" for line in lines))


def _refusals(outcomes: Outcomes, responses: Sequence[str]) -> Iterator[tuple[Failures, str]]:
    """Yield what must not happen to the two responses to a prompt, with its words."""
    for first in range(0, len(responses), 2):
        of_prompt = {name: column[first : first + 2] for name, column in outcomes.items()}
        failures = failures_of(of_prompt)
        hopeless = without_any_score(failures, dict.fromkeys(outcomes, 2))
        for each in failures:
            if each.kind == "value" or each.function in {none.function for none in hopeless}:
                response = quoted(responses[first + each.response])
                text = f"{each.function!r} fails in a trial call: {each.kind}: {each.first.detail}"
                yield each, f"{text}; the response was {response}"
