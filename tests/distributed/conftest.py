"""The models of all roles."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def models(
    random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Folders of the actor, of a critic and of a reward model, with heads of their own."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    plain = random_model_of("qwen3")
    folders = {"actor": str(plain)}
    heads: dict[str, Any] = {
        "critic": AutoModelForTokenClassification,
        "reward": AutoModelForSequenceClassification,
    }
    for seed, (role, classifier) in enumerate(heads.items()):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(plain)
        config.num_labels, config.token_classification_bias = 1, False
        model = classifier.from_pretrained(plain, config=config, dtype=torch.float32)
        torch.nn.init.normal_(model.score.weight, std=0.1)
        folders[role] = str(tmp_path_factory.mktemp(role))
        model.save_pretrained(folders[role])
    return folders
