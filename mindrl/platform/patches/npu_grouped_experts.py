"""MindSpeed's grouped experts without Megatron's training package.

Upstream: MindSpeed core_r0.16.0 with megatron-core 0.16. Reason: every forward pass of its
grouped experts asks `grouped_matmul_util` for a product in 8 bits. That module imports
`megatron.training`, by way of an overlap that nobody asked for, and the published megatron-core
does not have it. Here stands a module in its place that answers what it would answer without
`fp8`: there is none. It is no longer needed when the module imports `megatron.training` no more:
scripts/check_npu_contract.py looks. Installed in tests/npu_simulated; the forward pass, whose
product a kernel of CANN makes, has not been run.
"""

import sys
from types import ModuleType

MODULE = "mindspeed.core.transformer.moe.grouped_matmul_util"


def _no_product() -> None:
    """Say that weights are multiplied in the precision that they have."""


def install() -> None:
    """Put the module there before the experts ask for it; repeated calls do nothing more."""
    answer = ModuleType(MODULE, __doc__)
    answer.get_gmm_quant_func = _no_product  # type: ignore[attr-defined]
    sys.modules.setdefault(MODULE, answer)
