"""Shared memory of the queues between the ranks of a replica.

vLLM removes it when the engine is deleted. A worker ends without that, so each run with tensor
parallelism would leave 24 MiB in /dev/shm.
"""

from vllm.distributed import get_tp_group


def remove_names() -> None:
    """Remove the names of the memory; the last process that maps it then frees it.

    Call it after all ranks of the replica have started engines and so opened it.
    """
    queue = get_tp_group().mq_broadcaster
    buffer = None if queue is None else queue.buffer
    if buffer is not None and buffer.is_creator:
        buffer.shared_memory.unlink()
        # Otherwise a deleted engine would remove it again.
        buffer.is_creator = False
