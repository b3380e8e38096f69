"""Start the configured trackers."""

import re
from pathlib import Path

from mindrl.config.resume import recorded_config
from mindrl.config.run import RunConfig
from mindrl.observability.trackers import Tracker
from mindrl.tracking.job import TrackerJob
from mindrl.tracking.process import ProcessTracker
from mindrl.tracking.prometheus import HOST, PrometheusEndpoint

_NO_NAME = re.compile(r"\W+")


def opened_trackers(
    config: RunConfig, folder: Path, *, metrics: Path, logs: Path, goes_on: bool
) -> list[Tracker]:
    """Start the trackers of a run besides its own files.

    Args:
        config: The run's configuration.
        folder: Folder of their data.
        metrics: File that they read; it must exist.
        logs: Folder of their output.
        goes_on: The run continues after a step, or restarts after a fault; they continue too.

    Raises:
        OutputError: One of their files cannot be written.
    """
    asked, found = config.rl_config.tracking, list[Tracker]()
    for name in asked.trackers:
        plain = _NO_NAME.sub("_", name)
        job = TrackerJob(
            name=name,
            project=asked.project,
            experiment=asked.experiment or "-".join(folder.parts[-3:-1]),
            offline=asked.offline,
            timeout_seconds=asked.timeout_seconds,
            goes_on=goes_on,
            folder=str(folder / plain),
            metrics=str(metrics),
            config=recorded_config(config),
            sample_rows=asked.sample_rows,
            sample_interval=asked.sample_interval,
        )
        found.append(ProcessTracker(job, logs / f"tracker_{plain}.log"))
    if (port := port_of(config)) is not None:
        found.append(PrometheusEndpoint(port))
    return found


def port_of(config: RunConfig) -> int | None:
    """Return the port for Prometheus; None for a rollout job, as the train job uses it."""
    is_beside = config.spool_config.job == "rollout"
    return None if is_beside else config.rl_config.tracking.prometheus_port


def tracking_text(config: RunConfig) -> str:
    """Return a description of the destinations of metrics; empty without any."""
    asked = config.rl_config.tracking
    name = "" if asked.experiment is None else f"/{asked.experiment}"
    texts = ", with samples and the report" if asked.sample_rows else ""
    how = f"project {asked.project}{name}{', offline' if asked.offline else ''}{texts}"
    places = [f"{each} ({how})" for each in asked.trackers]
    if (port := port_of(config)) is not None:
        places.append(f"http://{HOST}:{port}/metrics")
    return "; ".join(places)
