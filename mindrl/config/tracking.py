"""Section `rl_config.tracking`: where the metrics go besides the run folder."""

from typing import Annotated

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Seconds

TRACKERS = ("wandb", "swanlab", "mlflow")
"""Those of `mindrl.tracking.libraries`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class Tracking:
    """Where the metrics of each step go besides the run folder."""

    trackers: tuple[str, ...] = ()
    """`wandb`, `swanlab`, `mlflow`, or a function of your own, several at once. What one of them
    does never holds a run up: [Trackers](../how-to/trackers.md)."""
    project: str = "mindrl"
    """Project there; the experiment of MLflow."""
    experiment: str | None = None
    """Name of the run there. None takes the end of the run folder's path."""
    offline: bool = False
    """Without network: what would be sent lies in the run folder, below `trackers/`."""
    sample_rows: Annotated[int, Field(ge=0, le=1000)] = 0
    """Samples in each table that `wandb`, `swanlab` and `mlflow` get: one with each evaluation and
    one each `sample_interval` steps. They get the report of the run at its end too. 0 sends no
    table and no report: no prompt and no response leaves the run folder."""
    sample_interval: PositiveInt = 10
    """Steps between two tables of training samples."""
    timeout_seconds: Seconds = 60
    """Longest time that a tracker may take for one record of metrics, and at the end of the run for
    all that it has not taken by then; beyond it the run goes on without it."""
    prometheus_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port of the loopback address where Prometheus finds the newest metrics. None opens none."""
