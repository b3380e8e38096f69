"""Rules on how actor and critic learn: recomputation, optimizer, advantages."""

from collections.abc import Iterator

from mindrl.config.backends import TRAINING_ENGINE
from mindrl.config.finding import Finding, Value, broken
from mindrl.config.role import LearningConfig
from mindrl.config.run import RunConfig

_ESTIMATOR = "rl_config.adv_estimator"
_HIGH_RATE = 1e-2
_RECOMPUTE: dict[str, tuple[str, tuple[Value, ...]]] = {
    "recompute_method": ("uniform or block", ("uniform", "block")),
    "recompute_num_layers": ("1 or more", (1,)),
}
"""What full recomputation needs besides, in words and as values."""


def learning_findings(config: RunConfig) -> Iterator[Finding]:
    """Say what keeps actor and critic from learning."""
    learners: dict[str, LearningConfig | None] = {
        "actor_config": config.actor_config,
        "critic_config": config.critic_config,
    }
    for section, learner in learners.items():
        if learner is not None:
            yield from _recomputation(section, learner)
            yield from _grouped_experts(section, learner, bf16=config.megatron_training.bf16)
            yield from _decay(section, learner)
    yield from _critic(config)
    if config.rl_config.adv_estimator == "gae":
        yield from _warmup(config)
    else:
        yield from _without_a_critic(config)


def learning_warnings(config: RunConfig) -> Iterator[Finding]:
    """Say what no rule forbids and hardly anybody means."""
    rates = {"actor_config": config.actor_config.lr}
    if config.critic_config is not None:
        rates["critic_config"] = config.critic_config.lr
    for section, rate in rates.items():
        if rate > _HIGH_RATE:
            need = ": an update of Adam moves a weight by up to about this much; 1e-7 to 1e-3 are "
            yield broken(f"{section}.lr", rate, f"{need}usual")


def _recomputation(section: str, learner: LearningConfig) -> Iterator[Finding]:
    """Full recomputation says how, and no other does."""
    granularity = learner.recompute_granularity
    for name, (need, legal) in _RECOMPUTE.items():
        field, value = f"{section}.{name}", getattr(learner, name)
        if granularity == "full" and value is None:
            text = f"{field} is missing: recompute_granularity=full needs {need}"
            yield Finding(text, field, None, legal)
        if granularity != "full" and value is not None:
            only = f"has a meaning only with {section}.recompute_granularity=full, found "
            yield broken(field, value, f"{only}{granularity}", None)


def _grouped_experts(section: str, learner: LearningConfig, *, bf16: bool) -> Iterator[Finding]:
    if learner.moe_grouped_gemm and not bf16:
        need = (
            "needs megatron_training.bf16=true, found false: "
            f"{TRAINING_ENGINE} multiplies grouped experts in bfloat16 only"
        )
        yield broken(f"{section}.moe_grouped_gemm", True, need, False)


def _decay(section: str, learner: LearningConfig) -> Iterator[Finding]:
    if learner.min_lr > learner.lr:
        need = f"must not be above {section}.lr={learner.lr:g}"
        yield broken(f"{section}.min_lr", learner.min_lr, need, learner.lr)


def _critic(config: RunConfig) -> Iterator[Finding]:
    """There is a critic exactly where advantages come from one."""
    wanted, there = config.rl_config.adv_estimator == "gae", config.critic_config is not None
    field = "critic_config"
    if wanted and not there:
        text = f"{field} is missing: {_ESTIMATOR}=gae needs one, empty or not"
        yield Finding(text, field)
    if there and not wanted:
        text = f"{field} is given: {_ESTIMATOR}=group_norm has no critic; use gae"
        yield Finding(text, field, "given", (None,))


def _warmup(config: RunConfig) -> Iterator[Finding]:
    """The actor learns in the last step at least."""
    warmup, steps = config.rl_config.critic_warmup, config.megatron_training.train_iters
    if warmup >= steps:
        need = f"must be below megatron_training.train_iters={steps}"
        yield broken("rl_config.critic_warmup", warmup, need, steps - 1)


def _without_a_critic(config: RunConfig) -> Iterator[Finding]:
    rl, need = config.rl_config, f"needs {_ESTIMATOR}=gae, found group_norm"
    if rl.use_kl_in_reward:
        yield broken("rl_config.use_kl_in_reward", True, need, False)
    if rl.critic_warmup:
        yield broken("rl_config.critic_warmup", rl.critic_warmup, need, 0)
    samples = rl.n_samples_per_prompt
    if samples < 2:
        need = ": advantages are normalised over the responses to one prompt and need 2 or more"
        yield broken("rl_config.n_samples_per_prompt", samples, need, 2)
