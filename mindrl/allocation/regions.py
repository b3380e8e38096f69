"""The large things that take turns on a device. Pure Python."""

from enum import Enum


class TrainRegion(Enum):
    """Parts of the training state that can leave the device."""

    PARAMETERS = "train_param"
    GRADIENTS = "train_grad"
    OPTIMIZER = "train_optimizer"
