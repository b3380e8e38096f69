"""What the tests of DeepSeek's training side call in prepared processes."""

from offload_probe import arena
from torch import Tensor, nn
from training_messages import Case, Course, Weights
from training_probe import build, copied

from mindrl.training.engine import StatePart
from mindrl.training.megatron.model import unwrap
from mindrl.workers.device_regions import StoredRegion

Made = dict[str, tuple[int, ...]]


def made(cases: list[Case]) -> list[Made]:
    """Return the shapes of all that Megatron saves of each model, by its own names."""
    return [_made(build(case).chunks) for case in cases]


def _made(chunks: list[nn.Module]) -> Made:
    return {
        f"chunk{index}.{name}": tuple(tensor.shape)
        for index, chunk in enumerate(chunks)
        for name, tensor in unwrap(chunk).state_dict().items()
        if isinstance(tensor, Tensor)
    }


def biases(case: Case, course: Course) -> Weights:
    """Release all weights, bring them back, take the updates; returns the routers' biases."""
    model = build(case, course.optimizer)
    weights = StoredRegion(model.state(StatePart.PARAMETERS), arena(64 << 20), "cpu")
    for tensor in model.local_tensors().values():
        weights.offload_storage_of(tensor)
    weights.offload()
    weights.onload()
    for minibatch in course.minibatches:
        model.train_step(minibatch, course.micro_batching, course.loss)
    local = copied(model)
    return {name: tensor for name, tensor in local.items() if name.endswith("expert_bias")}
