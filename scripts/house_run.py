"""Figures of the house that runs give: what they execute, how often they plan, what they cost."""

import ast
import re
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from house_entries.entered_functions import COUNTED, FOLDER, outermost_functions
from house_text import Figure, Sources, read_sources, room_of
from revisions import run_program, tiny_paths

PLANNERS = (
    ("choose_orders",),
    ("cut_into_cells", "cut_into_slices"),
    ("cells_for_bucket", "slices_for_bucket"),
    ("choose_senders",),
    ("assign_rounds",),
    ("plan_sides", "plan_reshard"),
    ("training_side", "megatron_sharding"),
    ("rollout_side", "vllm_sharding"),
    ("read_description",),
    ("memory_plan",),
    ("region_bytes",),
)
"""Each with the name that a later revision may give it."""
STEPS = 2
QUICKSTART = "grpo"
CANONICAL_RUNS: Mapping[str, Sequence[str]] = {
    QUICKSTART: ("train_grpo", "grpo_tiny_cpu"),
    "ppo": ("train_ppo", "ppo_tiny_cpu"),
    "mixture": ("train_grpo", "grpo_tiny_moe_cpu"),
    "sft": ("train_sft", "sft_tiny_cpu"),
    "lora": ("train_grpo", "grpo_tiny_cpu", "actor_config.lora.r=4", "actor_config.lora.alpha=8"),
    "archon": ("train_grpo", "grpo_tiny_cpu", "actor_config.backend=archon:d2"),
    "dapo": ("train_grpo", "grpo_tiny_cpu", "+recipe=dapo", "megatron_training.save_interval=1"),
    "asynchronous": (
        *("train_grpo", "grpo_tiny_cpu", "rl_config.use_integrated_worker=false"),
        *("rl_config.actor_resource.num_npus=1", "rl_config.rollout_resource.num_npus=1"),
        "rl_config.step_order=asynchronous",
    ),
}
"""Program, configuration and overrides of the runs that users start most."""
SHIPPED_RUN = ("--config-name", "grpo_qwen25_7b", "--elsewhere")
REFUSED_RUN = ("--config-name", "grpo_tiny_cpu", "actor_config.tensor_model_parallel_size=3")
Definitions = Mapping[tuple[str, int], int]
"""Lines of each function by its file and its first line."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process of a run did in mindrl."""

    name: str
    entered: set[tuple[str, int]] = field(default_factory=set)
    """Files, and the functions' first lines."""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Each with the function's name, a digest of the arguments and the caller."""


def definitions(sources: Sources) -> Definitions:
    """Measure the outermost functions and methods, from `def` to the last line."""
    return {
        (path, node.lineno): (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in sources.items()
        for node in outermost_functions(ast.parse(text))
    }


def run_figures(code: Path, work: Path, groups: Sequence[str]) -> Iterator[Figure]:
    """Make two steps of the quickstart, or of all canonical runs, and yield what they executed.

    Raises:
        SystemExit: A run failed.
    """
    processes = _watched_run(code, work, QUICKSTART)
    sources = read_sources(code)
    if "executed" in groups:
        name = "function lines that a GRPO run executes"
        yield executed_figure(definitions(sources), processes, "executed", name, "65")
    if "calls" in groups:
        yield from call_figures(sources, processes)
    if "union" in groups:
        others = [name for name in CANONICAL_RUNS if name != QUICKSTART]
        every = [
            *processes,
            *chain.from_iterable(_watched_run(code, work, each) for each in others),
        ]
        name = f"function lines that one of {len(CANONICAL_RUNS)} canonical runs executes"
        yield executed_figure(definitions(sources), every, "union", name, "85")


def _watched_run(code: Path, work: Path, name: str) -> list[Process]:
    folder = work / f"{code.name}-{name}-entries"
    folder.mkdir()
    log = work / f"{code.name}-{name}.txt"
    program, config, *overrides = CANONICAL_RUNS[name]
    command = [
        *(f"cli/{program}.py", "--config-name", config),
        *tiny_paths("moe_model" if name == "mixture" else "model"),
        f"megatron_training.train_iters={STEPS}",
        f"hydra.run.dir={work / f'{code.name}-{name}'}",
        *overrides,
    ]
    counted = ",".join(name for names in PLANNERS for name in names)
    ended = run_program(
        code,
        command,
        log,
        first_paths=[Path(__file__).parent / "house_entries"],
        environment={FOLDER: str(folder), COUNTED: counted},
    )
    if ended:
        raise SystemExit(f"{log.read_text()}\nthe run {name} of {code} ended with {ended}")
    return read_processes(folder, code)


def read_processes(folder: Path, code: Path) -> list[Process]:
    """Read what the processes of a run wrote, in the order in which they began."""
    files = (file.read_text("utf-8").splitlines() for file in folder.iterdir())
    # Process ids start again at 1 when they run out, so the time of the first line gives the order.
    by_start = sorted(([line.split("\t") for line in lines] for lines in files), key=_started)
    names: Counter[str] = Counter()
    processes = []
    for lines in by_start:
        kind = _kind(" ".join(lines[0][2:]), {fields[1] for fields in lines[1:]})
        names[kind] += 1
        process = Process(name=kind if kind == "driver" else f"{kind} {names[kind]}")
        for what, *fields in lines[1:]:
            if what == "called":
                name, digest, caller = fields
                process.calls.append((name, digest, caller))
            else:
                path, line = fields
                process.entered.add((Path(path).relative_to(code).as_posix(), int(line)))
        processes.append(process)
    return processes


def _started(lines: Sequence[Sequence[str]]) -> int:
    """Return the monotonic time in nanoseconds at which a process wrote its first line."""
    return int(lines[0][1])


def _kind(command: str, entered: Collection[str]) -> str:
    """Name a process by its command, and by the files whose functions it has entered."""
    if re.search(r"\btrain_\w+\.py\b", command):
        return "driver"
    if "prefork_process" in command:
        # Workers are forked off it, and have its command.
        forked = any(path.endswith("mindrl/launch/worker.py") for path in entered)
        return "worker" if forked else "prefork server"
    return "worker" if "default_worker.py" in command else "rewards"


def executed_figure(
    defined: Definitions, processes: Sequence[Process], group: str, name: str, target: str
) -> Figure:
    """Return the share of the lines of all functions whose function some process entered."""
    entered = set[tuple[str, int]]().union(*(process.entered for process in processes))
    lines: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    for place, length in defined.items():
        room = room_of(place[0]) or place[0]
        lines[room] += length
        executed[room] += length * (place in entered)
    return Figure(
        group=group,
        name=name,
        value=round(100 * executed.total() / lines.total(), 1),
        target=target,
        unit=" %",
        details=(
            f"{executed.total()} of {lines.total()} lines in {len(processes)} processes",
            *(
                f"{room} {100 * executed[room] / count:.0f} % of {count}"
                for room, count in lines.most_common()
            ),
        ),
    )


def call_figures(sources: Sources, processes: Sequence[Process]) -> Iterator[Figure]:
    """Yield for each planner function the most calls that one process makes."""
    present = {
        node.name
        for text in sources.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }
    for names in PLANNERS:
        figure = Figure(group="calls", name=f"calls of {names[0]}", value=None, target="1")
        yield _calls(figure, names, processes) if present & {*names} else figure
    first = sum(len({call[:2] for call in process.calls}) for process in processes)
    yield Figure(
        group="calls",
        name="of these, repeated with equal arguments",
        value=sum(len(process.calls) for process in processes) - first,
        target="0",
    )


def _calls(figure: Figure, names: tuple[str, ...], processes: Sequence[Process]) -> Figure:
    counts: dict[str, int] = {}
    details = []
    for process in processes:
        calls = [call for call in process.calls if call[0] in names]
        if not calls:
            continue
        counts[process.name] = len(calls)
        different = len({digest for _, digest, _ in calls})
        callers = Counter(caller for *_, caller in calls).most_common()
        by = ", ".join(f"{caller} {count}" for caller, count in callers)
        details.append(f"{process.name}: {len(calls)} of {different} different, by {by}")
    shown: dict[str, list[str]] = defaultdict(list)
    for name, count in counts.items():
        shown[name.split(" ")[0]].append(str(count))
    return Figure(
        group=figure.group,
        name=figure.name,
        value=max(counts.values(), default=0),
        target=figure.target,
        shown=", ".join(f"{kind} {' '.join(each)}" for kind, each in shown.items()) or "0",
        details=tuple(details),
    )


def check_figures(code: Path, work: Path) -> Iterator[Figure]:
    """Yield what a check costs, and a refusal by the training program: the least of 3 each.

    Raises:
        SystemExit: A program did not judge as it should.
    """

    def seconds(program: str, arguments: Sequence[str], expected: int) -> float:
        return min(
            _seconds(lambda: run_program(code, [program, *arguments], log), log, expected)
            for _ in range(3)
        )

    log = work / f"{code.name}-check.txt"
    shipped = seconds("cli/check.py", SHIPPED_RUN, 0)
    refused = (*REFUSED_RUN, *tiny_paths())
    check = seconds("cli/check.py", refused, 1)
    train = seconds("cli/train_grpo.py", (*refused, f"hydra.run.dir={work}/refused"), 2)
    yield Figure(
        group="check",
        name="CPU seconds of the check of grpo_qwen25_7b",
        value=round(shipped, 2),
        target="1",
        unit=" s",
    )
    yield Figure(
        group="check",
        name="a refusal by train_grpo.py over one by check.py",
        value=round(train / check, 2),
        target="1.1",
        details=(f"{train:.2f} s and {check:.2f} s of CPU",),
    )


def _seconds(program: Callable[[], int], log: Path, expected: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = program()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended != expected:
        raise SystemExit(f"{log.read_text()}\nended with {ended}, not with {expected}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
