"""A causal language model of the transformers library, as the PyTorch-native engine takes one.

Packs and context parallelism come in through transformers' registry of attention functions: the
mask is never built, and positions say where a sequence begins. Logits are never made: the head is
read behind the last hidden states, so it must be a plain product. Tensor parallelism goes by the
plan that transformers has of the family: `models/tensor_plans.py`.

Shapes: S tokens of this rank, N heads, M key-value heads, D width of a head, H hidden size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mindrl.errors import ModelError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.training.archon.collectives import Collective, gathered_alike, own_part
from mindrl.training.archon.network import NetworkSettings, StagePart, attend
from mindrl.training.given_network import GivenNetwork, deal_out, enters, leaves
from mindrl.training.packs import Pack

_Turn = Callable[[Tensor], Tensor]
_ATTENTION = "mindrl_packs"
_NOT_BUILT = ("sliding_window", "softcap", "s_aux")
"""What attention functions may be told and this one does not do."""
_LEARN_BY_PARTS = ("rowwise", "rowwise_split_input", "replicated_with_grad_allreduce")
"""Styles of modules whose whole parameters, biases and norms, learn from each rank's part."""


@dataclass(kw_only=True)
class _Pass:
    """What every module knows of the pass that goes on; few hand on all that they are given."""

    settings: NetworkSettings
    pack: Pack[Any] | None = None
    attended: int = 0
    """Layers that attended so far."""


class HuggingFaceNetwork(GivenNetwork):
    """A model that transformers builds, without memory for its weights."""

    def __init__(
        self, folder: str, model: ModelDescription, part: StagePart, settings: NetworkSettings
    ) -> None:
        """Build it from the folder's config.json, by code of transformers alone.

        Raises:
            ModelError: transformers has no such model, or one whose tensors are not the folder's,
                or whose head is no plain product.
        """
        network = _built(folder)
        head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
        if type(head) is not nn.Linear or head.bias is not None:
            raise ModelError(f"{folder}: its head {head} is no plain product of hidden states")
        if settings.head == "value" and head.weight is not embedding.weight:
            network.set_output_embeddings(None)
        super().__init__(network, model, part, settings)
        found = {name: tuple(each.shape) for name, each in self.named_parameters()}
        wanted = logical_shapes(model, head=settings.head)
        if differing := sorted({*found.items()} ^ {*wanted.items()}):
            raise ModelError(
                f"{folder}: the tensors of its files are not those of transformers' "
                f"{type(network).__name__}; the first that differs is {differing[0]}"
            )
        self.folder: str = folder
        self.going: _Pass = _Pass(settings=settings)
        for module in network.modules():
            module.mindrl_pass = self.going
        # FSDP2 gives the classes other names.
        names = network._no_split_modules or ()
        self._layers = [each for each in network.modules() if type(each).__name__ in names]
        if self.parallel.size > 1:
            self._share()

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Turn tokens [1, S] into hidden states [1, S, H].

        Raises:
            ModelError: A layer mixes tokens by something else than the attention of packs.
        """
        self.going.pack, self.going.attended = pack, 0
        found = self.network.base_model(
            input_ids=given, position_ids=pack.positions_1S, use_cache=False
        )
        if self.going.attended != (layers := len(self.part.layers)):
            raise ModelError(
                f"{self.folder}: {self.going.attended} of its {layers} layers attend by "
                "transformers' registry of attention functions; the others would see more than "
                "one sequence of a pack"
            )
        return self.before_head(found.last_hidden_state)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Give weights memory, and buffers what they are made of: no file has them."""
        super().to_empty(device=device, recurse=recurse)
        for name, module in self.network.named_modules():
            buffers = dict(module.named_buffers(recurse=False))
            for buffer in buffers.values():
                buffer.fill_(torch.nan if buffer.is_floating_point() else 0)
            if buffers:
                self.network._init_weights(module)
            for key, buffer in buffers.items():
                if not buffer.is_floating_point() or bool(buffer.isnan().any()):
                    raise ModelError(f"{self.folder}: transformers does not renew {name}.{key}")
        return self

    def _share(self) -> None:
        """Let tensor-parallel ranks share matrices as transformers' plan says."""
        parallel, styles = self.parallel, dict(self.other.styles)
        assert not parallel.sequence, "is refused before"
        deal_out(
            self.network, self.other, parallel, lambda path, _: styles.get(path) in _LEARN_BY_PARTS
        )
        features = partial(_features, parallel.group)
        before: Mapping[str, _Turn] = {
            "colwise": parallel.enter,
            "colwise_gather_output": parallel.enter,
            "rowwise_split_input": partial(features, own_part),
        }
        after: Mapping[str, _Turn] = {
            "colwise_gather_output": partial(features, gathered_alike),
            "rowwise": parallel.leave,
            "rowwise_split_input": parallel.leave,
        }
        for path, style in styles.items():
            module = self.network.get_submodule(path)
            if turn := before.get(style):
                enters(module, turn)
            if turn := after.get(style):
                leaves(module, turn)


def _features(group: dist.ProcessGroup, collective: Collective, hidden_1SF: Tensor) -> Tensor:
    """Let a collective over tokens go over features."""
    return collective(hidden_1SF.transpose(1, 2), group).transpose(1, 2)


def _built(folder: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(
                config,
                attn_implementation=_ATTENTION,
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except (ValueError, OSError, KeyError) as error:
        raise ModelError(f"{folder}: transformers does not build it: {error}") from error
    # Rollout engines drop nothing out.
    return network.eval()


def _attend(
    module: nn.Module,
    query_1NSD: Tensor,
    key_1MSD: Tensor,
    value_1MSD: Tensor,
    _mask: None,
    scaling: float | None = None,
    **told: Any,
) -> tuple[Tensor, None]:
    """Attend inside each sequence of a pack, as a function of transformers' registry.

    Returns:
        [1, S, N, D].

    Raises:
        ModelError: A layer asks for more than causal attention.
    """
    going: Any = module.mindrl_pass
    if unbuilt := [name for name in _NOT_BUILT if told.get(name) is not None]:
        raise ModelError(f"{type(module).__name__} asks for {', '.join(unbuilt)} in attention")
    going.attended += 1
    heads = [each[0].transpose(0, 1) for each in (query_1NSD, key_1MSD, value_1MSD)]
    kernel, context = going.settings.attention, going.settings.context
    return attend(kernel, context, heads, going.pack, scaling)[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Make no mask: packs say where sequences lie."""


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, _no_mask)
