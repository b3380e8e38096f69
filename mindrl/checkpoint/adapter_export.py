"""Export adapters into a folder in PEFT's format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mindrl.checkpoint.adapter_folder import ADAPTER_FOLDER, CONFIG_FILE, WEIGHTS_FILE
from mindrl.checkpoint.export import TORCH_TYPES, write_json
from mindrl.models.decoder import DType
from mindrl.models.placement import ShardingTable
from mindrl.models.sharding import dtype_of


class ExportedAdapters:
    """Collects whole factors, which are small, and writes them in one file."""

    def __init__(self, table: ShardingTable, dtype: DType, config: Mapping[str, Any]) -> None:
        """Allocate host memory; `table` is empty on a rank that writes nothing.

        `config` is the content of adapter_config.json.
        """
        self.config = config
        self.factors = {
            name: torch.empty(entry.shape, dtype=TORCH_TYPES[dtype_of(entry, dtype)])
            for name, entry in table.items()
        }

    def open(self, name: str) -> Tensor:
        """Return the memory of a factor."""
        return self.factors[name]

    def close(self, name: str) -> None:
        """Do nothing: factors are written together by `write`."""

    def write(self, folder: Path) -> None:
        """Write the adapter folder into the folder of a model.

        Raises:
            OSError: A file cannot be written.
        """
        target = folder / ADAPTER_FOLDER
        target.mkdir()
        save_file(self.factors, target / WEIGHTS_FILE, metadata={"format": "pt"})
        write_json(target / CONFIG_FILE, self.config)
