"""Every family in every layout: logits against Hugging Face, updates against one process.

The figures are kept in docs/reference/training-layouts.md: `pytest --write-tables` renews them.
The short suite covers every pair of cut dimensions and every family; all cases run at night.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but, cut_pairs
from test_training_latent import MODELS, save_random
from test_training_layouts import (
    LOSS,
    OPTIMIZER,
    logits_gap,
    minibatches,
    reference_logits,
    sequences,
)
from training_messages import Case, Course, Trial

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "training-layouts.md"
DENSE = ("qwen2", "qwen2 tied", "qwen3", "llama", "phi3")
MIXTURES = ("qwen3_moe", "deepseek_v2", "deepseek_v3")
ANY_FAMILY: Mapping[str, TrainLayout] = {
    "DP2": TrainLayout(dp=2),
    "TP2+SP": TrainLayout(tp=2),
    "PP2": TrainLayout(pp=2),
    "PP2+VPP2": TrainLayout(pp=2, vpp=2),
    "PP2, 1 and 3 layers": TrainLayout(pp=2, layers_per_chunk=(1, 3)),
    "CP2": TrainLayout(cp=2),
    "CP2 ring": TrainLayout(cp=2, ulysses=1),
    "CP4 ring": TrainLayout(cp=4, ulysses=1),
    "CP4, ring of 2": TrainLayout(cp=4, ulysses=2),
    "DP2+PP2": TrainLayout(dp=2, pp=2),
}
WITHOUT_SP: Mapping[str, TrainLayout] = {
    "TP2": TrainLayout(tp=2),
    "TP2+PP2": TrainLayout(tp=2, pp=2),
    "TP2+CP2": TrainLayout(tp=2, cp=2),
    "TP2+CP2 ring": TrainLayout(tp=2, cp=2, ulysses=1),
    # Two query heads and one key-value head on each rank.
    "TP2+CP4 ring, more than heads": TrainLayout(tp=2, cp=4, ulysses=1),
}
"""Megatron trains experts with tp above 1 only with sequence parallelism."""
EXPERTS: Mapping[str, TrainLayout] = {
    "TP2+SP+PP2": TrainLayout(tp=2, pp=2),
    "TP2+SP+CP2": TrainLayout(tp=2, cp=2),
    "TP2+SP+CP2 ring": TrainLayout(tp=2, cp=2, ulysses=1),
    "EP2": TrainLayout(dp=2, ep=2),
    "EP2+TP2+SP": TrainLayout(tp=2, ep=2),
    "EP2+ETP2": TrainLayout(dp=4, ep=2, etp=2),
    "CP2+EP2": TrainLayout(cp=2, ep=2),
    "TP2+SP+PP2+VPP2+DP2+EP2": TrainLayout(tp=2, pp=2, vpp=2, dp=2, ep=2),
}
EVERY_CHANGE = {
    ("qwen2", "TP2+SP"),
    ("qwen2 tied", "DP2+PP2"),
    ("qwen3", "PP2, 1 and 3 layers"),
    ("llama", "TP2+PP2"),
    ("phi3", "TP2+CP2"),
    ("deepseek_v2", "TP2+SP+CP2"),
    ("deepseek_v2", "EP2+ETP2"),
    ("deepseek_v3", "CP2+EP2"),
    ("qwen3_moe", "TP2+SP+PP2+VPP2+DP2+EP2"),
}
MOST_OF_A_PROCESS = 10
"""Models that it trains one behind the other: groups of Megatron's optimizers stay with 50 threads
each, which poll; those of 60 models take the processors for themselves."""
LOSS_BOUND = 4e-6
"""Of losses of size 0.1 to 1; of gradient norms relative; float32. Up to 2.7e-6 on a CPU without
AVX-512, where products of other shapes are rounded in another order."""
LOGITS_BOUND = 1e-4
"""Logits of size 10 to 30 in float32, four layers."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found for one family in one layout."""

    logits: float
    """Largest difference to Hugging Face."""
    first_loss: float
    """Of one process."""
    loss: float
    """Largest difference of any loss to one process."""
    grad_norm: float
    """Relative difference of the first gradient norm."""


Rows = dict[tuple[str, str], Row]


def cases() -> Iterator[tuple[str, str, Case]]:
    """Yield family, name of the layout, and a case without a folder."""
    for family in (*DENSE, *MIXTURES):
        named = ANY_FAMILY | (WITHOUT_SP if family in DENSE else EXPERTS)
        for name, layout in named.items():
            cut_by_sp = layout.tp > 1 and "SP" in name
            yield family, name, Case(folder="", layout=layout, sequence_parallel=cut_by_sp)


@pytest.fixture(scope="module")
def folders(
    random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    made = {name: str(random_model_of(*_words(name), spread=0.1)) for name in (*DENSE, "qwen3_moe")}
    for family, variant in (("deepseek_v2", "V2"), ("deepseek_v3", "V3")):
        folder = tmp_path_factory.mktemp(family)
        save_random(MODELS[variant], folder)
        made[family] = str(folder)
    return made


def _words(name: str) -> tuple[str, bool]:
    family, *tied = name.split()
    return family, bool(tied)


@pytest.fixture(scope="module")
def courses(folders: Mapping[str, str]) -> Mapping[str, Course]:
    return {
        family: Course(
            minibatches=minibatches(folder, UPDATES),
            loss=LOSS,
            optimizer=OPTIMIZER | {"updates": UPDATES},
            micro_batching=MicroBatching(sequences=2),
        )
        for family, folder in folders.items()
    }


class Family(NamedTuple):
    """A model, how it is trained, and what one process finds."""

    folder: str
    course: Course
    alone: Trial


@pytest.fixture(scope="module")
def families(
    folders: Mapping[str, str], courses: Mapping[str, Course], forked_workers: ForkedWorkers
) -> Mapping[str, Family]:
    asked = [(Case(folder=folder), courses[family]) for family, folder in folders.items()]
    (found,) = forked_workers.run("training_probe:trials", asked, sequences())
    return {
        family: Family(folder=folder, course=courses[family], alone=alone)
        for (family, folder), alone in zip(folders.items(), found, strict=True)
    }


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """Collect what the tests find; `--write-tables` keeps it in the docs."""
    found: Rows = {}
    yield found
    complete = found.keys() == {(family, name) for family, name, _ in cases()}
    if complete and request.config.getoption("--write-tables"):
        write_page(found)


def loss_of(metrics: Mapping[str, float]) -> float:
    return (
        metrics["policy_loss"]
        + LOSS.kl_coef * metrics["kl"]
        - LOSS.entropy_coef * metrics["entropy"]
    )


def compare(layout: TrainLayout, ranks: list[Trial], one: Trial, folder: str) -> Row:
    batch = sequences()
    expected = reference_logits(folder, batch)
    gap = logits_gap(layout, batch, expected, [trial.logits_BTV for trial in ranks])
    last = [ranks[rank].metrics for rank in layout.leaders]
    losses, norms = [], []
    for metrics in last:
        for ours, theirs in zip(metrics, one.metrics, strict=True):
            losses.append(abs(loss_of(ours) - loss_of(theirs)))
        norms.append(abs(metrics[0]["grad_norm"] / one.metrics[0]["grad_norm"] - 1))
    return Row(
        logits=gap,
        first_loss=loss_of(one.metrics[0]),
        loss=max(losses),
        grad_norm=max(norms),
    )


@pytest.mark.parametrize("every_case", at_night_but([False], [False, True]))
@pytest.mark.parametrize("ranks", at_night_but([4], [2, 4, 8]))
def test_logits_are_hugging_faces_and_updates_are_those_of_one_process(
    ranks: int,
    every_case: bool,
    families: Mapping[str, Family],
    rows: Rows,
    forked_workers: ForkedWorkers,
) -> None:
    chosen = [
        (family, name, replace(case, folder=families[family].folder))
        for family, name, case in cases()
        if case.layout.world_size == ranks and (every_case or (family, name) in EVERY_CHANGE)
    ]
    for start in range(0, len(chosen), MOST_OF_A_PROCESS):
        some = chosen[start : start + MOST_OF_A_PROCESS]
        asked = [(case, families[family].course) for family, _, case in some]
        replies: list[list[Trial]] = forked_workers.run(
            "training_probe:trials", asked, sequences(), ranks=ranks
        )
        for index, (family, name, case) in enumerate(some):
            trials = [reply[index] for reply in replies]
            rows[family, name] = compare(case.layout, trials, families[family].alone, case.folder)
    for key in [(family, name) for family, name, _ in chosen]:
        assert rows[key].logits <= LOGITS_BOUND, key
        assert rows[key].loss <= LOSS_BOUND, key
        assert rows[key].grad_norm <= LOSS_BOUND, key


def test_the_short_suite_takes_each_pair_of_cuts_and_each_family() -> None:
    every = {(family, name): case.layout for family, name, case in cases()}
    assert every.keys() >= EVERY_CHANGE
    assert cut_pairs(every[key] for key in EVERY_CHANGE) == cut_pairs(every.values())
    assert {family for family, _ in EVERY_CHANGE} == {family for family, _ in every}


def write_page(rows: Rows) -> None:
    """Put the rows between the marks of the page."""
    lines = [
        "| family | layout | ranks | logits - Hugging Face | first loss | losses | gradient norm |",
        "|-|-|-|-|-|-|-|",
    ]
    for family, name, case in cases():
        row = rows[family, name]
        lines.append(
            f"| {family} | {name} | {case.layout.world_size} | {row.logits:.1e} "
            f"| {row.first_loss:.6f} | {row.loss:.1e} | {row.grad_norm:.1e} |"
        )
    text = PAGE.read_text("utf-8")
    head, tail = text.split("<!-- table -->")[0], text.split("<!-- end of table -->")[1]
    table = "\n".join(lines)
    PAGE.write_text(f"{head}<!-- table -->\n{table}\n<!-- end of table -->{tail}", "utf-8")


def test_the_kept_table_names_every_case_with_figures_inside_the_bounds() -> None:
    kept = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| \d+ \| (\S+) \| \S+ \| (\S+) \| (\S+) \|$",
        PAGE.read_text("utf-8"),
        re.MULTILINE,
    )
    assert [(family, name) for family, name, *_ in kept] == [case[:2] for case in cases()]
    for family, name, logits, loss, grad_norm in kept:
        assert float(logits) <= LOGITS_BOUND, (family, name)
        assert float(loss) <= LOSS_BOUND, (family, name)
        assert float(grad_norm) <= LOSS_BOUND, (family, name)
