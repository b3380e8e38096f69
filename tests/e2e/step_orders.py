"""Keys of short runs that generate ahead, and what their stored rollouts must hold."""

from program import Program

from mindrl.trainer.reward_manager import RatedBatch
from mindrl.trainer.rollout_files import RolloutFiles

PROMPTS = 8
"""Prompts of a step."""
APART = ("rl_config.use_integrated_worker=false", "rl_config.actor_resource.num_npus=1")
ONE_STEP_OFF = "rl_config.step_order=one_step_off"
ASYNCHRONOUS = "rl_config.step_order=asynchronous"


def few_prompts(steps: int) -> tuple[str, ...]:
    """Return the keys of a run of so many steps, which keeps its rollouts."""
    return (
        f"megatron_training.train_iters={steps}",
        f"megatron_training.keep_rollouts={steps}",
        f"megatron_training.global_batch_size={PROMPTS}",
        f"rl_config.mini_batch_size={PROMPTS}",
        "rl_config.rollout_round_steps=4",
        *("rl_config.test_freq=0", "rl_config.use_tensorboard=false"),
        "rl_config.memory_timeline_steps=0",
    )


def replicas(count: int) -> str:
    return f"rl_config.rollout_resource.num_npus={count}"


def trained_batches(run: Program, steps: int, staleness: int) -> list[RatedBatch]:
    """Return the stored rollouts: each prompt was used once, and no token was too old."""
    files = RolloutFiles(run.folder / "rollouts")
    batches = [files.read(step) for step in range(1, steps + 1)]
    uids = [prompt.uid for batch in batches for prompt in batch.prompts]
    assert len(uids) == len({*uids}) == steps * PROMPTS
    ages = [batch.rollouts.ages_BT for batch in batches]
    oldest = [0 if each is None else int(each.max()) for each in ages]
    assert all(0 <= age <= staleness for age in oldest)
    assert [line["step"] for line in run.steps()] == [*range(1, steps + 1)]
    return batches
