"""Let a torchvision built for another torch import; the transforms of pictures are plain torch.

Upstream: torchvision 0.25 to 0.28. Reason: the package index has one build for each version, linked
against the CUDA build of torch. With a CPU build of torch its compiled operators do not load, and
`import torchvision` fails, since it gives two of them a shape ("operator torchvision::nms does not
exist"). transformers imports torchvision if it is installed, for every model; image processors and
vLLM's qwen3_5 need it. This patch declares the two operators, without an implementation, when
torchvision is imported and its own do not load: calling them is an error, as it was.

mindrl installs it when it is imported. scripts/install.sh writes a .pth file that imports mindrl in
every process of the environment, for processes that import only transformers or vLLM. No longer
needed when torchvision imports without its operators: tests/unit/platform checks for it.
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# torch forgets what a library declared when the library is freed.
_declared: list[Any] = []


@cache
def install() -> None:
    """Watch for the import of torchvision; imports nothing itself. Repeated calls do nothing."""
    sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Finds torchvision as Python does, with a loader that declares the operators first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _declare_operators(Path(self.path).parent)
        super().exec_module(module)


def _declare_operators(folder: Path) -> None:
    """Declare the operators unless the compiled ones of this folder load."""
    import torch  # noqa: PLC0415

    for compiled in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(compiled)  # type: ignore[no-untyped-call]
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(operator)  # type: ignore[no-untyped-call]
    _declared.append(library)
