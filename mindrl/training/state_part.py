"""The parts of the state of a model that is trained, as they leave the device and come back."""

from enum import Enum


class StatePart(Enum):
    """Parts of the state of a model that is trained."""

    PARAMETERS = "train_param"
    GRADIENTS = "train_grad"
    OPTIMIZER = "train_optimizer"
