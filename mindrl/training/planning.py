"""What a plan asks of the training engine: the tables, bytes and rules of the one there is.

Imports no torch, and neither does what it names.
"""

from mindrl.training.megatron.legality import legal_orders
from mindrl.training.megatron.legality import megatron_findings as training_findings
from mindrl.training.megatron.sharding import ExpertStorage
from mindrl.training.megatron.sharding import megatron_sharding as training_sharding
from mindrl.training.megatron.state_bytes import trained_bytes

__all__ = [
    "ExpertStorage",
    "legal_orders",
    "trained_bytes",
    "training_findings",
    "training_sharding",
]
