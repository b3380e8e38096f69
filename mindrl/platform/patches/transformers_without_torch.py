"""Load tokenizers of transformers without torch, in a process that runs no model.

Upstream: transformers 5.0 to 5.19. Reason: AutoTokenizer imports the modules that generate and load
models, and they import torch if it is installed: 3 CPU seconds and 400 MiB. This patch lets
transformers decide, while torch is hidden, that there is none. Its models are then missing in this
process and in those forked from it; `import torch` works as before.
No longer needed when AutoTokenizer does not import torch: tests/unit/platform checks for it.
"""

import os
import sys
from typing import Any

_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def install() -> None:
    """Hide torch from transformers; does nothing if either of them is loaded."""
    if {"torch", "transformers"} & sys.modules.keys():
        return
    modules: dict[str, Any] = sys.modules
    given = os.environ.get(_ADVICE)
    os.environ[_ADVICE] = "1"
    # None stands for a module that cannot be imported.
    modules["torch"] = None
    try:
        from transformers.utils.import_utils import is_torch_available  # noqa: PLC0415

        # The answer is cached.
        assert not is_torch_available()
    finally:
        del modules["torch"]
        if given is None:
            del os.environ[_ADVICE]
        else:
            os.environ[_ADVICE] = given
