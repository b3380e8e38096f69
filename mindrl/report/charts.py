"""Charts of a page, as data: the page draws those whose metrics a run has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STAGES = (
    "seconds/rollout",
    "seconds/baseline",
    "seconds/reward",
    "seconds/reward_model",
    "seconds/ref_log_prob",
    "seconds/teacher_log_prob",
    "seconds/log_prob",
    "seconds/values",
    "seconds/update_critic",
    "seconds/update",
    "seconds/publish",
)
"""Consecutive stages of a step; the rest of it is shown as `other`."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in one picture."""

    title: str
    names: Sequence[str]
    """Metrics; `*` matches any text, and each match has a curve."""
    unit: str = ""
    help: str = ""
    """Explanation for the reader."""
    kind: str = "lines"
    """`lines`, or `stages`: stacked, with the rest of seconds/step on top."""
    is_log: bool = False
    spread: str | None = None
    """Metric with the standard deviation of the first, drawn as a band around it."""
    leaves_out: Sequence[str] = ()
    """Exceptions from the patterns."""


def _over_workers(what: str) -> Sequence[str]:
    """Return the names of a memory metric: of workers that train, and that only roll out."""
    return [
        f"memory/{side}{what}_{of}" for side in ("", "rollout_") for of in ("max", "mean", "min")
    ]


_FAILED = ("reward/timeouts", "reward/crashes", "reward/errors", "reward/failed_share")

CHARTS: Mapping[str, Sequence[Chart]] = {
    "Learning": (
        Chart(
            title="Loss",
            names=["sft/loss", "evaluation/loss", "eval/*/loss"],
            unit="nats",
            help="Mean negative log-prob of the target tokens, in training and in evaluations.",
        ),
        Chart(
            title="Perplexity in evaluations",
            names=["evaluation/perplexity", "eval/*/perplexity"],
        ),
        Chart(
            title="Accuracy on held-out prompts",
            names=["evaluation/accuracy"],
            help="Greedy responses; the band is the 95 % interval.",
        ),
        Chart(
            title="Mean score by evaluation set",
            names=["eval/*/avg@*"],
            help="The bands are the 95 % intervals.",
        ),
        Chart(
            title="At least one of k correct, by evaluation set",
            names=["eval/*/pass@*"],
            help="The bands are the 95 % intervals.",
        ),
        Chart(
            title="Reward",
            names=["reward/mean"],
            spread="reward/std",
            help="The band is one standard deviation over the responses of the step.",
        ),
        Chart(
            title="Reward by part",
            names=["reward/*"],
            leaves_out=["reward/mean", "reward/std", *_FAILED],
            help="Scores before weighting.",
        ),
        Chart(title="Reward by data set", names=["data/*/reward"]),
        Chart(title="Accuracy by data set", names=["data/*/accuracy"]),
        Chart(
            title="Prompts without signal",
            names=["advantage/zero_fraction"],
            help="Share of prompts with equal rewards for all responses: they change nothing.",
        ),
        Chart(title="Missing scores", names=_FAILED, unit="responses"),
    ),
    "Responses": (
        Chart(
            title="Length",
            names=["rollout/response_length_mean", "rollout/response_length_max"],
            unit="tokens",
        ),
        Chart(
            title="Cut off at the maximum length",
            names=["rollout/cut_fraction"],
            help="Share of the responses.",
        ),
        Chart(
            title="Turns and tool calls",
            names=["turns/mean", "turns/calls_mean"],
            help="Mean over the conversations.",
        ),
        Chart(
            title="Ends of conversations",
            names=["turns/ended_*"],
            help="Share of the conversations with each reason.",
        ),
    ),
    "Policy": (
        Chart(
            title="Entropy",
            names=["update/entropy"],
            unit="nats",
            help="Of the next token, mean over the response tokens. Near 0 exploration has "
            "stopped.",
        ),
        Chart(
            title="Divergence",
            names=["update/kl", "update/kl_old", "reward/kl"],
            unit="nats",
            help="From the reference, and from the policy at the start of the step.",
        ),
        Chart(
            title="Gradient norm",
            names=["update/grad_norm", "critic/grad_norm"],
            is_log=True,
        ),
        Chart(
            title="Loss",
            names=["update/policy_loss", "critic/value_loss", "update/moe_aux_loss"],
        ),
        Chart(
            title="Clipped tokens",
            names=["update/clip_fraction", "critic/clip_fraction"],
            help="Share of tokens with a ratio outside the clip range.",
        ),
        Chart(title="Learning rate", names=["update/lr", "critic/lr"]),
        Chart(
            title="Skipped updates",
            names=["update/skipped", "critic/skipped"],
            help="Their loss or gradient was not finite.",
        ),
        Chart(
            title="Critic",
            names=["value/mean", "value/return_mean", "value/explained_variance"],
        ),
    ),
    "Trainer against engine": (
        Chart(
            title="Log-prob gap",
            names=["logprob_gap/mean", "logprob_gap/max"],
            unit="nats",
            is_log=True,
            help="Between trainer and engine for the same weights and tokens: rounding only.",
        ),
        Chart(
            title="Drift of older tokens",
            names=["drift/mean", "drift/max"],
            unit="nats",
            help="Between the weights that generated a token and the weights that train on it.",
        ),
        Chart(
            title="Staleness",
            names=["staleness/mean", "staleness/max"],
            unit="steps",
        ),
        Chart(
            title="Effective sample size",
            names=["mismatch/effective_sample_size", "correction/effective_sample_size"],
            help="1 if engine and trainer agree.",
        ),
    ),
    "Time": (
        Chart(
            title="Stages of a step",
            names=STAGES,
            unit="s",
            kind="stages",
            help="Stacked seconds; `other` is the remainder of the step.",
        ),
        Chart(
            title="Switches",
            names=["seconds/swap_*", "seconds/send_weights", "seconds/receive_weights"],
            unit="s",
            help="Within the stages: regions that enter and leave the device, and weight transfer.",
        ),
        Chart(
            title="Idle share",
            names=["throughput/idle_mean", "throughput/idle_max", "idle/*"],
            help="Engines that wait for others; with separate rollout devices each side's waiting.",
        ),
        Chart(
            title="Response tokens per second",
            names=["throughput/response_tokens_per_second"],
            unit="tokens/s",
        ),
        Chart(
            title="Tokens per second",
            names=["throughput/tokens_per_second"],
            unit="tokens/s",
        ),
        Chart(
            title="Answers of environments",
            names=["turns/environment_seconds_mean", "turns/environment_seconds_max"],
            unit="s",
            help="From the end of a turn to the answer.",
        ),
        Chart(
            title="Checkpoints",
            names=["seconds/checkpoint_write", "seconds/checkpoint_wait"],
            unit="s",
        ),
    ),
    "Memory": (
        Chart(
            title="Peak on a device",
            names=_over_workers("device_peak_bytes"),
            unit="bytes",
            help="All regions together, over the workers; without activations.",
        ),
        Chart(
            title="Host memory of a worker",
            names=_over_workers("rss_bytes"),
            unit="bytes",
        ),
        Chart(
            title="Resharded bytes",
            names=["bytes/reshard_received", "bytes/reshard_needed", "bytes/reshard_local"],
            unit="bytes",
            help="Received bytes equal the planned need.",
        ),
    ),
}
"""Charts by the section of the page."""
