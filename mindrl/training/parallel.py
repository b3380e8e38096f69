"""Process groups of the training side."""

from megatron.core import parallel_state, tensor_parallel


def initialise_model_parallel(*, tensor_parallel_size: int, seed: int) -> None:
    """Make Megatron's groups; the default process group must exist already."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel_size)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
