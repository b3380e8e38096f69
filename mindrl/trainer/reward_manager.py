"""Compute rewards of rollouts: functions in the reward service, a model on the devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Self

from torch import Tensor

from mindrl.agents.host import AgentHost
from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.segments import Conversations
from mindrl.environments.host import EnvironmentHost
from mindrl.observability.samples import Sample, SampledConversation
from mindrl.observability.timing import StageTimer
from mindrl.observability.trace import span
from mindrl.rewards.inputs import Answered
from mindrl.rewards.scorer import RewardScorer
from mindrl.rewards.scores import Scores
from mindrl.trainer.conversation_samples import ShownConversations
from mindrl.trainer.worker_handle import WorkerHandle

ENVIRONMENT = "environment"
"""Name of the environment's part of a reward."""


@dataclass(frozen=True, kw_only=True)
class RewardSources:
    """Components of a response's reward."""

    scorer: RewardScorer | None
    """Reward functions. None if only the reward model scores."""
    reward_model: WorkerHandle | None
    reward_model_weight: float
    """Weight of the model's score, which is added to the weighted sum of the functions."""
    environments: EnvironmentHost | AgentHost | None = None
    """Answers and rates conversations. None: one response to each prompt."""
    environment_weight: float = 0.0
    """Weight of the environment's rewards, which are added to the weighted sum too."""
    length_penalty: LengthPenalty | None = None
    """Also added, in training only. None without a length penalty."""


@dataclass(frozen=True, kw_only=True)
class Rewarded:
    """The responses of a batch as text, one for each conversation, with their scores."""

    responses: list[str]
    scores: Scores

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate batches."""
        return cls(
            responses=[each for part in parts for each in part.responses],
            scores=Scores.joined([part.scores for part in parts]),
        )

    def rows(self, rows: Sequence[int]) -> Self:
        """Keep some responses; failures of the others are still counted."""
        return replace(
            self, responses=[self.responses[row] for row in rows], scores=self.scores.rows(rows)
        )


Rating = AbstractContextManager[Callable[[], Rewarded]]
"""Scores a batch while its body runs; the body calls its value to get the scores."""


@dataclass(frozen=True, kw_only=True)
class RatedBatch:
    """Prompts, the responses to them, and their scores."""

    prompts: Sequence[Prompt]
    rollouts: Rollouts
    rewarded: Rewarded
    advantages_BT: Tensor | None = None
    """float32; None before they are estimated."""
    logprobs_BT: Tensor | None = None
    """float32, nats; under the trainer's weights before the step, NaN in rows without known ones.
    None if no row has any, or before they are computed."""
    conversations: ShownConversations | None = None
    """Conversations for people. None without environments, and in a stored batch."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate batches."""
        return cls(
            prompts=[prompt for part in parts for prompt in part.prompts],
            rollouts=Rollouts.joined([part.rollouts for part in parts]),
            rewarded=Rewarded.joined([part.rewarded for part in parts]),
        )

    def samples(self, rows: Iterable[int]) -> list[Sample]:
        """Return some of the responses for display."""
        scores, talks = self.rewarded.scores, self.rollouts.conversations()
        groups = talks.last(self.rollouts.group_B).tolist()
        finished, lengths = talks.last(self.rollouts.finished_B), talks.mask().sum(dim=1)
        return [
            Sample(
                prompt=self.prompts[groups[row]].text,
                response=self.rewarded.responses[row],
                reference=self.prompts[groups[row]].answer,
                reward=scores.rewards[row],
                parts=scores.parts(row),
                finished=bool(finished[row]),
                response_tokens=int(lengths[row]),
                conversation=self.conversation(row),
                pictures=self.prompts[groups[row]].picture_names,
                data_source=self.prompts[groups[row]].source,
            )
            for row in rows
        ]

    def conversation(self, row: int) -> SampledConversation | None:
        """Return the conversation of a response for display; None without environments."""
        if self.conversations is None:
            return None
        rollouts = self.rollouts.rows(self.rollouts.conversations().index() == row)
        asked = self.prompts[int(rollouts.group_B[0])]
        tokens = rollouts.tokens_BT[rollouts.after_prompts()].tolist()
        return self.conversations.sampled(row, asked, tokens)


@dataclass(frozen=True)
class RewardManager:
    """Decodes responses and scores them."""

    sources: RewardSources
    decode: Callable[[list[int]], str]
    timer: StageTimer

    def state(self) -> dict[str, dict[str, float]]:
        """Return the worst scores of the reward functions so far, for a resume."""
        return {} if self.sources.scorer is None else self.sources.scorer.state()

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Continue with these worst scores; an empty state forgets all."""
        if self.sources.scorer is not None:
            self.sources.scorer.load_state(state)

    def by_rules(self, prompts: Sequence[Prompt], rollouts: Rollouts) -> Rewarded:
        """Decode each response and score it against its prompt's answer."""
        count = len(rollouts.conversations().last(rollouts.group_B))
        return self.by_rules_in_parts([count], prompts, rollouts)[0]

    def by_rules_in_parts(
        self, lengths: Sequence[int], prompts: Sequence[Prompt], rollouts: Rollouts
    ) -> list[Rewarded]:
        """Score batches of these lengths, one after the other in the rollouts, in one call."""
        groups = rollouts.conversations().last(rollouts.group_B).tolist()
        token_ids = rollouts.response_tokens()
        responses = [*map(self.decode, token_ids)]
        ends = [*accumulate(lengths)]
        texts = [responses[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        if self.sources.scorer is None:
            return [
                Rewarded(
                    responses=part,
                    scores=Scores(
                        rewards=(0.0,) * len(part), components={}, ranges={}, failures=()
                    ),
                )
                for part in texts
            ]
        asked = [prompts[group] for group in groups]
        answers = [prompt.answer for prompt in asked]
        named = [prompt.source for prompt in asked]
        answered = Answered(prompts=asked, groups=groups, token_ids=token_ids)
        with span("reward call", responses=len(responses)):
            scores = self.sources.scorer.score_parts(
                lengths, responses, answers, named if any(named) else (), answered
            )
        return [
            Rewarded(responses=part, scores=score)
            for part, score in zip(texts, scores, strict=True)
        ]

    @contextmanager
    def compute(
        self,
        prompts: Sequence[Prompt],
        rollouts: Rollouts,
        *,
        blocking: bool,
        known: Callable[[], Rewarded] | None = None,
    ) -> Iterator[Callable[[], Rewarded]]:
        """Score by all sources; the body of the `with` calls its value to get the scores.

        `known` waits for scores of the reward functions that are computed elsewhere. The scores are
        combined once, even if the body calls repeatedly. Unless `blocking`, the functions run
        concurrently with the body, which keeps the devices busy; stage `reward` is then the time
        that the body waits for them.
        """
        sources, talks = self.sources, rollouts.conversations()
        asked = self._rules(prompts, rollouts, blocking=blocking)
        with asked if known is None else nullcontext(known) as rules:
            model = None
            if sources.reward_model is not None:
                with self.timer("reward_model"):
                    model = sources.reward_model.compute_rewards(rollouts.sequences()).rewards_B

            @cache
            def rewarded() -> Rewarded:
                by_rules = rules()
                scores = by_rules.scores
                if model is not None:
                    weight = sources.reward_model_weight
                    scores = scores.plus("model", tuple(talks.last(model).tolist()), weight)
                if (turns_BT := rollouts.turn_rewards_BT) is not None:
                    given = tuple(talks.joined(turns_BT).sum(dim=1).tolist())
                    scores = scores.plus(ENVIRONMENT, given, sources.environment_weight)
                if sources.length_penalty is not None:
                    # As the limit does, it counts the tokens of environments too.
                    whole = Conversations(rollouts.after_prompts(), rollouts.conversation_B)
                    lengths = whole.mask().sum(dim=1).tolist()
                    scores = scores.plus("overlong", tuple(map(sources.length_penalty, lengths)))
                return replace(by_rules, scores=scores)

            yield rewarded

    @contextmanager
    def _rules(
        self, prompts: Sequence[Prompt], rollouts: Rollouts, *, blocking: bool
    ) -> Iterator[Callable[[], Rewarded]]:
        if blocking:
            with self.timer("reward"):
                rewarded = self.by_rules(prompts, rollouts)
            yield lambda: rewarded
            return
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        work = pool.submit(self.by_rules, prompts, rollouts)

        def wait() -> Rewarded:
            with self.timer("reward"):
                return work.result()

        try:
            yield wait
        except BaseException:
            # After an error the result is not needed, and no later call may receive it.
            if self.sources.scorer is not None:
                self.sources.scorer.abort()
            raise
        finally:
            pool.shutdown()
