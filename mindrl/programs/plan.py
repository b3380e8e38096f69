"""The program that plans without running: `python cli/plan.py reshard`, `memory`, `explain`, `run`.

Needs no torch.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import get_args

from rich.console import Console

from mindrl.allocation.meaning import (
    parse_rollout,
    parse_training,
    rollout_string,
    states_replicas,
    training_string,
)
from mindrl.errors import ConfigError, ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.decoder import DType, Side, elsewhere, rollout_side, training_side
from mindrl.models.description import ModelDescription
from mindrl.models.legality import rollout_findings, training_findings
from mindrl.platform.garbage import planning
from mindrl.preflight.shipped import planned_description
from mindrl.programs.arguments import count, counts, positive
from mindrl.programs.exits import FAILED, exit_code, report
from mindrl.programs.explain import add_explain_parser
from mindrl.programs.memory import add_memory_parser
from mindrl.programs.propose import add_run_parser
from mindrl.programs.reshard_table import print_figures
from mindrl.resharding.figures import (
    PlanFigures,
    RankMapFigures,
    ReshardFigures,
    figures_of,
    full_gather_bytes,
)
from mindrl.resharding.plan import (
    DEFAULT_BUCKET_BYTES,
    Topology,
    cells_for_bucket,
    plan_sides,
)
from mindrl.resharding.rank_map import RankMap, choose_orders

_MOST_RANKS = 4096
_TRAINING_KEYS = {
    "tp": "--from t",
    "pp": "--from p",
    "vpp": "--from v",
    "ep": "--from e",
    "cp": "--from c",
    "etp": "--from t of ffn",
    "layers_per_chunk": "--layers-per-chunk",
}
_ROLLOUT_KEYS = {"tp": "--to t", "pp": "--to p", "ep": "--to e"}
_EXAMPLES = """\
examples:
  python cli/plan.py explain --config-name grpo_qwen25_7b --device-memory-gib 60
  python cli/plan.py reshard --model Qwen2.5-7B --from megatron:d4t2 --to vllm:d2t4

plan.py PLAN --help says more. Of a model only config.json is read; configs/models has some.
"""
_EXAMPLE = """\
example:
  python cli/plan.py reshard --model models/Qwen2.5-7B --from megatron:d4t2 --to vllm:d2t4

layouts are a backend and sizes: d data, p pipeline, t tensor, c context, e expert parallel,
v virtual pipeline chunks. What is left out is 1; d follows from --world where that is given.
  megatron:d2p2t4e4                        experts whole, four ranks share those of a layer
  megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)    each expert cut over t4
  vllm:d2t4e8                              all 8 ranks share the experts
"""


def plan(name: str = "plan.py") -> int:
    """Plan what the command line asks for; returns the exit code.

    Args:
        name: Of the program, as its help calls it.
    """
    options = _options(_parser(name))
    with planning():
        return exit_code(lambda: int(options.run(options)), ModelError)


def _options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line; overrides may stand before, between and behind the options."""
    options, more = parser.parse_known_args()
    if more and ("overrides" not in options or any(each.startswith("-") for each in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        options.overrides += more
    return options


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description="Plan on any machine, without torch and without devices.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plans = parser.add_subparsers(title="plans", required=True, metavar="PLAN")
    _add_reshard_parser(plans)
    add_memory_parser(plans)
    add_explain_parser(plans)
    add_run_parser(plans)
    return parser


def _add_reshard_parser(plans: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reshard = plans.add_parser(
        "reshard",
        help="bytes and time to move the weights from a training to a rollout layout",
        description="Count what moves from a training to a rollout layout, and find the order of "
        "the training ranks that moves least.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = reshard.add_argument
    add("--model", required=True, help="folder of a Hugging Face model, or its config.json")
    add("--from", required=True, dest="source", metavar="LAYOUT", help="training layout")
    add("--to", required=True, dest="target", metavar="LAYOUT", help="rollout layout")
    add("--world", type=count, metavar="N", help="ranks in all; gives d where it is left out")
    add(
        "--disjoint",
        action="store_true",
        help="the rollout runs on other ranks, behind those of the training",
    )
    add(
        "--layers-per-chunk",
        type=counts,
        metavar="N,N,...",
        help="layers of each pipeline stage of the training, or of each of its p x v chunks, "
        "where they are not even",
    )
    add("--ranks-per-node", type=count, default=8, metavar="N", help="default: %(default)s")
    add(
        "--dtype",
        type=_dtypes,
        default=("bfloat16", "bfloat16"),
        metavar="TYPE[,TYPE]",
        help="of the training and of the rollout weights (default: bfloat16)",
    )
    add(
        "--bucket-mib",
        type=count,
        default=DEFAULT_BUCKET_BYTES >> 20,
        metavar="N",
        help="bound on the messages that a rank has in flight (default: %(default)s)",
    )
    add(
        "--bandwidth-gbps-per-rank",
        type=positive,
        default=200.0,
        metavar="GBIT",
        help="Gbit/s of a rank each way, for the estimate of seconds (default: %(default)g)",
    )
    add(
        "--rank-map",
        choices=("best", "default"),
        default="best",
        help="best looks for the order of the training ranks that moves least (the default)",
    )
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")
    reshard.set_defaults(run=_reshard)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What is to be planned."""

    model: ModelDescription
    source: TrainLayout
    target: RolloutLayout
    topology: Topology
    dtypes: tuple[DType, DType]
    disjoint: bool

    @property
    def world_size(self) -> int:
        """Ranks of both sides together."""
        return self.source.world_size + (self.target.world_size if self.disjoint else 0)

    def sides(self, source: TrainLayout) -> tuple[Side, Side]:
        """Return who holds what, with the training ranks in the order of `source`."""
        training = training_side(self.model, source, dtype=self.dtypes[0])
        rollout = rollout_side(self.model, self.target, dtype=self.dtypes[1])
        if not self.disjoint:
            return training, rollout
        world = self.world_size
        return (
            elsewhere(training, first_rank=0, world_size=world),
            elsewhere(rollout, first_rank=source.world_size, world_size=world),
        )


def _reshard(options: argparse.Namespace) -> int:
    model = planned_description(options.model)
    source, target = _layouts(options.source, options.target, options.world, options.disjoint)
    source = replace(source, layers_per_chunk=options.layers_per_chunk)
    findings = [
        *training_findings(model, source, _TRAINING_KEYS),
        *rollout_findings(model, target, _ROLLOUT_KEYS),
    ]
    if findings:
        return report(map(str, findings), FAILED)
    request = _Request(
        model=model,
        source=source,
        target=target,
        topology=Topology(ranks_per_node=options.ranks_per_node),
        dtypes=options.dtype,
        disjoint=options.disjoint,
    )
    figures = _figures(request, options)
    if options.json:
        sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")
    else:
        print_figures(figures, Console())
    return 0


def _figures(request: _Request, options: argparse.Namespace) -> ReshardFigures:
    bucket_bytes = options.bucket_mib << 20
    bandwidth = options.bandwidth_gbps_per_rank

    source, target = request.sides(request.source)
    cells = cells_for_bucket(source, target, bucket_bytes)

    def planned(source: Side) -> PlanFigures:
        plan = plan_sides(source, target, request.topology, bucket_bytes=bucket_bytes, cells=cells)
        return figures_of(plan, request.topology, gbit_per_second=bandwidth)

    default = chosen = planned(source)
    ranks: RankMap | None = None
    if options.rank_map == "best" and not request.disjoint:
        ranks = choose_orders(request.source, source, target, cells, request.topology)
        if ranks.layout != request.source:
            chosen = planned(request.sides(ranks.layout)[0])
    return ReshardFigures(
        model=options.model,
        training=training_string(request.source),
        rollout=rollout_string(request.target),
        ranks=request.world_size,
        ranks_per_node=options.ranks_per_node,
        disjoint=request.disjoint,
        dtypes=request.dtypes,
        bucket_bytes=bucket_bytes,
        gbit_per_second_per_rank=bandwidth,
        full_gather_bytes=full_gather_bytes(request.model, source, target),
        rank_map=None if ranks is None else _rank_map(ranks, experts=request.model.moe is not None),
        default=default,
        chosen=chosen,
    )


def _rank_map(ranks: RankMap, *, experts: bool) -> RankMapFigures:
    def digits(order: RankOrder) -> list[tuple[str, int]]:
        return [(dimension, radix) for dimension, radix in order.digits if radix > 1]

    return RankMapFigures(
        default_bytes=ranks.default_bytes,
        best_in_nodes_bytes=ranks.best_in_nodes_bytes,
        best_bytes=ranks.best_bytes,
        applied_bytes=ranks.applied_bytes,
        order=digits(ranks.layout.dense_order),
        expert_order=digits(ranks.layout.experts_order) if experts else [],
    )


def _layouts(
    source: str, target: str, world: int | None, disjoint: bool
) -> tuple[TrainLayout, RolloutLayout]:
    """Read both layouts; a side that leaves d out takes the ranks that there are for it."""
    if disjoint:
        training, rollout = _disjoint_layouts(source, target, world)
        ranks = training.world_size + rollout.world_size
    else:
        if world is None and states_replicas(target) and not states_replicas(source):
            world = parse_rollout(target).world_size
        training = parse_training(source, world)
        rollout = parse_rollout(target, training.world_size)
        ranks = training.world_size
    if ranks > _MOST_RANKS:
        raise ConfigError(f"{ranks} ranks are too many to plan; at most {_MOST_RANKS}")
    return training, rollout


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
        raise ConfigError(f"--world {world} --disjoint: one side alone takes {taken} ranks")
    return None if world is None else world - taken


def _dtypes(text: str) -> tuple[str, str]:
    names = text.split(",")
    if not set(names) <= set(get_args(DType)) or len(names) not in (1, 2):
        known = " and ".join(get_args(DType))
        raise argparse.ArgumentTypeError(f"{text} must be one or two of {known}")
    return names[0], names[-1]
