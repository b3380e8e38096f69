"""MindSpeed's grouped experts without Megatron's training package.

Upstream: MindSpeed core_r0.16.0 with megatron-core 0.16. Reason: every forward pass of its grouped
experts requests an 8-bit product from `grouped_matmul_util`. That module imports
`megatron.training` indirectly, through an unused overlap, and the published megatron-core does not
contain it. This module replaces it and returns what it would return without `fp8`: no product. No
longer needed when the module stops importing `megatron.training`: scripts/check_npu_contract.py
checks. Installed in tests/npu_simulated; the forward pass, whose product is computed by a kernel of
CANN, has not been run.
"""

import sys
from types import ModuleType

MODULE = "mindspeed.core.transformer.moe.grouped_matmul_util"


def _no_product() -> None:
    """Return None: weights are multiplied in their own precision."""


def install() -> None:
    """Install the module before the experts import it; repeated calls have no effect."""
    answer = ModuleType(MODULE, __doc__)
    answer.get_gmm_quant_func = _no_product  # type: ignore[attr-defined]
    sys.modules.setdefault(MODULE, answer)
