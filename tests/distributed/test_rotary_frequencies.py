"""Scaled rotary frequencies as the built network has them, by the real Megatron."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from test_training_latent import MODELS, save_random
from test_training_layouts import sequences
from training_messages import Case

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.training.rotary import inverse_frequencies

pytestmark = pytest.mark.distributed


def test_all_four_chunks_of_a_bfloat16_llama_have_its_16_frequencies_in_float32(
    forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]
) -> None:
    folder = str(random_model_of("llama"))
    case = Case(folder=folder, layout=TrainLayout(pp=2, vpp=2), bf16=True)
    expected_F = inverse_frequencies(read_description(folder))
    assert len(expected_F) == 16
    assert not torch.equal(expected_F, expected_F.bfloat16().float())
    for rank in forked_workers.run("rotary_probe:frequencies", case, ranks=2):
        assert len(rank) == 2
        for weights, found_F in rank:
            assert weights == torch.bfloat16
            assert torch.equal(found_F, expected_F)


@pytest.mark.parametrize(("model", "modules"), [("llama", 1), ("V2", 4)])
def test_passes_leave_no_angles_on_the_device(
    model: str,
    modules: int,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path
    if model == "llama":
        folder = random_model_of(model)
    else:
        save_random(MODELS[model], folder)
    (found,) = forked_workers.run("rotary_probe:kept_tables", Case(folder=str(folder)), sequences())
    assert found == (modules, 0, True)
