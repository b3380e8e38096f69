"""Steps that train on a run's stored rollouts, without an engine."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from mindrl.checkpoint.earlier_runs import named_rollouts
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DataError
from mindrl.trainer.reward_manager import Rating
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.source.interface import Gathered, Source

_KEY = "rl_config.debug_rollouts"


@dataclass(frozen=True)
class StoredGroups(Source[Gathered]):
    """The stored responses of each step, with their rewards."""

    files: RolloutFiles

    def next(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Read the file of a step."""
        check_interrupt()
        batch = self.files.read(step)
        rating: Rating = nullcontext(lambda: batch.rewarded)
        return Gathered(prompts=batch.prompts, rollouts=batch.rollouts, rating=rating)


def stored_rollouts(config: RunConfig) -> RolloutFiles:
    """Return the files that `rl_config.debug=train_only` trains on, after checking all steps.

    Raises:
        ConfigError: One is missing or damaged, or has another number of responses than a step.
    """
    steps, needed = config.megatron_training.train_iters, config.sequences_per_step
    files = RolloutFiles(named_rollouts(config))
    for step in range(1, steps + 1):
        try:
            found = len(files.read(step).rewarded.responses)
        except DataError as error:
            raise ConfigError(f"{_KEY}={config.rl_config.debug_rollouts}: {error}") from error
        # Conversations with failed environments are not stored.
        is_less = config.environment_config is not None and 0 < found < needed
        if found != needed and not is_less:
            raise ConfigError(
                f"{_KEY}={config.rl_config.debug_rollouts}: {files.path(step).name} has {found} "
                f"responses, a step of this run {needed}: megatron_training.global_batch_size "
                "times rl_config.n_samples_per_prompt"
            )
    return files
