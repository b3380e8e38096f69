"""Measure how often the model of a run answers each prompt correctly, before training."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from mindrl.data.run_data import RunData
from mindrl.errors import RewardError
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary


def measure_pass_rates(
    plan: RunPlan, platform: Platform, data: RunData, logs: Path, on_progress: Callable[[int], None]
) -> dict[int, float]:
    """Generate and score answers to each prompt, as in a step of the run.

    Args:
        plan: Plan of the run; processed by global batches.
        platform: That of the workers.
        data: Has the training prompts.
        logs: Folder of the logs.
        on_progress: Called repeatedly with the number of answered prompts.

    Returns:
        The fraction of correct answers by the prompt's `uid`.

    Raises:
        MindrlError: Workers cannot be started, or fail.
    """
    folder = RunFolder(logs)
    configure_logging(folder.logs / "driver.log")
    console = StepConsole(1)
    attempts = Attempts(plan, platform, data, RunFiles(folder, {}, console))
    with TemporaryDirectory() as scratch:
        run_log = RunLog(RunFolder(Path(scratch)), RunSummary(exports={}), console, [])
        with attempts.once(None, run_log) as trainer:
            return rates_of(trainer, on_progress)


def rates_of(trainer: PolicyTrainer, on_progress: Callable[[int], None]) -> dict[int, float]:
    """Return the fraction of correct answers by the prompt's `uid`; see `measure_pass_rates`."""
    prompts, samples = trainer.data.train.prompts, trainer.sampling.samples_per_prompt
    batch, judge = trainer.training.global_batch_size, trainer.rl.verifier_function[0]
    rates: dict[int, float] = {}
    trainer.workers.engines.publish(0)
    for first in range(0, len(prompts), batch):
        asked = prompts[first : first + batch]
        rollouts = trainer.workers.generate_sequences(asked, trainer.sampling, step=0)
        scores = trainer.rewards.by_rules(asked, rollouts).scores
        if lines := scores.fatal(trainer.rl.on_reward_failure):
            raise RewardError("\n".join(lines))
        shares = scores.shares(judge)
        for place, prompt in enumerate(asked):
            own = shares[place * samples : (place + 1) * samples]
            rates[prompt.uid] = sum(share >= 1 for share in own) / samples
        on_progress(len(rates))
    return rates
