"""Advice from the metrics of a run, with the keys to change.

Each rule states its evidence, and applies at most once in a run.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from mindrl.observability.metrics import Metrics

WINDOW = 5
"""Number of steps over which a rule averages."""
_SLOWEST = "throughput/idle_worst_worker"
_TOKENS = "rollout/response_tokens"


@dataclass(frozen=True, kw_only=True)
class RunAdvice:
    """A finding, and possible remedies."""

    name: str
    title: str
    evidence: str
    change: tuple[str, ...]


@dataclass(kw_only=True)
class History:
    """The first steps of a run and the newest ones."""

    first_rows: list[Metrics] = field(default_factory=list)
    newest: deque[Metrics] = field(default_factory=lambda: deque(maxlen=2 * WINDOW))
    accuracies: list[Metrics] = field(default_factory=list)
    """Metrics of the evaluations on the held-out file, with the ends of their intervals."""

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of a step, or of an evaluation."""
        if "evaluation/accuracy" in metrics:
            self.accuracies.append(metrics)
        elif "seconds/step" in metrics:
            if len(self.first_rows) < WINDOW:
                self.first_rows.append(metrics)
            self.newest.append(metrics)

    def first(self, name: str) -> float | None:
        """Return the mean over the first steps; None unless all have it."""
        return _mean(self.first_rows, name)

    def last(self, name: str) -> float | None:
        """Return the mean over the newest steps; None unless all have it."""
        return _mean([*self.newest][-WINDOW:], name)

    def before(self, name: str) -> float | None:
        """Return the mean over the steps before the newest; None unless all have it."""
        return _mean([*self.newest][:-WINDOW], name)


def _mean(steps: list[Metrics], name: str) -> float | None:
    values = [step[name] for step in steps if name in step]
    return fmean(values) if len(values) == WINDOW else None


class Adviser:
    """Checks the metrics of each step, and returns each finding once."""

    def __init__(self) -> None:
        """Start without history."""
        self.history = History()
        self.given: dict[str, RunAdvice] = {}

    def observe(self, metrics: Mapping[str, float | None]) -> list[RunAdvice]:
        """Add the metrics of a step or an evaluation; return findings that are new.

        None, which stands for non-finite values, counts as missing.
        """
        self.history.add({name: value for name, value in metrics.items() if value is not None})
        found = [
            RunAdvice(name=rule.name, title=rule.title, evidence=evidence, change=rule.change)
            for rule in RULES
            if rule.name not in self.given and (evidence := rule.look(self.history)) is not None
        ]
        self.given |= {each.name: each for each in found}
        return found


@dataclass(frozen=True, kw_only=True)
class AdviceRule:
    """A rule."""

    name: str
    title: str
    look: Callable[[History], str | None]
    """Returns the evidence, or None."""
    change: tuple[str, ...]


def _no_signal(history: History) -> str | None:
    share, reward = history.last("advantage/zero_fraction"), history.last("reward/mean")
    if share is None or reward is None or share < 0.9:
        return None
    return (
        f"in the last {WINDOW} steps the responses to {share:.0%} of the prompts had equal rewards "
        f"(mean reward {reward:.3f}): such prompts do not change the policy"
    )


def _entropy(history: History) -> str | None:
    first, last = history.first("update/entropy"), history.last("update/entropy")
    before, now = history.before("reward/mean"), history.last("reward/mean")
    equal = history.last("advantage/zero_fraction")
    if first is None or last is None or before is None or now is None or equal is None:
        return None
    if last > first / 5 or now > before + 0.01 or equal < 0.5:
        return None
    return (
        f"entropy fell from {first:.3g} to {last:.3g} nats, the responses to {equal:.0%} of the "
        f"prompts have equal rewards, and the reward stays at {now:.3f}: exploration has stopped"
    )


def _length(history: History) -> str | None:
    name = "rollout/response_length_mean"
    first, last = history.first(name), history.last(name)
    reward = history.first("reward/mean"), history.last("reward/mean")
    if first is None or last is None or reward[0] is None or reward[1] is None:
        return None
    if len(history.accuracies) < 2 or last < 1.5 * first or reward[1] <= reward[0]:
        return None
    ends = history.accuracies[0], history.accuracies[-1]
    before, now = (each["evaluation/accuracy"] for each in ends)
    if now > before:
        return None
    return (
        f"responses grew from {first:.0f} to {last:.0f} tokens and the reward from {reward[0]:.3f} "
        f"to {reward[1]:.3f}, but the held-out accuracy went from {before:.3f} to {now:.3f}"
    )


def _cut(history: History) -> str | None:
    share = history.last("rollout/cut_fraction")
    if share is None or share < 0.2:
        return None
    return f"{share:.0%} of the responses of the last {WINDOW} steps reached the maximum length"


def _gap(history: History) -> str | None:
    first, last = history.first("logprob_gap/mean"), history.last("logprob_gap/mean")
    if first is None or last is None or last < 1e-4 or last < 5 * first:
        return None
    return f"the mean log-prob gap grew from {first:.1e} to {last:.1e} nats"


def _stale(history: History) -> str | None:
    share = history.last("staleness/stale_tokens")
    size = history.last("mismatch/effective_sample_size")
    if share is None or size is None or share < 0.3 or size > 0.5:
        return None
    return (
        f"{share:.0%} of the tokens were generated with older weights, and the effective sample "
        f"size is {size:.0%} of the tokens"
    )


def _slow_worker(history: History) -> str | None:
    # Twice as many steps as for other rules: the slowest of a single step may be chance.
    steps = [step for step in history.newest if _SLOWEST in step]
    if len(steps) < 2 * WINDOW:
        return None
    worker, times = Counter(step[_SLOWEST] for step in steps).most_common(1)[0]
    mean = fmean(step["throughput/idle_mean"] for step in steps)
    if times < 0.9 * len(steps) or mean < 0.2:
        return None
    return (
        f"worker {worker:.0f} finished last in {times} of {len(steps)} steps: on average a worker "
        f"waits for {mean:.0%} of the generation time"
    )


def _rewards(history: History) -> str | None:
    reward, step = history.last("seconds/reward"), history.last("seconds/step")
    if reward is None or step is None or reward < 0.3 * step:
        return None
    return f"rewards take {reward:.1f} s of a step of {step:.1f} s"


def _clipped(history: History) -> str | None:
    share = history.last("update/clip_fraction")
    if share is None or share < 0.1:
        return None
    return f"the ratio of {share:.0%} of the tokens left the clip range in the last {WINDOW} steps"


def _small_cache(history: History) -> str | None:
    preemptions, tokens = history.last("throughput/preemptions"), history.last(_TOKENS)
    length = history.last("rollout/response_length_mean")
    if not preemptions or not tokens or not length or preemptions < 0.05 * tokens / length:
        return None
    return (
        f"the KV cache was full {preemptions:.0f} times in each of the last {WINDOW} steps of "
        f"{tokens / length:.0f} responses: each time the engine stopped a sequence (preemption) "
        "and later computed its tokens again"
    )


RULES = (
    AdviceRule(
        name="no_signal",
        title="Most prompts have no signal",
        look=_no_signal,
        change=(
            "increase rl_config.n_samples_per_prompt: more responses differ more often",
            "set rl_config.filter_groups_enable=true: samples prompts until enough have a signal",
            "select rows of medium difficulty: mindrl pass-rates measures each row",
            "increase generate_config.sampling_config.temperature if all responses are similar",
        ),
    ),
    AdviceRule(
        name="entropy_collapse",
        title="The policy has stopped exploring",
        look=_entropy,
        change=(
            "decrease actor_config.lr or the number of updates per step",
            "set rl_config.clip_ratio_high above rl_config.clip_ratio_low (DAPO's clip-higher)",
            "set rl_config.entropy_coeff to a small bonus",
        ),
    ),
    AdviceRule(
        name="length_hacking",
        title="Length and reward grow, accuracy does not",
        look=_length,
        change=(
            "change the reward, which pays for length: see the longest samples in the report",
            "set rl_config.overlong_buffer_enable=true: penalizes length near the limit",
        ),
    ),
    AdviceRule(
        name="truncation",
        title="Many responses are cut off",
        look=_cut,
        change=(
            "increase generate_config.sampling_config.max_tokens if memory allows",
            "set rl_config.overlong_buffer_enable=true: penalizes length before the limit",
            "check the stop tokens in the model's generation_config.json if responses do not stop",
        ),
    ),
    AdviceRule(
        name="gap_grows",
        title="Trainer and engine drift apart",
        look=_gap,
        change=(
            "set generate_config.verify_weights=always: compares the weights of both",
            "set generate_config.dtype to the trainer's dtype",
            "set actor_config.router_replay=R3 for a mixture: both then use the same experts",
            "set rollout_correction to correct for a gap that cannot be avoided",
        ),
    ),
    AdviceRule(
        name="staleness",
        title="Tokens are too stale",
        look=_stale,
        change=("decrease rl_config.max_staleness", "decrease rl_config.groups_in_flight"),
    ),
    AdviceRule(
        name="slow_worker",
        title="One worker delays the others",
        look=_slow_worker,
        change=(
            "run mindrl doctor on its machine: other programs may use its devices",
            "set rl_config.partial_rollout=true: ends a rollout before its longest response",
        ),
    ),
    AdviceRule(
        name="slow_rewards",
        title="Rewards delay the step",
        look=_rewards,
        change=(
            "increase rl_config.verifier_parallel: more processes",
            "set rl_config.blocking=false: scores while the devices compute",
            "decrease rl_config.verifier_timeout if single responses take long",
        ),
    ),
    AdviceRule(
        name="small_kv_cache",
        title="The KV cache is too small",
        look=_small_cache,
        change=(
            "increase generate_config.gpu_memory_utilization or generate_config.kv_cache_mib",
            "increase generate_config.infer_tensor_parallel_size: more ranks share the cache",
            "decrease generate_config.max_num_seqs: sequences wait before their start instead",
        ),
    ),
    AdviceRule(
        name="clipping",
        title="Updates are too large",
        look=_clipped,
        change=(
            "decrease actor_config.lr",
            "increase rl_config.mini_batch_size or decrease rl_config.epochs: fewer updates",
        ),
    ),
)
