"""Evaluate the model on prompts that it is not trained on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mindrl.algorithms.success_rates import rate, success_rates
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.config.data import EvalSet
from mindrl.config.run import RunConfig
from mindrl.data.order import PromptOrder
from mindrl.data.run_data import RunData
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.conversation_samples import ShownConversations
from mindrl.trainer.reward_manager import RatedBatch
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.source.choice import complete
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.source.turns import ConversationTurns


class Evaluation:
    """Evaluates the model on the held-out file, greedily, and on each set with its own sampling."""

    def __init__(
        self,
        config: RunConfig,
        data: RunData,
        answering: Answering,
        run_log: RunLog,
    ) -> None:
        """Set the parts; `answering` answers the training prompts in the same way."""
        self.config = config
        self.data = data
        self.answering = answering
        self.workers, self.rewards = answering.workers, answering.rewards
        self.run_log = run_log
        self.greedy = Sampling(
            section=config.generate_config.sampling_config,
            stop_token_ids=data.stop_token_ids,
            is_greedy=True,
            is_seeded=config.rl_config.reproducible_sampling,
        )

    def measure(self, step: int, note_failures: Callable[[int, Scores], None]) -> float | None:
        """Record the accuracy after a step; return the value that determines the best model.

        Args:
            step: 0 is before training.
            note_failures: Called with the scores of each set; may raise.

        Returns:
            None if nothing is evaluated.
        """
        self.run_log.console.stage("evaluation")
        found: dict[str | None, float] = {}
        if self.data.test is not None:
            batch = self._answered(step, self.data.test.prompts, self.greedy)
            note_failures(step, batch.rewarded.scores)
            right = rate(self._shares(batch), samples=1)
            found[None] = right.value
            self.run_log.evaluation(
                step, right, batch.samples(range(len(batch.rewarded.responses)))
            )
        for each in self.config.data_config.eval_sets:
            prompts = self.data.eval_sets[each.name].prompts
            batch = self._answered(step, prompts, self._sampling(each))
            note_failures(step, batch.rewarded.scores)
            rates = success_rates(self._shares(batch), each.samples)
            found[each.name] = next(iter(rates.values())).value
            samples = batch.samples(range(len(batch.rewarded.responses)))
            self.run_log.evaluation_of(each.name, step, rates, samples)
        if found:
            # The cost of an evaluation's switches belongs to no step.
            self.workers.flush_metrics()
        best_by = self.config.data_config.best_by
        return found[best_by] if best_by in found else next(iter(found.values()), None)

    def _sampling(self, chosen: EvalSet) -> Sampling:
        section = self.greedy.section
        drawn = replace(
            section,
            temperature=chosen.temperature or section.temperature,
            max_tokens=chosen.max_tokens or section.max_tokens,
            **chosen.truncation(),
        )
        return replace(
            self.greedy,
            section=drawn,
            samples_per_prompt=chosen.samples,
            is_greedy=chosen.temperature == 0,
        )

    def _answered(self, step: int, prompts: Sequence[Prompt], sampling: Sampling) -> RatedBatch:
        self.workers.engines.publish(step)
        turns, conversations = self.answering.turns, None
        if turns is None:
            rollouts = self.workers.generate_sequences(prompts, sampling, step=step)
        else:
            # A set may have a limit of its own.
            turns = replace(turns, longest=sampling.section.max_tokens)
            rollouts, conversations = self._conversed(step, prompts, sampling, turns)
        rewarded = self.rewards.by_rules(prompts, rollouts)
        return RatedBatch(
            prompts=prompts, rollouts=rollouts, rewarded=rewarded, conversations=conversations
        )

    def _conversed(
        self, step: int, prompts: Sequence[Prompt], sampling: Sampling, turns: ConversationTurns
    ) -> tuple[Rollouts, ShownConversations | None]:
        """Hold the conversations about each prompt, and warn of those that have failed."""
        order = PromptOrder(count=len(prompts), seed=0, shuffle=False)
        answering = replace(
            self.answering,
            prompts=prompts,
            order=order,
            sampling=sampling,
            per_step=len(prompts),
            turns=turns,
        )
        pool = GroupPool(self.config, answering)
        pool.start(step, len(prompts))
        complete(self.config, pool, step + 1)
        for reason, count in turns.failures.items():
            self.run_log.warn(f"evaluation: {count} conversation(s) failed: {reason}")
        groups = pool.take(range(len(prompts)))
        conversations = pool.conversations(groups, with_failed=True)
        return pool.rollouts(step + 1, groups, with_failed=True), conversations

    def _shares(self, batch: RatedBatch) -> list[float]:
        """Return the accuracy of each answer; a failed conversation is a wrong answer."""
        shares = batch.rewarded.scores.shares(self._judge())
        if batch.conversations is None:
            return shares
        failed = batch.conversations.failed()
        return [0.0 if lost else share for share, lost in zip(shares, failed, strict=True)]

    def _judge(self) -> str:
        functions = self.config.rl_config.verifier_function
        assert functions, "validated: a function measures accuracy"
        return functions[0]
