"""The trackers that have a name. Each library is imported in the process of its tracker alone.

Tried with wandb 0.31.0, swanlab 0.10.3 and mlflow 3.17.2, without network. Who may write, and
where a server is, they read from the environment.
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
"""Of a name, which MLflow does not take."""
_PARAMS_AT_A_TIME = 100
_LONGEST_PARAM = 500
_STEPS_IN_A_TABLE = 1000


class LibraryTracker(ABC):
    """A tracker that takes samples as tables and the report, and knows how its run ended."""

    id: str
    place: str

    def __init__(self, state: TrackerState) -> None:
        """Remember the state, which has the status of the run before `close`."""
        self.state = state

    @abstractmethod
    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of a step."""

    @abstractmethod
    def table(self, table: SampleTable) -> None:
        """Keep samples of a step as a table."""

    @abstractmethod
    def report(self, path: Path) -> None:
        """Keep the page of the run as an artefact."""

    @abstractmethod
    def close(self) -> None:
        """Send what is not sent, and end the run there with its status."""


_ENDED_WELL = ("completed", "stopped")
"""Status of a run that ended as it should; `stopped` where a function of its user ended it."""


class WandbTracker(LibraryTracker):
    """Weights & Biases."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
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

    def table(self, table: SampleTable) -> None:
        """Keep samples of a step as a table."""
        made = self.wandb.Table(columns=[*COLUMNS], data=table.rows)
        self.run.log({"step": table.step, f"samples/{table.kind}": made})

    def report(self, path: Path) -> None:
        """Keep the page of the run as an artefact."""
        artifact = self.wandb.Artifact(f"report-{self.id}", type="report")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """Send what is not sent, and end the run there with its status."""
        status = self.state.run_status
        # Its own code for a run that was ended from outside, as by Ctrl-C, is 255.
        codes = {"failed": 1, **dict.fromkeys(_ENDED_WELL, 0)}
        self.run.finish(exit_code=codes.get(status or KILLED, 255))


class SwanlabTracker(LibraryTracker):
    """SwanLab."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
        import swanlab  # noqa: PLC0415

        super().__init__(state)
        self.new_table = swanlab.echarts.Table
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

    def table(self, table: SampleTable) -> None:
        """Keep samples of a step as a table."""
        made = self.new_table()
        made.add([*COLUMNS], table.rows)
        self.run.log({f"samples/{table.kind}": made}, step=table.step)

    def report(self, path: Path) -> None:
        """Keep the page of the run as a file of it."""
        self.run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self) -> None:
        """Send what is not sent, and end the run there with its status."""
        status = self.state.run_status
        if status in _ENDED_WELL:
            self.run.finish(state="success")
        elif status == "failed":
            self.run.finish(state="crashed", error="the run failed; its summary.json has more")
        else:
            self.run.finish(state="aborted")


class MlflowTracker(LibraryTracker):
    """MLflow; with no server in the environment, as where it is offline, a store of files."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        """Begin a run there, or go on with it."""
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
        """Keep the metrics of a step."""
        named = {_OTHER_CHARACTERS.sub("_", name): value for name, value in metrics.items()}
        self.mlflow.log_metrics(named, step=step)

    def table(self, table: SampleTable) -> None:
        """Keep samples of a step in a table with those of the steps near it."""
        kind = _OTHER_CHARACTERS.sub("_", table.kind).replace(" ", "_")
        columns = {column: [row[at] for row in table.rows] for at, column in enumerate(COLUMNS)}
        # The library reads a table and writes it anew for each addition: one file would grow slow.
        first = table.step // _STEPS_IN_A_TABLE * _STEPS_IN_A_TABLE
        self.mlflow.log_table(columns, f"samples/{kind}/from_step_{first:08}.json")

    def report(self, path: Path) -> None:
        """Keep the page of the run as an artefact."""
        self.mlflow.log_artifact(str(path))

    def close(self) -> None:
        """End the run there with its status."""
        status = self.state.run_status
        statuses = {"failed": "FAILED", **dict.fromkeys(_ENDED_WELL, "FINISHED")}
        self.mlflow.end_run(statuses.get(status or KILLED, "KILLED"))


LIBRARIES = {"wandb": WandbTracker, "swanlab": SwanlabTracker, "mlflow": MlflowTracker}
"""By their names, which are those of their packages."""
