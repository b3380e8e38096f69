"""The trained policy. Shapes: B sequences, T positions, S tokens of a pack, H hidden size."""

from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.algorithms.loss_terms import LossTerms
from mindrl.batch.experience import Minibatch
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.packs import Pack
from mindrl.training.megatron.scoring import ScoringModel
from mindrl.training.megatron.trained import TrainedModel, own_weights


class TrainedActor(TrainedModel[ScoringModel, Minibatch]):
    """A scoring model that learns from advantages."""

    def __init__(self, model: ScoringModel, settings: OptimizerSettings, loss: GrpoLoss) -> None:
        """Wrap the model; its weights move into Megatron's flat buffers."""
        super().__init__(model, settings)
        self.loss = loss

    def terms(self, pack: Pack[Minibatch], hidden_1SH: Tensor) -> LossTerms:
        """Return what this rank's tokens of a pack add to the loss."""
        minibatch, device = pack.source, hidden_1SH.device
        logprobs_BT, entropy_BT = self.model.score(hidden_1SH, pack)
        ref_logprobs_BT = minibatch.ref_logprobs_BT
        return self.loss(
            logprobs_BT=logprobs_BT,
            entropy_BT=entropy_BT,
            old_logprobs_BT=minibatch.old_logprobs_BT.to(device),
            advantages_BT=minibatch.advantages_BT.to(device),
            token_weights_BT=own_weights(pack, minibatch.token_weights_BT),
            ref_logprobs_BT=None if ref_logprobs_BT is None else ref_logprobs_BT.to(device),
        )
