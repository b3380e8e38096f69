"""Proposal of a whole run: `mindrl plan run ...`. Needs no torch."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mindrl.config.backends import TRAINING_BACKENDS, TrainingBackend
from mindrl.config.text import config_text, needs_yaml_suffix, write_new
from mindrl.errors import ConfigError, ModelError
from mindrl.observability.terminal import print_table, say
from mindrl.observability.units import GIB, memory_text
from mindrl.platform.device_models import DEVICE_MODELS, EXAMPLE_DEVICE, device_model
from mindrl.platform.garbage import planning
from mindrl.preflight.shipped import config_folder, families_without_a_run, named_description
from mindrl.programs.arguments import Program, count, gib
from mindrl.programs.exits import FAILED, print_json, report, written
from mindrl.programs.orders import add_length_options, chosen_orders, order_figures, print_orders
from mindrl.programs.placement import name_of
from mindrl.programs.search_progress import search_progress
from mindrl.propose.candidates import MOST_DEVICES, Task, TeacherModel, written_values
from mindrl.propose.costs import bubble_share
from mindrl.propose.engines import Judged, Ranked, compared_figures, ranked
from mindrl.propose.figures import LEAST_SECONDS, figures_of, reasons, slowdown
from mindrl.propose.orders import PlacedOrder
from mindrl.propose.search import Moved, Notify, Proposal, Search, remedies, search

_LEAST_SHARE = 0.005
"""Smaller shares would be rounded to 0%."""
_AMOUNTS = {
    "--prompt-tokens": (2048, "longest prompt"),
    "--response-tokens": (2048, "longest response"),
    "--prompts-per-step": (32, "prompts per step"),
    "--samples": (8, "responses per prompt"),
}
_COLUMNS = {
    "": "{place}",
    "engine": "{engine}",
    "training": "{training}",
    "rollout": "{rollout}",
    "step": "{seconds:.1f} s",
    "device": "{device:}",
    "host": "{host:}",
    "reshard": "{reshard:}",
}
_ALL = "all"
_END = "", "Seconds are estimates for ordering the proposals: docs/how-to/plan-a-run.md"
_EXAMPLE = f"""\
example:
  mindrl plan run --model Qwen2.5-7B --devices 16 --device {EXAMPLE_DEVICE} \\
      -o configs/mine.yaml

devices: {", ".join(DEVICE_MODELS)}

Only config.json of the model folder is read; the sizes of well-known models are shipped. The exit
code is 1 if no layout fits. docs/how-to/plan-a-run.md explains the cost model.
"""


def _add_options(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--model", required=True, help="folder of a Hugging Face model, or a well-known name")
    add("--devices", required=True, type=count, metavar="N", help="total number of devices")
    add("--device", required=True, metavar="NAME", help="name of the device; see below")
    add("--devices-per-node", type=count, metavar="N", help="default: usual for the device")
    for option, (default, text) in _AMOUNTS.items():
        what = f"{text} (default: {default})"
        add(option, type=count, default=default, metavar="N", help=what)
    host = "host memory of a node for offloading (default: usual for the device)"
    add("--host-memory-gib", type=gib, dest="host_bytes", metavar="N", help=host)
    add("--algorithm", choices=("grpo", "ppo"), default="grpo", help="default: %(default)s")
    teacher = "learn from this model instead of rewards: a folder, or a well-known name"
    add("--teacher", metavar="MODEL", help=teacher)
    engine = "training engine; repeat the option to compare several (default: all that differ)"
    add("--engine", choices=(*TRAINING_BACKENDS, _ALL), action="append", default=[], help=engine)
    top = "number of proposals (default: 5); the best one of each other engine follows"
    add("--top", type=count, default=5, metavar="N", help=top)
    add_length_options(run)
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")
    add("-o", "--output", metavar="OURS.yaml", help="write the first to a new configuration")


@planning()
def _run(options: argparse.Namespace) -> int:
    if options.output is not None:
        needs_yaml_suffix(options.output)
    engines = tuple(dict.fromkeys(options.engine)) or (_ALL,)
    if _ALL in engines or len(engines) > 1:
        return _compare(options, TRAINING_BACKENDS if _ALL in engines else engines)
    task = _task(options, engines[0])
    with search_progress() as notify:
        found = search(task, options.top, notify)
        ways = [] if found.proposals else [*remedies(task, found, notify)]
    if ways:
        return report(ways, FAILED)
    judged = Judged(task=task, found=found)
    rows = [Ranked(judged=judged, at=at, rank=at + 1) for at in range(len(found.proposals))]
    _answer(options, rows, figures_of(task, found), [_legal(found)])
    return 0


def _compare(options: argparse.Namespace, engines: Sequence[TrainingBackend]) -> int:
    """Compare several engines and rank their layouts."""
    with search_progress() as notify:
        every, refused = _searched(options, engines, notify)
        judged = [each for each in every if each.found.proposals]
        for each in every:
            if each not in judged:
                ways = remedies(each.task, each.found, notify)
                # If another engine fits, one remedy for this one is enough.
                refused[each.task.engine] = "\n".join(islice(ways, 1 if judged else None))
    if not judged:
        named = ((name, text.splitlines()) for name, text in refused.items())
        return report((f"{name}: {line}" for name, lines in named for line in lines), FAILED)
    rows = ranked(judged, options.top)
    legal = [f"{each.task.engine}: {_legal(each.found)}" for each in judged]
    legal += [*(f"{engine}: refused: {reason}" for engine, reason in refused.items()), ""]
    _answer(options, rows, compared_figures(judged, refused, rows), legal)
    return 0


def _answer(
    options: argparse.Namespace,
    rows: Sequence[Ranked],
    figures: Mapping[str, object],
    legal: Sequence[str],
) -> None:
    """Print the proposals as JSON or text, and write the first to a file if asked."""
    first, task = rows[0], rows[0].judged.task
    orders = chosen_orders(options, task, first.proposal)
    if options.output is not None:
        write_new(options.output, _file_text(task, first.proposal, orders))
    if options.json:
        print_json({**figures, "orders": order_figures(orders)})
        return
    say(*_question(task), *legal)
    if task.names_engine:
        print_table(map(_row, rows), _COLUMNS)
    for each in rows:
        say(*_block(first, each))
    _print_rest(options, task, orders)


def _searched(
    options: argparse.Namespace, engines: Sequence[TrainingBackend], notify: Notify
) -> tuple[list[Judged], dict[str, str]]:
    """Search the layouts of each engine; returns also, by engine, why it has none.

    Raises:
        ConfigError: No engine has a layout.
    """
    every: list[Judged] = []
    refused: dict[str, str] = {}
    for engine in engines:
        try:
            task = replace(_task(options, engine), names_engine=True)
            # For a model family with a mindrl network, fsdp has a subset of archon's layouts and
            # costs.
            is_ours = task.model.other is None or task.model.reads_images
            if engine == "fsdp" and is_ours and engine not in options.engine:
                continue
            every.append(Judged(task=task, found=search(task, options.top, notify)))
        except (ConfigError, ModelError) as error:
            refused[engine] = str(error)
    if not every:
        same = set(refused.values())
        named = (f"{engine}: {reason}" for engine, reason in refused.items())
        raise ConfigError("\n".join(same if len(same) == 1 else named))
    return every, refused


def _task(options: argparse.Namespace, engine: TrainingBackend) -> Task:
    """Return the task that the options describe.

    Raises:
        ConfigError: The device is not known, or the devices do not fill their nodes.
        ModelError: The model is not known.
    """
    device, host = device_model(options.device), options.host_bytes
    per_node = options.devices_per_node or device.devices_per_node
    if options.devices > MOST_DEVICES:
        raise ConfigError(f"--devices {options.devices}: the maximum is {MOST_DEVICES}")
    if options.devices > per_node and options.devices % per_node:
        below = options.devices // per_node * per_node
        raise ConfigError(
            f"--devices {options.devices} must fill nodes of {per_node}; nearest: {below}, "
            f"{below + per_node}; or set --devices-per-node"
        )
    if options.teacher and options.algorithm == "ppo":
        raise ConfigError("--algorithm ppo trains a critic of rewards; leave it out with --teacher")
    return Task(
        load=_folder_of(options.model),
        model=named_description(options.model, families_without_a_run(engine)),
        device=device,
        devices=options.devices,
        devices_per_node=per_node,
        host_bytes=int(device.host_memory_gib * GIB) if host is None else host,
        prompt_tokens=options.prompt_tokens,
        response_tokens=options.response_tokens,
        prompts=options.prompts_per_step,
        samples=options.samples,
        algorithm="distill" if options.teacher else options.algorithm,
        teacher=_teacher(options.teacher, engine) if options.teacher else None,
        engine=engine,
    )


def _teacher(named: str, engine: TrainingBackend) -> TeacherModel:
    model = named_description(named, families_without_a_run(engine))
    return TeacherModel(load=_folder_of(named), model=model)


def _folder_of(named: str) -> str:
    """Return the model folder for a configuration: the named one, or where it is expected."""
    path = Path(named)
    folder = path.parent if path.suffix == ".json" else path
    return str(folder) if folder.is_dir() else f"./models/{folder.name}"


def _row(each: Ranked) -> dict[str, object]:
    fit, moved, task = each.proposal.fit, each.proposal.moved, each.judged.task
    training, rollout = (text.partition(":")[2] for text in task.texts(each.proposal.candidate))
    return {
        "place": _place(each),
        "engine": task.engine,
        "training": training,
        "rollout": rollout,
        "seconds": fit.step_seconds,
        "device": memory_text(fit.with_activations_bytes),
        "host": _amount(fit.host_bytes),
        "reshard": _amount(moved.received) if moved else "not planned",
    }


def _place(each: Ranked) -> str:
    return f"{each.rank}." if each.rank else "-"


def _question(task: Task) -> Iterator[str]:
    what = f"{Path(task.load).name} on {task.devices} x {task.device.name}"
    lengths = f"{task.prompt_tokens} + {task.response_tokens} tokens"
    yield f"{what}, {task.ranks_per_node} per node"
    if task.teacher is not None:
        yield f"taught by {Path(task.teacher.load).name}"
    yield f"{task.sequences} sequences per step, each assumed to have {lengths}"


def _legal(found: Search) -> str:
    legal = f"training layouts: {len(found.training)}, rollout: {len(found.rollout)}"
    return f"legal {legal}; pairs that fit by memory: {found.fitting}"


def _block(first: Ranked, each: Ranked) -> Iterator[str]:
    """Yield the lines of a proposal: its layouts, its figures, its reasons or its slowdown."""
    task, proposal = each.judged.task, each.proposal
    yield ""
    yield f"{_place(each)} {' -> '.join(task.texts(proposal.candidate))}"
    yield from _facts(task, proposal)
    own: Iterable[str] = [slowdown(first.proposal.fit, proposal.fit)]
    if each is first:
        own = reasons(task, each.judged.found, proposal)
    yield from (f"   - {reason}" for reason in own)


def _print_rest(options: argparse.Namespace, task: Task, orders: Sequence[PlacedOrder]) -> None:
    output = options.output
    if orders:
        print_orders(options, task, orders)
    say(*_END)
    if output is not None:
        folder = Path(output).parent.absolute()
        say("", written(output, names_folder=folder != config_folder()))


def _facts(task: Task, proposal: Proposal) -> Iterator[str]:
    fit, layout = proposal.fit, proposal.candidate.training
    device, host = memory_text(task.device.memory_bytes), memory_text(task.host_bytes)
    shares = [
        f"{name} {seconds:.1f} ({_percent(seconds / fit.step_seconds)})"
        for name, seconds in sorted(fit.seconds.items(), key=lambda item: -item[1])
        if seconds >= LEAST_SECONDS
    ]
    rows = {
        "step": f"{fit.step_seconds:.1f} s: {', '.join(shares)}",
        "device": f"peak {memory_text(fit.peak_bytes)} in {fit.peak_moment.replace('_', ' ')}, "
        f"with activations {memory_text(fit.with_activations_bytes)}, of {device}",
        "host": f"{_amount(fit.host_bytes)} of {host} per node",
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
    return memory_text(nbytes) if nbytes else "0 GiB"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _LEAST_SHARE else "<1%"


def _file_text(task: Task, proposal: Proposal, orders: Sequence[PlacedOrder]) -> str:
    """Return the configuration file of a proposal, or of the most useful order of steps."""
    what = f"{Path(task.load).name} on {task.devices} x {task.device.name}"
    values = written_values(task, proposal.candidate, proposal.fit.settings)
    candidate, order = proposal.candidate, ""
    if orders:
        values, candidate = orders[0].config, orders[0].candidate
        order = f", {name_of(orders[0].way)}"
    layouts = " -> ".join(task.texts(candidate)) + order
    header = [
        f"{what}, proposed by mindrl plan run: {layouts}.",
        "Set paths, steps and learning rate.",
    ]
    return config_text(values, header=header, comments={}, has_critic=task.has_critic)


PROGRAM = Program(
    about="Propose training and rollout layouts that fit the devices, ranked by the estimated time "
    "of a step, with the reasons.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_run,
    bad_input=(ModelError,),
)
