"""Notes, shown once, about steps that do not train or waste time."""

from collections.abc import Collection, Iterator

from mindrl.observability.metrics import Metrics

_SLOW_SECONDS = 1.0
"""Shorter reward times do not matter."""


def step_notes(metrics: Metrics, shown: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each note about a step, except those already `shown`."""
    for name, text in (
        ("no_signal", _no_signal(metrics)),
        ("no_gradient", _no_gradient(metrics)),
        ("all_cut", _all_cut(metrics)),
        ("slow_rewards", _slow_rewards(metrics)),
    ):
        if text is not None and name not in shown:
            yield name, text


def _no_signal(metrics: Metrics) -> str | None:
    if metrics.get("advantage/zero_fraction") != 1:
        return None
    return (
        "did not change the policy: the responses to each prompt have equal rewards, "
        f"{metrics.get('reward/mean', 0.0):.3f} on average. Use other prompts, a more "
        "discriminating reward or a larger rl_config.n_samples_per_prompt; the summary counts such "
        "steps"
    )


def _no_gradient(metrics: Metrics) -> str | None:
    if metrics.get("update/grad_norm") != 0 or metrics.get("advantage/zero_fraction") == 1:
        return None
    return (
        "did not change the policy: the gradient is 0, although rewards differ. Check whether "
        "rl_config.overlong_filter_enable or rl_config.rollout_correction excludes all tokens; the "
        "summary counts such steps"
    )


def _all_cut(metrics: Metrics) -> str | None:
    if metrics.get("rollout/cut_fraction") != 1:
        return None
    return (
        "has no complete response: all were cut off at "
        f"{metrics.get('rollout/response_length_max', 0):.0f} tokens. Increase "
        "generate_config.sampling_config.max_tokens, or look in the samples for the end token that "
        "the model uses"
    )


def _slow_rewards(metrics: Metrics) -> str | None:
    reward, step = metrics.get("seconds/reward", 0.0), metrics["seconds/step"]
    if reward < max(step / 2, _SLOW_SECONDS):
        return None
    rate = metrics["rollout/response_tokens"] / reward
    return (
        f"waited for its rewards for {reward:.1f} of {step:.1f} s: they score {rate:.0f} tokens a "
        "second. Increase rl_config.verifier_parallel, or set rl_config.blocking=false"
    )
