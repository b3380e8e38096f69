"""What a plan asks of the rollout engine: the tables, bytes and rules of the one there is.

Imports no torch, and neither does what it names.
"""

from mindrl.rollout.vllm.legality import vllm_findings as rollout_findings
from mindrl.rollout.vllm.sharding import kv_bytes_per_token
from mindrl.rollout.vllm.sharding import vllm_sharding as rollout_sharding

__all__ = ["kv_bytes_per_token", "rollout_findings", "rollout_sharding"]
