"""Built-in trackers. Each library is imported only in the process of its tracker.

Tested with wandb 0.31.0, swanlab 0.10.3 and mlflow 3.17.2, without network. They read credentials
and server addresses from the environment.
"""

import re
import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from mindrl.observability.metrics import Metrics
from mindrl.tracking.job import KILLED, TrackerJob, TrackerState
from mindrl.tracking.sample_tables import COLUMNS, SampleTable

_OTHER_CHARACTERS = re.compile(r"[^\w\-./ ]")
"""Characters that MLflow does not accept in names."""
_PARAMS_AT_A_TIME = 100
_LONGEST_PARAM = 500
_STEPS_IN_A_TABLE = 1000


class LibraryTracker(ABC):
    """A tracker that accepts tables of samples and the report, and gets the run's end status."""

    id: str
    place: str

    def __init__(self, state: TrackerState) -> None:
        """Set the state, which has the status of the run before `close`."""
        self.state = state

    @abstractmethod
    def log(self, step: int, metrics: Metrics) -> None:
        """Store the metrics of a step."""

    @abstractmethod
    def table(self, table: SampleTable) -> None:
        """Store samples of a step as a table."""

    @abstractmethod
    def report(self, path: Path) -> None:
        """Store the page of the run as an artefact."""

    @abstractmethod
    def close(self) -> None:
        """Send the remaining data, and end the tracker's run with its status."""


_ENDED_WELL = ("completed", "stopped")
"""Status of a regular end; `stopped` if a callback ended the run."""


class WandbTracker(LibraryTracker):
    """Weights & Biases."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Start a run, or continue it."""
        import wandb  # noqa: PLC0415

        super().__init__(state)
        self.wandb = wandb
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
            # This process is not the run: do not record its output, code and git state.
            settings=wandb.Settings(console="off", disable_code=True, disable_git=True),
        )
        # wandb's own counter accepts no step twice, such as that of an evaluation after the step.
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        self.place = str(Path(self.run.dir).parent) if self.run.offline else self.run.url

    def log(self, step: int, metrics: Metrics) -> None:
        """Store the metrics of a step."""
        self.run.log({"step": step, **metrics})

    def table(self, table: SampleTable) -> None:
        """Store samples of a step as a table."""
        made = self.wandb.Table(columns=[*COLUMNS], data=table.rows)
        self.run.log({"step": table.step, f"samples/{table.kind}": made})

    def report(self, path: Path) -> None:
        """Store the page of the run as an artefact."""
        artifact = self.wandb.Artifact(f"report-{self.id}", type="report")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """Send the remaining data, and end the tracker's run with its status."""
        status = self.state.run_status
        # wandb's code for a run that was ended from outside, for example by Ctrl-C, is 255.
        codes = {"failed": 1, **dict.fromkeys(_ENDED_WELL, 0)}
        self.run.finish(exit_code=codes.get(status or KILLED, 255))


class SwanlabTracker(LibraryTracker):
    """SwanLab."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Start a run, or continue it."""
        import swanlab  # noqa: PLC0415

        super().__init__(state)
        self.new_table = swanlab.echarts.Table
        # SwanLab can continue a run only online.
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
        # There is none offline, which the environment may also set.
        with suppress(ValueError):
            self.place = self.run.url

    def log(self, step: int, metrics: Metrics) -> None:
        """Store the metrics of a step."""
        self.run.log(metrics, step=step)

    def table(self, table: SampleTable) -> None:
        """Store samples of a step as a table."""
        made = self.new_table()
        made.add([*COLUMNS], table.rows)
        self.run.log({f"samples/{table.kind}": made}, step=table.step)

    def report(self, path: Path) -> None:
        """Store the page of the run as a file."""
        self.run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self) -> None:
        """Send the remaining data, and end the tracker's run with its status."""
        status = self.state.run_status
        if status in _ENDED_WELL:
            self.run.finish(state="success")
        elif status == "failed":
            self.run.finish(state="crashed", error="the run failed; see its summary.json")
        else:
            self.run.finish(state="aborted")


class MlflowTracker(LibraryTracker):
    """MLflow; offline, or without a server in the environment, it uses a store of files."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Start a run, or continue it."""
        import mlflow  # noqa: PLC0415
        from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE  # noqa: PLC0415

        super().__init__(state)
        if job.offline or not mlflow.is_tracking_uri_set():
            MLFLOW_ALLOW_FILE_STORE.set(True)
            mlflow.set_tracking_uri((Path(job.folder) / "mlruns").as_uri())
        experiment = mlflow.set_experiment(job.project)
        run = mlflow.start_run(run_id=state.id, run_name=job.experiment)
        self.mlflow = mlflow
        self.id = run.info.run_id
        self.place = f"{mlflow.get_tracking_uri()} {experiment.experiment_id}/{self.id}"
        if state.id is None:
            params = [(name, str(value)[:_LONGEST_PARAM]) for name, value in job.config.items()]
            for at in range(0, len(params), _PARAMS_AT_A_TIME):
                mlflow.log_params(dict(params[at : at + _PARAMS_AT_A_TIME]))

    def log(self, step: int, metrics: Metrics) -> None:
        """Store the metrics of a step."""
        named = {_OTHER_CHARACTERS.sub("_", name): value for name, value in metrics.items()}
        self.mlflow.log_metrics(named, step=step)

    def table(self, table: SampleTable) -> None:
        """Store samples of a step in a table with those of nearby steps."""
        kind = _OTHER_CHARACTERS.sub("_", table.kind).replace(" ", "_")
        columns = {column: [row[at] for row in table.rows] for at, column in enumerate(COLUMNS)}
        # The library reads and rewrites a table for each addition: a single file would become slow.
        first = table.step // _STEPS_IN_A_TABLE * _STEPS_IN_A_TABLE
        self.mlflow.log_table(columns, f"samples/{kind}/from_step_{first:08}.json")

    def report(self, path: Path) -> None:
        """Store the page of the run as an artefact."""
        self.mlflow.log_artifact(str(path))

    def close(self) -> None:
        """End the tracker's run with its status."""
        status = self.state.run_status
        statuses = {"failed": "FAILED", **dict.fromkeys(_ENDED_WELL, "FINISHED")}
        self.mlflow.end_run(statuses.get(status or KILLED, "KILLED"))


LIBRARIES = {"wandb": WandbTracker, "swanlab": SwanlabTracker, "mlflow": MlflowTracker}
"""Trackers by name, which is also their package's name."""
