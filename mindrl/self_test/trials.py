"""Run the trials of the self-test, one after another, on workers started for them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from mindrl.batch.prompts import Prompt
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_group import Crew, WorkerGroup
from mindrl.errors import MindrlError
from mindrl.launch.parts import worker_handle
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import logprob_gap_limit
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rollout.engine import Sampling
from mindrl.self_test.plan import LIMIT_SECONDS, STOP_TOKEN
from mindrl.trainer.mismatch import logprob_gap
from mindrl.trainer.step_checks import UNKNOWN_GAPS

_FACTORY = "mindrl.self_test.worker:TestedWorker"
_METHODS = {
    "collectives": "collectives",
    "copies": "copies",
    "offload and onload": "region",
    "trainer and engine": "build",
    "reshard": "reshard",
}
"""Worker method of each trial."""
_DIFFERENCE, _GAP, _UNKNOWN = "max_difference", "mean_gap_nats", "nonfinite_tokens"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Result of one trial."""

    what: str
    passed: bool
    figures: Mapping[str, float]
    """By name; the suffix is the unit."""
    error: str = ""
    """Why it failed; empty if it passed."""


@dataclass
class SelfTest:
    """Runs the trials on all devices of a plan."""

    plan: RunPlan
    platform: Platform
    logs: Path
    """Folder for the workers' logs."""
    stack: ExitStack = field(default_factory=ExitStack)

    def trials(self) -> Iterator[Trial]:
        """Yield each trial when it finishes; the workers have stopped after the last one.

        After a trial that raised an error, all others are reported as failed: its workers may have
        ended or be out of step.
        """
        broken = ""
        with self.stack:
            for what, action in self._actions():
                if broken:
                    error = f"skipped, because {broken} failed"
                    yield Trial(what=what, passed=False, figures={}, error=error)
                    continue
                began = time.perf_counter()
                try:
                    figures = action()
                except MindrlError as error:
                    broken = what
                    yield Trial(what=what, passed=False, figures={}, error=str(error))
                else:
                    timed = {"seconds": time.perf_counter() - began} | figures
                    wrong = self.judged(timed)
                    yield Trial(what=what, passed=not wrong, figures=timed, error=wrong)

    def _actions(self) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
        yield "start", self._start
        for what, method in _METHODS.items():
            yield what, partial(self._figures, method)
        yield "log-prob gap", self._gap

    def _start(self) -> dict[str, float]:
        """Start the workers, which stop after the trials."""
        config = self.plan.config
        cluster = RayCluster(
            self.platform,
            devices=config.world_size,
            devices_per_node=config.world_size,
            timeout_seconds=LIMIT_SECONDS,
            address=None,
        )
        self.stack.callback(cluster.stop)
        cluster.start()
        crew = Crew(factory=_FACTORY, nodes=[0] * config.world_size)
        self.group = WorkerGroup(cluster, self.plan, self.logs, crew, lambda _: None)
        self.stack.callback(self.group.stop)
        return {}

    def _figures(self, method: str) -> dict[str, float]:
        """Call all ranks; return sums of bytes, the largest difference, the minimum of the rest."""
        answers: list[dict[str, float]] = self.group.call_all(method)
        found = {name: [each[name] for each in answers] for name in answers[0]}
        return {name: combined(name, values) for name, values in found.items()}

    def _gap(self) -> dict[str, float]:
        """Generate with the engine; compare with the trainer's log-probs for the same weights."""
        actor, config = (
            worker_handle(self.group, self.plan, kind=self.platform.kind),
            self.plan.config,
        )
        prompts = [
            Prompt(uid=uid, token_ids=(*range(2 + uid, 18 + uid),), text="", answer="")
            for uid in range(config.world_size)
        ]
        sampling = Sampling(
            section=config.generate_config.sampling_config,
            stop_token_ids=(STOP_TOKEN,),
            samples_per_prompt=config.rl_config.n_samples_per_prompt,
        )
        rollouts = actor.generate_sequences(prompts, sampling, step=0)
        read = actor.compute_log_prob(rollouts.sequences())
        gap = logprob_gap(rollouts, read.logprobs_BT)
        return {
            "tokens": float(rollouts.response_mask_BT.sum()),
            _UNKNOWN: gap.get(UNKNOWN_GAPS, 0.0),
            _GAP: gap.get("logprob_gap/mean", math.nan),
            "max_gap_nats": gap.get("logprob_gap/max", math.nan),
        }

    def judged(self, figures: Mapping[str, float]) -> str:
        """Return what is wrong with the figures of a trial; empty if nothing is."""
        limit = logprob_gap_limit(self.plan.config, has_experts=False)
        assert limit is not None, "the self-test samples from the full distribution"
        for name, most in ((_DIFFERENCE, 0.0), (_UNKNOWN, 0.0), (_GAP, limit)):
            # NaN exceeds every limit.
            if name in figures and not figures[name] <= most:
                return f"{name.replace('_', ' ')} {figures[name]:.3g} must be at most {most:g}"
        return ""


def combined(name: str, values: Sequence[float]) -> float:
    """Return one figure for all ranks; a NaN difference stays NaN."""
    if name.endswith("_bytes"):
        return sum(values)
    return float(np.max(values)) if name == _DIFFERENCE else min(values)
