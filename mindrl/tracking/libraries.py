"""The trackers that have a name. Each library is imported in the process of its tracker alone.

Tried with wandb 0.31.0, swanlab 0.10.3 and mlflow 3.17.2, without network. Who may write, and
where a server is, they read from the environment.
"""

import re
import secrets
from contextlib import suppress
from pathlib import Path

from mindrl.observability.metrics import Metrics
from mindrl.tracking.job import TrackerJob, TrackerState

_OTHER_CHARACTERS = re.compile(r"[^\w\-./ ]")
"""Of a name, which MLflow does not take."""
_PARAMS_AT_A_TIME = 100
_LONGEST_PARAM = 500


class WandbTracker:
    """Weights & Biases."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
        import wandb  # noqa: PLC0415

        self.id = state.id or secrets.token_hex(4)
        self.run = wandb.init(
            project=job.project,
            name=job.experiment,
            id=self.id,
            resume="allow",
            dir=job.folder,
            config=dict(job.config),
            allow_val_change=True,
            mode="offline" if job.offline else None,
            # Of this process, which is not the run, there is nothing to be seen.
            settings=wandb.Settings(console="off", disable_code=True, disable_git=True),
        )
        # Its own count takes no step a second time, such as the evaluation behind it.
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        self.place = str(Path(self.run.dir).parent) if self.run.offline else self.run.url

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of a step."""
        self.run.log({"step": step, **metrics})

    def close(self) -> None:
        """Send what is not sent."""
        self.run.finish()


class SwanlabTracker:
    """SwanLab."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
        import swanlab  # noqa: PLC0415

        # It knows a run again where it is online alone.
        self.id = state.id or secrets.token_hex(8)
        self.run = swanlab.init(
            project=job.project,
            name=job.experiment,
            id=self.id,
            resume="allow",
            log_dir=job.folder,
            config=dict(job.config),
            mode="offline" if job.offline else None,
        )
        self.place = job.folder
        # There is none offline, which the environment may say too.
        with suppress(ValueError):
            self.place = self.run.url

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of a step."""
        self.run.log(metrics, step=step)

    def close(self) -> None:
        """Send what is not sent."""
        self.run.finish()


class MlflowTracker:
    """MLflow; with no server in the environment, as where it is offline, a store of files."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
        import mlflow  # noqa: PLC0415
        from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE  # noqa: PLC0415

        if job.offline or not mlflow.is_tracking_uri_set():
            MLFLOW_ALLOW_FILE_STORE.set(True)
            mlflow.set_tracking_uri((Path(job.folder) / "mlruns").as_uri())
        experiment = mlflow.set_experiment(job.project)
        run = mlflow.start_run(run_id=state.id, run_name=job.experiment)
        self.end = mlflow.end_run
        self.log_metrics = mlflow.log_metrics
        self.id = run.info.run_id
        self.place = f"{mlflow.get_tracking_uri()} {experiment.experiment_id}/{self.id}"
        if state.id is None:
            params = [(name, str(value)[:_LONGEST_PARAM]) for name, value in job.config.items()]
            for at in range(0, len(params), _PARAMS_AT_A_TIME):
                mlflow.log_params(dict(params[at : at + _PARAMS_AT_A_TIME]))

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of a step."""
        named = {_OTHER_CHARACTERS.sub("_", name): value for name, value in metrics.items()}
        self.log_metrics(named, step=step)

    def close(self) -> None:
        """End the run there."""
        self.end()


LIBRARIES = {"wandb": WandbTracker, "swanlab": SwanlabTracker, "mlflow": MlflowTracker}
"""By their names, which are those of their packages."""
