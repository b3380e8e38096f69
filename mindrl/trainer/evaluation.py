"""Evaluate the model on prompts that it is not trained on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mindrl.algorithms.success_rates import rate, success_rates
from mindrl.batch.prompts import Prompt
from mindrl.config.data import EvalSet
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.reward_manager import RatedBatch, RewardManager
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.worker_handle import WorkerHandle


class Evaluation:
    """Evaluates the model on the held-out file, greedily, and on each set with its own sampling."""

    def __init__(
        self,
        config: RunConfig,
        data: RunData,
        workers: WorkerHandle,
        rewards: RewardManager,
        run_log: RunLog,
    ) -> None:
        self.config = config
        self.data = data
        self.workers = workers
        self.rewards = rewards
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
            right = rate(batch.rewarded.scores.shares(self._judge()), samples=1)
            found[None] = right.value
            self.run_log.evaluation(step, right, batch.samples(range(len(batch.rollouts))))
        for each in self.config.data_config.eval_sets:
            prompts = self.data.eval_sets[each.name].prompts
            batch = self._answered(step, prompts, self._sampling(each))
            note_failures(step, batch.rewarded.scores)
            rates = success_rates(batch.rewarded.scores.shares(self._judge()), each.samples)
            found[each.name] = next(iter(rates.values())).value
            samples = batch.samples(range(len(batch.rollouts)))
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
        rollouts = self.workers.generate_sequences(prompts, sampling, step=step)
        rewarded = self.rewards.by_rules(prompts, rollouts)
        return RatedBatch(prompts=prompts, rollouts=rollouts, rewarded=rewarded)

    def _judge(self) -> str:
        functions = self.config.rl_config.verifier_function
        assert functions, "validated: a function measures accuracy"
        return functions[0]
