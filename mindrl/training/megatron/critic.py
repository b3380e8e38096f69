"""The trained critic. Shapes: B sequences, T positions, S tokens of a pack, H hidden size."""

from torch import Tensor

from mindrl.algorithms.loss_terms import LossTerms
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.experience import CriticMinibatch
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.packs import Pack
from mindrl.training.megatron.trained import TrainedModel, own_weights
from mindrl.training.megatron.value import ValueModel


class TrainedCritic(TrainedModel[ValueModel, CriticMinibatch]):
    """A value model that learns from returns."""

    def __init__(self, model: ValueModel, settings: OptimizerSettings, loss: ValueLoss) -> None:
        """Wrap the model; its weights move into Megatron's flat buffers."""
        super().__init__(model, settings)
        self.loss = loss

    def terms(self, pack: Pack[CriticMinibatch], hidden_1SH: Tensor) -> LossTerms:
        """Return what this rank's tokens of a pack add to the loss."""
        minibatch, device = pack.source, hidden_1SH.device
        return self.loss(
            values_BT=self.model.values(hidden_1SH, pack),
            old_values_BT=minibatch.old_values_BT.to(device),
            returns_BT=minibatch.returns_BT.to(device),
            token_weights_BT=own_weights(pack, minibatch.token_weights_BT),
        )
