"""Self-test of a machine: `mindrl doctor --self-test`."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mindrl.errors import ConfigError
from mindrl.launch.interrupts import interrupts_unwrapped, signals_as_errors
from mindrl.observability.terminal import printable
from mindrl.observability.units import traffic_text
from mindrl.platform.device import DeviceKind, Platform, choose_platform
from mindrl.platform.environment import prepare_driver, ray_address
from mindrl.programs.exits import FAILED, counted, print_json, stdout_unspoilt
from mindrl.programs.train import require_engines

if TYPE_CHECKING:
    from mindrl.self_test.trials import Trial

_CORES = 2
"""Workers on a machine without devices."""
_UNITS = {"_gb_per_second": " GB/s", "_nats": " nats", "seconds": " s"}
"""Unit by the suffix of a figure's name."""


@signals_as_errors()
def self_test(kind: DeviceKind, *, as_json: bool, eager: bool) -> int:
    """Test all devices of a kind on this machine, `eager` without graphs; returns the exit code.

    Raises:
        MindrlError: The test cannot start.
    """
    if (address := ray_address()) is not None:
        raise ConfigError(
            f"RAY_ADDRESS={address}: the self-test starts its own Ray on this machine; unset "
            "the variable"
        )
    require_engines()
    platform = choose_platform(kind, "--device ")
    devices = platform.local_devices()
    devices = min(devices, _CORES) if kind == "cpu" else devices
    return _tried(platform, devices, as_json=as_json, eager=eager)


def _tried(platform: Platform, devices: int, *, as_json: bool, eager: bool) -> int:
    """Print each trial when it ends; after a failure the folder with the logs is kept."""
    folder, trials = Path(tempfile.mkdtemp(prefix="mindrl-self-test-")), []
    console = Console(highlight=False, soft_wrap=True, quiet=as_json)
    failed = 0
    try:
        with stdout_unspoilt() if as_json else nullcontext():
            for trial in _trials(platform, devices, folder, eager):
                trials.append(trial)
                failed += not trial.passed
                console.print(line_of(trial))
    finally:
        if not failed:
            shutil.rmtree(folder)
    kept = str(folder) if failed else None
    if as_json:
        said = {"device": platform.kind, "devices": devices, "failed": failed, "folder": kept}
        print_json(said | {"trials": [asdict(trial) for trial in trials]})
    else:
        where = f"; worker logs: {folder}/logs" if failed else ""
        of = counted(devices, "device")
        console.print(f"{platform.kind}, {of}: {failed} of {len(trials)} trials failed{where}")
    return FAILED if failed else 0


def _trials(platform: Platform, devices: int, folder: Path, eager: bool) -> Iterator["Trial"]:
    # Must precede the import of Ray.
    prepare_driver()
    # Imported late: they load torch and Ray, which an early error does not need.
    from mindrl.self_test.plan import make_model, self_test_plan  # noqa: PLC0415
    from mindrl.self_test.trials import SelfTest  # noqa: PLC0415

    model, logs = folder / "model", folder / "logs"
    logs.mkdir()
    make_model(model)
    with interrupts_unwrapped():
        plan = self_test_plan(model, platform, devices, eager=eager)
        yield from SelfTest(plan, platform, logs).trials()


def line_of(trial: "Trial") -> Text:
    """Return the line of a trial: its name, its figures, and why it failed."""
    verdict, style = ("pass", "green") if trial.passed else ("FAIL", "bold red")
    figures = ", ".join(_figure(name, value) for name, value in trial.figures.items())
    said = "; ".join(filter(None, (figures, trial.error)))
    return Text(f"{verdict}  ", style=style).append(
        printable(f"{trial.what}: {said}"), style="default"
    )


def _figure(name: str, value: float) -> str:
    """Return a figure with its unit."""
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')} {traffic_text(int(value))}"
    for end, unit in _UNITS.items():
        if name.endswith(end):
            return f"{name.removesuffix(end).replace('_', ' ')} {value:.3g}{unit}".lstrip()
    return f"{name.replace('_', ' ')} {value:.3g}"
