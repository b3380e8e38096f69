"""A whole run proposed, as a sub-command: `python cli/plan.py run ...`. Needs no torch."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mindrl.config.backends import TRAINING_BACKEND, TRAINING_BACKENDS
from mindrl.config.text import config_text, needs_yaml_suffix, write_new
from mindrl.errors import ConfigError
from mindrl.observability.terminal import say
from mindrl.observability.units import GIB, memory_text
from mindrl.platform.device_models import DEVICE_MODELS, EXAMPLE_DEVICE, device_model
from mindrl.preflight.shipped import config_folder, planned_description
from mindrl.programs.arguments import Plan, count, gib
from mindrl.programs.exits import FAILED, print_json, report, written
from mindrl.propose.candidates import MOST_DEVICES, Task, config_values
from mindrl.propose.costs import bubble_share
from mindrl.propose.figures import LEAST_SECONDS, behind, figures_of, reasons
from mindrl.propose.search import Moved, Proposal, Search, Tell, remedies, search

_QUIET_SECONDS = 1.0
_LEAST_SHARE = 0.005
"""Less would be printed as 0%."""
_AMOUNTS = {
    "--prompt-tokens": (2048, "longest prompt"),
    "--response-tokens": (2048, "longest response"),
    "--prompts-per-step": (32, "prompts of a step"),
    "--samples": (8, "responses to each prompt"),
}
_EXAMPLE = f"""\
example:
  python cli/plan.py run --model Qwen2.5-7B --devices 16 --device {EXAMPLE_DEVICE} \\
      -o configs/mine.yaml

devices: {", ".join(DEVICE_MODELS)}

Of the model folder only config.json is read; the sizes of well-known models are shipped. The exit
code is 1 where nothing fits. docs/how-to/plan-a-run.md states the cost model.
"""


def _add_options(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--model", required=True, help="folder of a Hugging Face model, or a well-known name")
    add("--devices", required=True, type=count, metavar="N", help="devices in all")
    add("--device", required=True, metavar="NAME", help="which device; see below")
    add("--devices-per-node", type=count, metavar="N", help="default: as is usual for the device")
    for option, (default, text) in _AMOUNTS.items():
        what = f"{text} (default: {default})"
        add(option, type=count, default=default, metavar="N", help=what)
    host = "memory of a node for what leaves its devices (default: usual for the device)"
    add("--host-memory-gib", type=gib, dest="host_bytes", metavar="N", help=host)
    add("--algorithm", choices=("grpo", "ppo"), default="grpo", help="default: %(default)s")
    engine = "what trains (default: %(default)s)"
    add("--engine", choices=TRAINING_BACKENDS, default=TRAINING_BACKEND, help=engine)
    add("--top", type=count, default=5, metavar="N", help="how many proposals (default: 5)")
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")
    add("-o", "--output", metavar="OURS.yaml", help="write the first as a new configuration")


def _run(options: argparse.Namespace) -> int:
    if options.output is not None:
        needs_yaml_suffix(options.output)
    task = _task(options)
    with _progress() as tell:
        found = search(task, options.top, tell)
        ways = [] if found.proposals else [*remedies(task, found, tell)]
    if ways:
        return report(ways, FAILED)
    if options.output is not None:
        write_new(options.output, _file_text(task, found.proposals[0]))
    if options.json:
        print_json(figures_of(task, found))
    else:
        _print(task, found)
        if options.output is not None:
            folder = Path(options.output).parent.absolute()
            say("", written(options.output, names_folder=folder != config_folder()))
    return 0


def _task(options: argparse.Namespace) -> Task:
    """Read what is asked for.

    Raises:
        ConfigError: The device is not known, or the devices do not fill their nodes.
        ModelError: The model is not known.
    """
    device, host = device_model(options.device), options.host_bytes
    per_node = options.devices_per_node or device.devices_per_node
    if options.devices > MOST_DEVICES:
        raise ConfigError(f"--devices {options.devices}: at most {MOST_DEVICES} can be planned")
    if options.devices > per_node and options.devices % per_node:
        below = options.devices // per_node * per_node
        raise ConfigError(
            f"--devices {options.devices} must fill nodes of {per_node}; nearest: {below}, "
            f"{below + per_node}; or say --devices-per-node"
        )
    path = Path(options.model)
    folder = path.parent if path.suffix == ".json" else path
    return Task(
        load=str(folder) if folder.is_dir() else f"./models/{folder.name}",
        model=planned_description(options.model),
        device=device,
        devices=options.devices,
        devices_per_node=per_node,
        host_bytes=int(device.host_memory_gib * GIB) if host is None else host,
        prompt_tokens=options.prompt_tokens,
        response_tokens=options.response_tokens,
        prompts=options.prompts_per_step,
        samples=options.samples,
        algorithm=options.algorithm,
        engine=options.engine,
    )


@contextmanager
def _progress() -> Iterator[Tell]:
    """Show how far the search is, once it has taken a moment, where somebody looks."""
    began, console = time.monotonic(), Console(stderr=True)
    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    progress = Progress(*columns, console=console, transient=True)
    bar = progress.add_task("")
    shown = False

    def tell(text: str) -> None:
        nonlocal shown
        progress.update(bar, description=text)
        if not shown and console.is_terminal and time.monotonic() - began > _QUIET_SECONDS:
            shown = True
            progress.start()

    try:
        yield tell
    finally:
        if shown:
            progress.stop()


def _print(task: Task, found: Search) -> None:
    what = f"{Path(task.load).name} on {task.devices} x {task.device.name}"
    legal = f"training layouts: {len(found.training)}, rollout: {len(found.rollout)}"
    lengths = f"up to {task.prompt_tokens} + {task.response_tokens} tokens"
    lines = [
        f"{what}, {task.ranks_per_node} a node",
        f"{task.sequences} sequences a step of {lengths}, all taken to be that long",
        f"legal {legal}; pairs that fit by their bytes alone: {found.fitting}",
    ]
    first = found.proposals[0]
    for at, proposal in enumerate(found.proposals, start=1):
        lines += ["", f"{at}. {' -> '.join(task.texts(proposal.candidate))}"]
        lines += _facts(task, proposal)
        own = reasons(task, found, first) if at == 1 else [behind(first.fit, proposal.fit)]
        lines += [f"   - {reason}" for reason in own]
    lines += ["", "Seconds are estimates that order the proposals: docs/how-to/plan-a-run.md"]
    say(*lines)


def _facts(task: Task, proposal: Proposal) -> Iterator[str]:
    fit, layout = proposal.fit, proposal.candidate.training
    device, host = memory_text(task.device.memory_bytes), memory_text(task.host_bytes)
    shares = [
        f"{name} {seconds:.1f} ({_percent(seconds / fit.step_seconds)})"
        for name, seconds in sorted(fit.seconds.items(), key=lambda item: -item[1])
        if seconds >= LEAST_SECONDS
    ]
    rows = {
        "a step": f"{fit.step_seconds:.1f} s: {', '.join(shares)}",
        "device": f"peak {memory_text(fit.peak_bytes)} in {fit.peak_moment.replace('_', ' ')}, "
        f"with activations {memory_text(fit.with_activations_bytes)}, of {device}",
        "host": f"{_amount(fit.host_bytes)} of {host} on a node",
        "reshard": _moved(proposal.moved),
        "bubble": f"{bubble_share(task, layout, fit.settings):.1%}",
    }
    for name, text in rows.items():
        yield f"   {name:<7}  {text}"


def _moved(moved: Moved | None) -> str:
    if moved is None:
        return "not planned"
    received, across = _amount(moved.received), _amount(moved.across_nodes)
    return f"{received} received by all ranks, {across} across nodes"


def _amount(nbytes: int) -> str:
    return memory_text(nbytes) if nbytes else "nothing"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _LEAST_SHARE else "<1%"


def _file_text(task: Task, proposal: Proposal) -> str:
    """Write the configuration of a proposal."""
    what = f"{Path(task.load).name} on {task.devices} x {task.device.name}"
    layouts = " -> ".join(task.texts(proposal.candidate))
    header = [
        f"{what}, as mindrl plan run proposes: {layouts}.",
        "Paths, steps and learning rate are the user's own.",
    ]
    values = config_values(task, proposal.candidate, proposal.fit.settings)
    return config_text(values, header=header, comments={}, has_critic=task.has_critic)


RUN = Plan(
    summary="layouts and settings for a model on so many devices, the best first",
    about="Propose training and rollout layouts that fit the devices, ranked by what a "
    "step would cost, with the reasons.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_run,
)
