"""From rollouts to rewards: rules on the host, and a reward model on the devices."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.observability.timing import StageTimer
from mindrl.rewards.scores import Scores
from mindrl.trainer.roles import RewardModel, Scorer

MODEL_PART = "model"
"""Name of the reward model's score beside those of the functions."""


LENGTH_PART = "overlong"
"""Name of the penalty for length beside them."""


@dataclass(frozen=True, kw_only=True)
class RewardSources:
    """What the reward of a response is made of."""

    scorer: Scorer | None
    """Rules. None where the reward model alone judges."""
    reward_model: RewardModel | None
    reward_model_weight: float
    """Of the model's score, which is added to the weighted sum of the rules."""
    length_penalty: LengthPenalty | None = None
    """Added besides, in training alone. None where length costs nothing."""


@dataclass(frozen=True, kw_only=True)
class Rated:
    """The responses of a batch as text, with their scores."""

    responses: list[str]
    scores: Scores


class Rater:
    """Reads responses and rates them."""

    def __init__(
        self, sources: RewardSources, decode: Callable[[list[int]], str], timer: StageTimer
    ) -> None:
        """Take what rates, what reads, and what counts the seconds."""
        self.sources = sources
        self.decode = decode
        self.timer = timer

    def by_rules(self, prompts: Sequence[Prompt], rollouts: Rollouts) -> Rated:
        """Read each response and rate it against its prompt's reference answer."""
        groups = rollouts.group_B.tolist()
        responses = [self.decode(rollouts.response_tokens(row)) for row in range(len(groups))]
        if self.sources.scorer is None:
            nothing = Scores(rewards=(0.0,) * len(groups), parts={}, ranges={}, failures=())
            return Rated(responses=responses, scores=nothing)
        references = [prompts[group].reference for group in groups]
        return Rated(responses=responses, scores=self.sources.scorer.score(responses, references))

    @contextmanager
    def rating(
        self, prompts: Sequence[Prompt], rollouts: Rollouts, *, blocking: bool
    ) -> Iterator[Callable[[], Rated]]:
        """Rate by all sources; the body of the `with` asks for the outcome when it needs it.

        However often it asks, the sources are put together once.

        Args:
            prompts: Of the step.
            rollouts: What answers them.
            blocking: False lets the rules work beside the body, which keeps the devices busy; stage
                `reward` is then the time that the body waits for them.
        """
        with self._rules(prompts, rollouts, blocking=blocking) as rules:
            model = self._model_rewards(rollouts)

            @cache
            def rated() -> Rated:
                return self._with_penalty(self._joined(rules(), model), rollouts)

            yield rated

    @contextmanager
    def _rules(
        self, prompts: Sequence[Prompt], rollouts: Rollouts, *, blocking: bool
    ) -> Iterator[Callable[[], Rated]]:
        if blocking:
            with self.timer("reward"):
                rated = self.by_rules(prompts, rollouts)
            yield lambda: rated
            return
        pool = ThreadPoolExecutor(max_workers=1)
        work = pool.submit(self.by_rules, prompts, rollouts)

        def wait() -> Rated:
            with self.timer("reward"):
                return work.result()

        try:
            yield wait
        except BaseException:
            # After an error nobody waits for the rules, and nobody else may meet them.
            if self.sources.scorer is not None:
                self.sources.scorer.abort()
            raise
        finally:
            pool.shutdown()

    def _model_rewards(self, rollouts: Rollouts) -> tuple[float, ...] | None:
        if self.sources.reward_model is None:
            return None
        with self.timer("reward_model"):
            found = self.sources.reward_model.compute_rewards(rollouts.sequences())
        return tuple(found.rewards_B.tolist())

    def _joined(self, rated: Rated, model: tuple[float, ...] | None) -> Rated:
        """Add the reward model's scores to those of the rules."""
        if model is None:
            return rated
        scores, weight = rated.scores, self.sources.reward_model_weight
        rewards = tuple(
            rule + weight * found for rule, found in zip(scores.rewards, model, strict=True)
        )
        parts = {**scores.parts, MODEL_PART: model}
        return replace(rated, scores=replace(scores, rewards=rewards, parts=parts))

    def _with_penalty(self, rated: Rated, rollouts: Rollouts) -> Rated:
        """Take what the lengths of the responses cost."""
        penalty = self.sources.length_penalty
        if penalty is None:
            return rated
        cost = tuple(map(penalty, rollouts.response_mask_BT.sum(dim=1).tolist()))
        rewards = tuple(map(sum, zip(rated.scores.rewards, cost, strict=True)))
        parts = {**rated.scores.parts, LENGTH_PART: cost}
        return replace(rated, scores=replace(rated.scores, rewards=rewards, parts=parts))
