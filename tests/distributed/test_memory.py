"""The predicted bytes of weights, gradients and optimizer are those that the engines allocate.

The figures are kept in docs/reference/memory-predictions.md: `pytest --write-tables` renews them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_workers import ForkedWorkers
from test_training_latent import MODELS, save_random
from test_training_layouts import LOSS, OPTIMIZER, digits, minibatches
from training_messages import Case, Course

from mindrl.allocation.meaning import layout_string
from mindrl.batch.balance import MicroBatching
from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.activations import Passes, update_estimate
from mindrl.models.decoder import Head
from mindrl.models.description import read_description
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "memory-predictions.md"
MARK = "## {} ranks\n\n"
COLUMNS = (
    "model",
    "layout",
    "weights in",
    "distributed optimizer",
    "weights",
    "gradients",
    "optimizer",
    "measured - predicted",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|-' * len(COLUMNS)}|\n"


class Trial(NamedTuple):
    """A model in a layout; the name is of a folder of `folders`."""

    model: str
    layout: TrainLayout
    bf16: bool
    distributed_optimizer: bool
    shares: tuple[int, ...] | None = None
    grouped: bool = False
    head: Head = "vocabulary"
    backend: TrainingBackend = TRAINING_BACKEND


Bytes = Mapping[str, int]
NAMES = {
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "tied": "qwen3 tied",
    "moe": "qwen3_moe",
    "latent": "deepseek_v3",
}
BOTH = (False, True)
# Type and optimizer.
ENDS = ((False, False), (True, True))
TRIALS = {
    2: [
        *(Trial("qwen2", TrainLayout(dp=2), *ways) for ways in product(BOTH, BOTH)),
        *(Trial("tied", TrainLayout(pp=2), *ways) for ways in product(BOTH, BOTH)),
        *(Trial("tied", TrainLayout(pp=2, vpp=2), *ways) for ways in ENDS),
        *(Trial("moe", TrainLayout(dp=2, ep=2), *ways) for ways in ENDS),
        # The router's bias is float32 in a model of bfloat16.
        *(Trial("latent", TrainLayout(dp=2, ep=2), *ways) for ways in ENDS),
        Trial("tied", TrainLayout(dp=2), True, True),
        # The vocabulary of 211 is padded to two times 106.
        Trial("qwen3", TrainLayout(tp=2), True, True),
        Trial("qwen3", TrainLayout(cp=2), False, True),
        Trial("latent", TrainLayout(pp=2, layers_per_chunk=(1, 3)), True, True),
        # Every rank has half of each expert, and the rest whole.
        Trial("moe", TrainLayout(dp=2, etp=2), True, True),
        Trial("moe", TrainLayout(dp=2, ep=2), True, True, grouped=True),
        # A critic has no copy of a tied embedding, and a head of one row on every rank.
        Trial("tied", TrainLayout(pp=2), True, True, head="value"),
        Trial("qwen2", TrainLayout(tp=2), False, False, head="value"),
        Trial("qwen2", TrainLayout(dp=2), False, True, backend="archon"),
        Trial("tied", TrainLayout(cp=2), True, True, backend="archon"),
        Trial("qwen3", TrainLayout(tp=2), True, True, backend="archon"),
        # The head of one row is on the first rank, and the second one has memory for it.
        Trial("qwen2", TrainLayout(dp=2), False, True, head="value", backend="archon"),
        Trial("moe", TrainLayout(dp=2, ep=2), True, True, backend="archon"),
        Trial("moe", TrainLayout(tp=2, etp=2), False, True, backend="archon"),
        Trial("tied", TrainLayout(pp=2), True, True, backend="archon"),
        Trial("tied", TrainLayout(pp=2, vpp=2, folds=True), False, True, backend="archon"),
    ],
    # Buckets end at multiples of 384, and the ranks' shares differ.
    3: [
        Trial("qwen3", TrainLayout(dp=3), True, True, shares=(3, 3, 2)),
        Trial("latent", TrainLayout(dp=3), False, True, shares=(3, 3, 2)),
        Trial("moe", TrainLayout(dp=3), True, True, shares=(3, 3, 2), head="value"),
        Trial("qwen3", TrainLayout(dp=3), False, True, shares=(3, 3, 2), backend="archon"),
        # Of eight experts three, three and two.
        Trial("moe", TrainLayout(dp=3), True, True, shares=(3, 3, 2), backend="archon"),
    ],
    4: [
        Trial("tied", TrainLayout(tp=2, pp=2), True, True),
        Trial("tied", TrainLayout(pp=2, dp=2), True, True),
        Trial(
            "qwen3", TrainLayout(tp=2, dp=2, order=digits("dp", 2, "tp", 2, "pp", 1)), True, True
        ),
        Trial("qwen3", TrainLayout(cp=2, dp=2), True, True),
        # Experts are shared over other ranks than all else.
        Trial("moe", TrainLayout(tp=2, dp=2, ep=2), True, True),
        Trial("latent", TrainLayout(dp=4, ep=2, etp=2), True, True),
        Trial("tied", TrainLayout(tp=2, dp=2), True, True, backend="archon"),
        Trial("qwen3", TrainLayout(cp=2, dp=2), False, True, backend="archon"),
        Trial("moe", TrainLayout(tp=2, dp=2, ep=2), True, True, backend="archon"),
        Trial("moe", TrainLayout(pp=2, dp=2, ep=2), False, True, backend="archon"),
    ],
    # The norms of the last stage are in another rank's part than in one bucket with the embedding.
    6: [
        Trial(
            "tied",
            TrainLayout(pp=2, dp=3, layers_per_chunk=(3, 1)),
            True,
            True,
            shares=(3, 3, 2),
        )
    ],
}


@pytest.fixture(scope="module")
def folders(random_model_of: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    latent = tmp_path_factory.mktemp("latent")
    save_random(MODELS["V3"], latent)
    made = {
        "qwen2": random_model_of("qwen2"),
        "qwen3": random_model_of("qwen3"),
        "tied": random_model_of("qwen3", tied=True),
        "moe": random_model_of("qwen3_moe"),
        "latent": latent,
    }
    return {name: str(folder) for name, folder in made.items()}


def predicted(trial: Trial, folder: str) -> Iterator[dict[str, int]]:
    """Yield what each rank holds, by the names of the probe."""
    planning = planning_of(trial.backend)
    storage = Storage(
        dtype=planning.weights_dtype("bfloat16" if trial.bf16 else "float32"),
        grouped_experts=trial.grouped,
        head=trial.head,
    )
    sharding = planning.sharding(read_description(folder), trial.layout, storage)
    trained = planning.trained_bytes(
        sharding, trial.layout, distributed_optimizer=trial.distributed_optimizer
    )
    for read, rank in zip(sharding.held_bytes(), trained, strict=True):
        yield {
            "read": read,
            "train_param": rank.weights,
            "train_grad": rank.gradients,
            "train_optimizer": rank.optimizer,
        }


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", TRIALS)
def test_predicted_bytes_of_each_rank_are_those_of_its_storages_to_the_byte(
    ranks: int,
    folders: dict[str, str],
    forked_workers: ForkedWorkers,
    request: pytest.FixtureRequest,
) -> None:
    trials = TRIALS[ranks]
    minibatch = minibatches(folders["qwen2"], count=1)
    courses = [
        (
            Case(
                folder=folders[trial.model],
                layout=trial.layout,
                bf16=trial.bf16,
                shares=trial.shares,
                settings={"moe_grouped_gemm": trial.grouped},
            ),
            Course(
                minibatches=minibatch,
                loss=LOSS,
                optimizer=OPTIMIZER
                | {
                    "use_distributed_optimizer": trial.distributed_optimizer,
                },
                micro_batching=MicroBatching(sequences=4),
            ),
            trial.head,
            trial.backend,
        )
        for trial in trials
    ]
    replies = forked_workers.run("memory_probe:found_bytes", courses, ranks=ranks)
    rows = []
    for index, trial in enumerate(trials):
        expected = list(predicted(trial, folders[trial.model]))
        found = [reply[index] for reply in replies]
        assert found == expected, trial
        rows.append(row(trial, found, expected))
    table = MARK.format(ranks) + HEAD + "".join(rows)
    if request.config.getoption("--write-tables"):
        renew(table, ranks)
    assert table in PAGE.read_text("utf-8")


def row(trial: Trial, found: Sequence[Bytes], expected: Sequence[Bytes]) -> str:
    """Spell a row: what was measured on the fullest rank, and the largest difference on any."""
    fullest = max(found, key=lambda rank: sum(rank.values()))
    measured = (f"{fullest[name]:,}" for name in ("train_param", "train_grad", "train_optimizer"))
    pairs = zip(found, expected, strict=True)
    difference = max(abs(rank[name] - each[name]) for rank, each in pairs for name in rank)
    kinds = {"value": "critic", "vocabulary": ""}[trial.head], "grouped" * trial.grouped
    uneven, folded = trial.layout.layers_per_chunk, ", in a V" * trial.layout.folds
    layout = f"`{layout_string(trial.layout, trial.backend)}`".replace("|", r"\|")
    cells = (
        " ".join(filter(None, (NAMES[trial.model], *kinds))),
        layout + (f", layers {uneven}" if uneven else folded),
        planning_of(trial.backend).weights_dtype("bfloat16" if trial.bf16 else "float32"),
        "yes" if trial.distributed_optimizer else "no",
        *measured,
        f"{difference:,}",
    )
    return f"| {' | '.join(cells)} |\n"


def renew(table: str, ranks: int) -> None:
    text = PAGE.read_text("utf-8")
    before, mark, after = text.partition(MARK.format(ranks))
    _, end, rest = after.partition("\n\n")
    assert mark, f"the page has no place for {ranks} ranks"
    PAGE.write_text(before + table.rstrip("\n") + (end or "\n") + rest, encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("tp", [1, 2])
def test_what_waits_for_the_backward_pass_is_estimated_to_15_percent(
    tp: int, folders: dict[str, str], forked_workers: ForkedWorkers
) -> None:
    """Rotary tables, masks and the head are left out, and experts are not equally busy."""
    (minibatch,) = minibatches(folders["qwen2"], count=1)
    layout = TrainLayout(tp=tp)
    trials = [(model, bf16) for model in ("qwen2", "qwen3", "moe", "latent") for bf16 in BOTH]
    courses = [
        (
            Case(folder=folders[model], layout=layout, bf16=bf16, sequence_parallel=tp > 1),
            Course(
                minibatches=[minibatch],
                loss=LOSS,
                optimizer=OPTIMIZER,
                micro_batching=MicroBatching(sequences=8),
            ),
        )
        for model, bf16 in trials
    ]
    found, *_ = forked_workers.run("memory_probe:kept_bytes", courses, ranks=tp)
    for (model, bf16), kept in zip(trials, found, strict=True):
        description = read_description(folders[model])
        passes = Passes(
            copies=planning_of("megatron").copies,
            layout=layout,
            dtype="bfloat16" if bf16 else "float32",
            sequence_parallel=tp > 1,
            tokens=int(minibatch.lengths_B.sum()),
        )
        # The estimate has a fifth layer, which is being worked on.
        estimate = update_estimate(description, passes) * 4 / 5
        assert estimate == pytest.approx(kept, rel=0.15), (model, bf16)
