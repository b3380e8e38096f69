"""Section `rl_config.tracking`: destinations of metrics besides the run folder."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Seconds

TRACKERS = ("wandb", "swanlab", "mlflow")
"""Trackers of `mindrl.tracking.libraries`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class Tracking:
    """Destinations of the metrics of each step besides the run folder."""

    trackers: tuple[str, ...] = ()
    """`wandb`, `swanlab`, `mlflow`, or your own function; several are possible. A tracker never
    blocks or stops a run: [Trackers](../how-to/watch-a-run.md#trackers)."""
    project: str = "mindrl"
    """Project at the tracker; MLflow's experiment."""
    experiment: str | None = None
    """Name of the run at the tracker. None uses the end of the run folder's path."""
    offline: bool = False
    """Work without network: data to be sent is stored in the run folder, in `trackers/`."""
    sample_rows: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of samples in each table that `wandb`, `swanlab` and `mlflow` receive: one table with
    each evaluation and one every `sample_interval` steps. They also receive the report at the end
    of the run. 0 sends no table and no report: no prompt and no response leaves the run folder."""
    sample_interval: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps between two tables of training samples."""
    timeout_seconds: Seconds = 60
    """Longest time that a tracker may take for one record of metrics, and at the end of the run for
    all remaining records; after that the run continues without it."""
    prometheus_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port of the loopback address from which Prometheus reads the newest metrics. None opens no
    port."""
