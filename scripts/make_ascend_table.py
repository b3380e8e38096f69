"""Plan the runs for Ascend machines, and write the tables of docs/reference/ascend-configs.md.

Every figure is derived from a configuration and from shipped sizes, without a run. Needs no torch.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindrl.allocation.meaning import layout_string
from mindrl.config.run import RunConfig
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import MoveKind
from mindrl.preflight.activation_estimates import activation_estimates
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.programs.compose import composed_config
from mindrl.programs.config_files import run_names
from mindrl.programs.memory import kv_cache_tokens

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "ascend-configs.md"
MARK = "<!-- The rest is written by scripts/make_ascend_table.py --write. -->\n"
GIB = 1 << 30
_LAYOUT_COLUMNS = (
    "Run | Model | Nodes x devices | Training | Nodes per stage | Rollout | Sequences | Tokens"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of a run; all sizes in bytes."""

    name: str
    model: str
    nodes: int
    devices_per_node: int
    training: str
    rollout: str
    tensor_nodes: int
    """Maximum nodes of a tensor-parallel group of the training."""
    stage_nodes: int
    """Maximum nodes of a pipeline stage."""
    sequences: int
    longest_sequence: int
    capacity: int
    peak: int
    peak_phase: str
    peak_rank: int
    train_peak: int
    """Maximum bytes on a device during the actor's update."""
    train_activations: int
    """Estimated activations in addition."""
    room: int
    """Minimum of a device's free bytes with the estimated activations."""
    kv_cache_tokens: int
    """Tokens in the KV cache of a rollout replica."""
    host_of_node: int
    """Maximum host bytes of a node."""
    reshard_received: int
    """Bytes received by all ranks."""
    reshard_received_most: int
    """Maximum bytes received by one rank."""
    reshard_across_nodes: int


def ascend_runs() -> dict[str, RunConfig]:
    """Read the shipped runs on NPUs, the smallest first."""
    configs = {name: composed_config(name, []) for name in run_names(ROOT / "configs")}
    npu = {name: config for name, config in configs.items() if config.rl_config.device == "npu"}
    # Both runs of a model in sequence, ordered by the size of the first.
    first = {name: npu[name.removesuffix("_a3")].world_size for name in npu}
    return {name: npu[name] for name in sorted(npu, key=lambda name: (first[name], name))}


def row(name: str, config: RunConfig) -> Row:
    """Plan one run. This takes seconds for a large model."""
    models, capacity = unordered_shardings(config).ordered, config.rl_config.device_memory_bytes
    if capacity is None:
        raise ValueError(f"configs/{name}.yaml has no rl_config.device_memory_mib")
    plan = memory_plan(models, capacity)
    nodes = models.plan.topology
    per_node, together = nodes.ranks_per_node, nodes.shared_nodes(config.world_size)
    pairs, received = models.reshard.pair_bytes, models.reshard.received
    peaks, layout = phase_peaks(plan, models), models.plan.layouts["actor"]
    train, activations = peaks["train"]
    return Row(
        name=name,
        model=Path(config.actor_config.load).name,
        nodes=config.world_size // per_node,
        devices_per_node=per_node,
        training=layout_string(config.layout("actor"), config.training_backend("actor")),
        rollout=layout_string(config.rollout_layout),
        tensor_nodes=nodes_spanned(layout.dense_order.groups({"tp"}), per_node),
        stage_nodes=nodes_spanned(layout.dense_order.groups({"tp", "cp", "dp"}), per_node),
        sequences=config.sequences_per_step,
        longest_sequence=config.megatron_training.seq_length,
        capacity=capacity,
        peak=plan.peak_bytes,
        peak_phase=plan.peak_instant.label,
        peak_rank=plan.peak_rank,
        train_peak=train,
        train_activations=activations,
        room=capacity - max(map(sum, peaks.values())),
        kv_cache_tokens=kv_cache_tokens(plan, models) or 0,
        host_of_node=plan.host_bytes_of_node(per_node),
        reshard_received=int(received.sum()),
        reshard_received_most=int(received.max()),
        reshard_across_nodes=int(pairs[~together].sum()),
    )


def nodes_spanned(groups: Sequence[Sequence[int]], per_node: int) -> int:
    """Return the maximum number of nodes of a group of ranks."""
    return max(len({rank // per_node for rank in group}) for group in groups)


def phase_peaks(plan: MemoryPlan, models: RunShardings) -> dict[str, tuple[int, int]]:
    """Return the maximum bytes on a device in each phase, and the estimated activations.

    The phases of the reshard have no activations.
    """
    estimates = activation_estimates(models.plan)
    wanted = {phase.value: estimates.get(phase, 0) for phase in plan.phases}
    wanted[MoveKind.RESHARD.value] = 0
    return {
        instant.label: (most, wanted[instant.label])
        for instant, most in plan.moments
        if instant.label in wanted
    }


def tables(rows: Sequence[Row]) -> str:
    """Return the lines of the tables: layouts, memory, reshard."""
    parts = {
        "Layouts": (
            _LAYOUT_COLUMNS,
            [layout_cells(each) for each in rows],
        ),
        "Memory": (
            "Run | Device | Peak | Phase, rank | Update | Room | KV cache tokens | Host",
            [memory_cells(each) for each in rows],
        ),
        "Reshard": (
            "Run | Received by all ranks | Maximum by one rank | Across nodes",
            [reshard_cells(each) for each in rows],
        ),
    }
    return "\n".join(line for title, part in parts.items() for line in table(title, *part))


def table(title: str, head: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of one table with its heading."""
    yield from (f"### {title}", "", f"| {head} |", "| " + " | ".join(["---"] * len(rows[0])) + " |")
    yield from ("| " + " | ".join(cells) + " |" for cells in rows)
    yield ""


def layout_cells(each: Row) -> list[str]:
    """Return the cells of the layouts of a run."""
    machines = f"{each.nodes} x {each.devices_per_node}"
    layouts = [f"`{each.training}`", f"{each.stage_nodes}", f"`{each.rollout}`"]
    counts = [f"{each.sequences:,}", f"{each.longest_sequence:,}"]
    return [f"`{each.name}`", each.model, machines, *layouts, *counts]


def memory_cells(each: Row) -> list[str]:
    """Return the cells of the memory of a run."""
    return [
        f"`{each.name}`",
        gib(each.capacity),
        gib(each.peak),
        f"{each.peak_phase}, {each.peak_rank}",
        f"{gib(each.train_peak)} + {gib(each.train_activations)}",
        gib(each.room),
        f"{each.kv_cache_tokens:,}",
        gib(each.host_of_node),
    ]


def reshard_cells(each: Row) -> list[str]:
    """Return the cells of the reshard of a run."""
    sizes = (each.reshard_received, each.reshard_received_most, each.reshard_across_nodes)
    return [f"`{each.name}`", *map(gib, sizes)]


def gib(nbytes: int) -> str:
    """Format bytes."""
    return f"{nbytes / GIB:,.2f} GiB"


def page_with(written: str) -> str:
    """Return the page with new tables below its text."""
    text, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{text}{mark or MARK}\n{written}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them to the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help=f"write them to {PAGE.name}")
    options = parser.parse_args(arguments)
    written = tables([row(name, config) for name, config in ascend_runs().items()])
    if options.write:
        PAGE.write_text(page_with(written), encoding="utf-8")
    else:
        sys.stdout.write(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
