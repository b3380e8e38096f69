"""The figures of a reshard as a table for a terminal."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mindrl.resharding.figures import PerRank, PlanFigures, RankMapFigures, ReshardFigures

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def print_figures(figures: ReshardFigures, console: Console) -> None:
    """Print what was asked, what moves, and what each order of the ranks would move."""
    apart = "on ranks of its own, " if figures.disjoint else ""
    console.print(escape(figures.model), highlight=False, soft_wrap=True)
    console.print(
        f"{figures.training} -> {figures.rollout}, {apart}{figures.ranks} ranks, "
        f"{figures.ranks_per_node} a node\n",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print(_plan_table(figures))
    if figures.rank_map:
        console.print("\nreceived, all ranks, by the order of the training ranks")
        console.print(_map_table(figures.rank_map))
    console.print("\nGB = 10^9 bytes; MB and kB likewise", highlight=False)


def in_units(size: int) -> str:
    """Spell a number of bytes in units of a thousand."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size} B" if size else "0"


def _plan_table(figures: ReshardFigures) -> Table:
    both = figures.chosen != figures.default
    columns = [figures.default, figures.chosen] if both else [figures.default]
    table = Table(box=None, header_style="", pad_edge=False)
    table.add_column()
    table.add_column("Megatron's order", justify="right", no_wrap=True)
    if both:
        table.add_column("chosen order", justify="right", no_wrap=True)
    for name, spell in _rows(figures):
        table.add_row(name, *(spell(column) for column in columns))
    gathered = in_units(figures.full_gather_bytes)
    table.add_row("if every rank built every tensor whole", gathered)
    return table


def _rows(figures: ReshardFigures) -> Iterator[tuple[str, Callable[[PlanFigures], str]]]:
    yield "received, all ranks", lambda plan: in_units(plan.received_bytes.total)
    yield "lower bound", lambda plan: in_units(plan.lower_bound_bytes.total)
    yield "copied inside ranks", lambda plan: in_units(plan.copied_bytes.total)
    yield "within nodes", lambda plan: in_units(plan.within_nodes_bytes)
    yield "across nodes", lambda plan: in_units(plan.across_nodes_bytes)
    yield "received by one rank, at most", lambda plan: _most(plan.received_bytes)
    yield "sent by one rank, at most", lambda plan: _most(plan.sent_bytes)
    yield "busiest rank", _busiest_rank
    yield "busiest link", _busiest_link
    yield "rounds", lambda plan: f"{plan.rounds:,}"
    yield "messages", lambda plan: f"{plan.messages:,}"
    bucket = in_units(figures.bucket_bytes)
    yield f"staging peak (at most {bucket})", lambda plan: _most(plan.peak_staging_bytes)
    bandwidth = f"{figures.gbit_per_second_per_rank:g} Gbit/s"
    yield f"seconds at {bandwidth} a rank", lambda plan: f"{plan.seconds:.3f}"


def _most(counts: PerRank) -> str:
    return in_units(counts.max)


def _busiest_rank(plan: PlanFigures) -> str:
    busiest = plan.busiest_rank
    if busiest is None:
        return "none"
    sent, received = in_units(busiest.sent_bytes), in_units(busiest.received_bytes)
    return f"{busiest.rank}: {sent} out, {received} in"


def _busiest_link(plan: PlanFigures) -> str:
    pair = plan.busiest_pair
    return f"{pair.source} -> {pair.target}: {in_units(pair.bytes)}" if pair else "none"


def _map_table(ranks: RankMapFigures) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, size in (
        ("Megatron's own order", ranks.default_bytes),
        ("best permutation inside nodes", ranks.best_in_nodes_bytes),
        ("best permutation", ranks.best_bytes),
        ("chosen: best order of Megatron's groups", ranks.applied_bytes),
    ):
        table.add_row(name, in_units(size))
    table.add_row("chosen order, fastest first", _spelled(ranks.order))
    if ranks.expert_order:
        table.add_row("chosen order of the experts", _spelled(ranks.expert_order))
    return table


def _spelled(order: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{dimension}{radix}" for dimension, radix in order) or "one rank"
