"""Training layouts that a command line or a file writes down, against a model's sizes."""

from collections.abc import Iterator

from mindrl.config.finding import Finding
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription
from mindrl.training.planning import training_findings

_LETTERS = {"tp": "t", "pp": "p", "vpp": "v", "ep": "e", "cp": "c", "etp": "t of ffn"}


def layout_findings(model: ModelDescription, layout: TrainLayout, where: str) -> Iterator[Finding]:
    """Say what keeps a model from a layout that an option or a file writes in one string."""
    keys = {name: f"{where} {letter}" for name, letter in _LETTERS.items()}
    yield from training_findings(model, layout, keys | {"layers_per_chunk": "--layers-per-chunk"})
