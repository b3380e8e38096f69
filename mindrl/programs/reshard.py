"""Plan of a reshard: `mindrl plan reshard ...`. Needs no torch."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import get_args

from rich.table import Column

from mindrl.allocation.meaning import (
    layout_string,
    parse_rollout,
    parse_training,
    states_replicas,
)
from mindrl.config.backends import training_backend_of
from mindrl.errors import ConfigError, ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import DType
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding, elsewhere
from mindrl.observability.terminal import print_rows, say
from mindrl.observability.units import traffic_text
from mindrl.platform.garbage import planning
from mindrl.preflight.shipped import families_without_a_run, named_description
from mindrl.programs.arguments import (
    MOST_RANKS,
    Program,
    add_layers_per_chunk,
    count,
    positive,
    written_keys,
)
from mindrl.programs.exits import FAILED, print_json, report
from mindrl.resharding.figures import (
    PlanFigures,
    RankMapFigures,
    ReshardFigures,
    figures_of,
    full_gather_bytes,
    rank_map_figures,
)
from mindrl.resharding.plan import DEFAULT_BUCKET_BYTES, Topology, plan_reshard, slices_for_bucket
from mindrl.resharding.rank_map import choose_orders
from mindrl.rollout.planning import rollout_findings, rollout_sharding
from mindrl.training.planning import Storage, planning_of

_ROLLOUT_KEYS = {"tp": "--to t", "pp": "--to p", "ep": "--to e"}
_EXAMPLE = """\
example:
  mindrl plan reshard --model models/Qwen2.5-7B --from megatron:d4t2 --to vllm:d2t4

A layout is a backend and sizes: d data, p pipeline, t tensor, c context, e expert parallel,
v virtual pipeline chunks. Omitted sizes are 1; with --world, d is derived.
  archon:d4t2                              PyTorch's own engine; its weights are float32
  megatron:d2p2t4e4                        whole experts, divided over four ranks per layer
  megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)    each expert sharded over t4
  vllm:d2t4e8                              all 8 ranks share the experts
"""


def _add_options(reshard: argparse.ArgumentParser) -> None:
    add = reshard.add_argument
    add("--model", required=True, help="folder of a Hugging Face model, or its config.json")
    add("--from", required=True, dest="source", metavar="LAYOUT", help="training layout")
    add("--to", required=True, dest="target", metavar="LAYOUT", help="rollout layout")
    add("--world", type=count, metavar="N", help="total ranks; derives an omitted d")
    apart = "the rollout has its own ranks, after those of the training"
    add("--disjoint", action="store_true", help=apart)
    add_layers_per_chunk(reshard, "the training")
    add("--ranks-per-node", type=count, default=8, metavar="N", help="default: %(default)s")
    dtypes, types = "types of training and rollout weights (default: bfloat16)", "TYPE[,TYPE]"
    add("--dtype", type=_dtypes, default=("bfloat16",) * 2, metavar=types, help=dtypes)
    bound = "maximum of a rank's messages in flight (default: %(default)s)"
    add("--bucket-mib", type=count, default=DEFAULT_BUCKET_BYTES >> 20, metavar="N", help=bound)
    link = "Gbit/s per rank and direction, for estimating seconds (default: %(default)g)"
    add("--bandwidth-gbps-per-rank", type=positive, default=200.0, metavar="GBIT", help=link)
    best = "best searches the order of the training ranks with the least traffic (the default)"
    add("--rank-map", choices=("best", "default"), default="best", help=best)
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")


@planning()
def _reshard(options: argparse.Namespace) -> int:
    backend = training_backend_of(options.source)
    model = named_description(options.model, families_without_a_run(backend))
    source, target = _layouts(options)
    engine = planning_of(backend)
    findings = [*engine.findings(model, source, written_keys("--from"))]
    findings += rollout_findings(model, target, _ROLLOUT_KEYS)
    if findings:
        return report(map(str, findings), FAILED)
    figures = _figures(options, model, source, target)
    if options.json:
        print_json(asdict(figures))
    else:
        _print(figures, engine.name)
    return 0


def _figures(
    options: argparse.Namespace, model: ModelDescription, training: TrainLayout, to: RolloutLayout
) -> ReshardFigures:
    bucket_bytes, bandwidth = options.bucket_mib << 20, options.bandwidth_gbps_per_rank
    topology = Topology(ranks_per_node=options.ranks_per_node)
    backend = training_backend_of(options.source)
    engine = planning_of(backend)
    storage = Storage(dtype=engine.weights_dtype(options.dtype[0]))
    first = training.world_size if options.disjoint else 0
    ranks = first + to.world_size

    def held(layout: TrainLayout) -> Sharding:
        sharding = engine.sharding(model, layout, storage)
        return elsewhere(sharding, first_rank=0, world_size=ranks)

    def planned(source: Sharding) -> PlanFigures:
        plan = plan_reshard(source, target, topology, bucket_bytes=bucket_bytes, slices=slices)
        return figures_of(plan, topology, gbit_per_second=bandwidth)

    source, target = held(training), rollout_sharding(model, to, dtype=options.dtype[1])
    target = elsewhere(target, first_rank=first, world_size=ranks)
    slices = slices_for_bucket(source, target, bucket_bytes)
    default = chosen = planned(source)
    rank_map = None
    if options.rank_map == "best" and not options.disjoint:
        found = choose_orders(training, source, target, slices, topology, engine.legal_orders)
        rank_map = rank_map_figures(found, topology, experts=model.moe is not None)
        if found.layout != training:
            chosen = planned(held(found.layout))
    return ReshardFigures(
        model=options.model,
        training=layout_string(training, backend),
        rollout=layout_string(to),
        ranks=ranks,
        ranks_per_node=options.ranks_per_node,
        disjoint=options.disjoint,
        dtypes=(source.dtype, target.dtype),
        bucket_bytes=bucket_bytes,
        gbit_per_second_per_rank=bandwidth,
        full_gather_bytes=full_gather_bytes(model, source, target),
        rank_map=rank_map,
        default=default,
        chosen=chosen,
    )


def _layouts(options: argparse.Namespace) -> tuple[TrainLayout, RolloutLayout]:
    """Return both layouts; a layout without `d` uses all ranks that its side has."""
    source, target, world = options.source, options.target, options.world
    if options.disjoint:
        training, rollout = _disjoint_layouts(source, target, world)
        ranks = training.world_size + rollout.world_size
    else:
        if world is None and states_replicas(target) and not states_replicas(source):
            world = parse_rollout(target).world_size
        training = parse_training(source, world)
        rollout = parse_rollout(target, training.world_size)
        ranks = training.world_size
    if ranks > MOST_RANKS:
        raise ConfigError(f"{ranks} ranks are too many; the maximum is {MOST_RANKS}")
    return replace(training, layers_per_chunk=options.layers_per_chunk), rollout


def _disjoint_layouts(
    source: str, target: str, world: int | None
) -> tuple[TrainLayout, RolloutLayout]:
    if states_replicas(source):
        training = parse_training(source)
        return training, parse_rollout(target, _left(world, training.world_size))
    if world is not None and not states_replicas(target):
        raise ConfigError(f"--world {world} --disjoint: write d in --from or in --to")
    rollout = parse_rollout(target)
    return parse_training(source, _left(world, rollout.world_size)), rollout


def _left(world: int | None, taken: int) -> int | None:
    if world is not None and world <= taken:
        raise ConfigError(f"--world {world} --disjoint: one side alone needs {taken} ranks")
    return None if world is None else world - taken


def _dtypes(text: str) -> tuple[str, str]:
    names = text.split(",")
    if not set(names) <= set(get_args(DType)) or len(names) not in (1, 2):
        known = " and ".join(get_args(DType))
        raise argparse.ArgumentTypeError(f"{text} must be one or two of {known}")
    return names[0], names[-1]


def _print(figures: ReshardFigures, engine: str) -> None:
    """Print the question, the traffic, and the traffic of each order of the ranks."""
    apart = "on separate ranks, " if figures.disjoint else ""
    say(
        figures.model,
        f"{figures.training} -> {figures.rollout}, {apart}{figures.ranks} ranks, "
        f"{figures.ranks_per_node} per node\n",
    )
    plans = {f"{engine}'s order": figures.default}
    if figures.chosen != figures.default:
        plans["chosen order"] = figures.chosen
    numbers = (Column(title, justify="right", no_wrap=True) for title in plans)
    print_rows(_plan_rows(figures, [*plans.values()]), Column(), *numbers)
    if figures.rank_map:
        say("\nreceived, all ranks, by the order of the training ranks")
        print_rows(_map_rows(figures.rank_map, engine), Column(), Column(justify="right"))
    say("\nGB = 10^9 bytes; MB and kB likewise")


def _plan_rows(figures: ReshardFigures, plans: Sequence[PlanFigures]) -> Iterator[list[str]]:
    texts = [_spelled(figures, plan) for plan in plans]
    yield from ([name, *(text[name] for text in texts)] for name in texts[0])
    gathered = traffic_text(figures.full_gather_bytes)
    yield ["if every rank gathered whole tensors", gathered]


def _spelled(figures: ReshardFigures, plan: PlanFigures) -> dict[str, str]:
    size, rank, link = traffic_text, plan.busiest_rank, plan.busiest_pair
    at_rank, at_link = "none", "none"
    if rank is not None:
        at_rank = f"{rank.rank}: {size(rank.sent_bytes)} out, {size(rank.received_bytes)} in"
    if link is not None:
        at_link = f"{link.source} -> {link.target}: {size(link.bytes)}"
    return {
        "received, all ranks": size(plan.received_bytes.total),
        "lower bound": size(plan.lower_bound_bytes.total),
        "copied inside ranks": size(plan.copied_bytes.total),
        "within nodes": size(plan.within_nodes_bytes),
        "across nodes": size(plan.across_nodes_bytes),
        "maximum received by one rank": size(plan.received_bytes.max),
        "maximum sent by one rank": size(plan.sent_bytes.max),
        "busiest rank": at_rank,
        "busiest link": at_link,
        "rounds": f"{plan.rounds:,}",
        "messages": f"{plan.messages:,}",
        f"staging peak (limit {size(figures.bucket_bytes)})": size(plan.peak_staging_bytes.max),
        f"seconds at {figures.gbit_per_second_per_rank:g} Gbit/s per rank": f"{plan.seconds:.3f}",
    }


def _map_rows(ranks: RankMapFigures, engine: str) -> Iterator[tuple[str, str]]:
    def fastest_first(order: Sequence[tuple[str, int]]) -> str:
        return " ".join(f"{dimension}{radix}" for dimension, radix in order) or "one rank"

    yield f"{engine}'s own order", traffic_text(ranks.default_bytes)
    yield "best permutation inside nodes", traffic_text(ranks.best_in_nodes_bytes)
    yield "best permutation", traffic_text(ranks.best_bytes)
    yield f"chosen: best order of {engine}'s groups", traffic_text(ranks.applied_bytes)
    yield "chosen order, fastest first", fastest_first(ranks.order)
    if ranks.expert_order:
        yield "chosen order of the experts", fastest_first(ranks.expert_order)


PROGRAM = Program(
    about="Count the bytes that a reshard moves from a training to a rollout layout, and find the "
    "order of the training ranks with the least traffic.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_reshard,
    bad_input=(ModelError,),
)
