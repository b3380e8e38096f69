"""On what the ranks of a test run: what their collectives carry."""

import torch.distributed as dist


def device_type() -> str:
    """Return torch's name of it."""
    return "npu" if dist.get_backend() == "hccl" else "cpu"
