"""GLM-4.5's mixture on the training side, by the real Megatron, against transformers.

Shapes: B sequences, T positions, V the vocabulary.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from assembly import assembled
from forked_workers import ForkedWorkers
from nightly import at_night_but
from safetensors.torch import load_file, save_file
from test_training_layouts import (
    LOSS,
    OPTIMIZER,
    check_logits,
    check_updates,
    minibatches,
    sequences,
)
from torch import Tensor
from training_messages import Case, Course, Updated, Weights

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

LAYOUTS = {
    2: [
        TrainLayout(tp=2),
        TrainLayout(dp=2, ep=2),
        # The first stage has the layer without experts, and no other.
        TrainLayout(pp=2, layers_per_chunk=(1, 3)),
    ],
    4: [
        # Two key-value heads: each lies on two ranks.
        TrainLayout(tp=4),
        TrainLayout(tp=2, dp=2, ep=4),
        TrainLayout(dp=4, ep=2, etp=2),
        TrainLayout(cp=2, dp=2, ep=2),
    ],
}
PREDICTION = "model.layers.4.eh_proj.weight"
"""A tensor of the layer of multi-token prediction, which follows the four others."""


@pytest.fixture(scope="module")
def folder(random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose files hold a layer of multi-token prediction, as published ones do."""
    made = tmp_path_factory.mktemp("glm") / "model"
    shutil.copytree(random_model_of("glm4_moe"), made)
    weights = load_file(made / "model.safetensors")
    extra = weights | {PREDICTION: torch.ones(128, 256)}
    save_file(extra, made / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((made / "config.json").read_text("utf-8"))
    values["num_nextn_predict_layers"] = 1
    (made / "config.json").write_text(json.dumps(values), "utf-8")
    return made


@pytest.mark.parametrize("ranks", at_night_but([2], LAYOUTS))
def test_ranks_hold_the_file_without_its_prediction_layer_to_the_bit(
    ranks: int, folder: Path, forked_workers: ForkedWorkers
) -> None:
    cases = [Case(folder=str(folder), layout=layout) for layout in LAYOUTS[ranks]]
    replies: list[list[Weights]] = forked_workers.run("training_probe:held", cases, ranks=ranks)
    filed = load_file(folder / "model.safetensors")
    del filed[PREDICTION]
    for index, case in enumerate(cases):
        found = assembled(case.folder, case.layout, [reply[index] for reply in replies])
        assert found.keys() == filed.keys()
        for name, tensor in filed.items():
            assert torch.equal(found[name], tensor), f"{name} in {case.layout}"


@pytest.mark.parametrize("ranks", at_night_but([2], LAYOUTS))
def test_logits_are_those_of_transformers_to_1e_4(
    ranks: int, folder: Path, forked_workers: ForkedWorkers
) -> None:
    cases = [Case(folder=str(folder), layout=layout) for layout in LAYOUTS[ranks]]
    batch = sequences()
    replies: list[list[Tensor]] = forked_workers.run(
        "training_probe:logits", cases, batch, ranks=ranks
    )
    for index, case in enumerate(cases):
        # Logits of size 30 in float32, four layers.
        check_logits(case, batch, [reply[index] for reply in replies], 1e-4)


@pytest.mark.parametrize("ranks", at_night_but([2], LAYOUTS))
def test_three_updates_are_those_of_one_process(
    ranks: int, folder: Path, forked_workers: ForkedWorkers
) -> None:
    course = Course(
        minibatches=minibatches(str(folder)),
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )
    asked = [Case(folder=str(folder))]
    ((alone,),) = forked_workers.run("training_probe:updates", asked, course)
    weights = assembled(str(folder), TrainLayout(), [alone.weights])
    cases = [Case(folder=str(folder), layout=layout) for layout in LAYOUTS[ranks] if layout.pp == 1]
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", cases, course, ranks=ranks
    )
    check_updates(folder, cases, replies, alone.metrics, weights)
