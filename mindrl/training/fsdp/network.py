"""A causal language model of the transformers library, as a network of the PyTorch-native engine.

Packs and context parallelism use transformers' registry of attention functions: no mask is built,
and positions mark where a sequence begins. Logits are never made: the engine reads the head's
weight after the last hidden states, so the head must be a plain product. Tensor parallelism follows
transformers' plan for the family: `models/tensor_plans.py`.

Shapes: S tokens of this rank, N heads, M key-value heads, D width of a head, H hidden size, F
features of a module, R rows of L tokens (one row with all S tokens, or sequences of a pack).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mindrl.errors import ModelError
from mindrl.models.description import ModelDescription
from mindrl.training.archon.collectives import Collective, gathered_by_all, own_part
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.context import attend
from mindrl.training.fsdp.experts import experts_of_layers, stack_name, stacked_shapes
from mindrl.training.fsdp.gated_delta import gated_delta_nets, separate_sequences
from mindrl.training.given_network import (
    GivenNetwork,
    cuts_by_name,
    deal_out,
    enters,
    leaves,
    reads_directly,
)
from mindrl.training.packs import Pack
from mindrl.training.transformers_modules import (
    built_on_meta,
    fill_buffers,
    refuse_other_tensors,
)

_Turn = Callable[[Tensor], Tensor]
ATTENTION = "mindrl_packs"
"""Name of this attention function in transformers' registry."""
_NOT_BUILT = ("sliding_window", "softcap", "s_aux")
"""Attention arguments that this attention function does not support."""
_LEARN_BY_PARTS = ("rowwise", "rowwise_split_input", "replicated_with_grad_allreduce")
"""Styles of modules whose replicated parameters (biases, norms) get each rank's part of the
gradient."""


@dataclass(kw_only=True)
class _Pass:
    """State of the current pass, shared by all modules; few of them forward extra arguments."""

    settings: NetworkSettings
    pack: Pack[Any] | None = None
    attended: int = 0
    """Number of layers that have attended so far."""


class HuggingFaceNetwork(GivenNetwork):
    """A model that transformers builds on the meta device."""

    def __init__(
        self, folder: str, model: ModelDescription, part: StagePart, settings: NetworkSettings
    ) -> None:
        """Build the model from the folder's config.json, with code of transformers only.

        Raises:
            ModelError: transformers lacks the model, its tensors differ from the folder's, or its
                head is not a plain product.
        """
        network = self.built(folder)
        head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
        if type(head) is not nn.Linear or head.bias is not None:
            raise ModelError(f"{folder}: its head {head} must be a torch.nn.Linear without bias")
        if settings.head == "value" and head.weight is not embedding.weight:
            network.set_output_embeddings(None)
        super().__init__(network, model, part, settings)
        place = folder, f"transformers' {type(network).__name__}"
        refuse_other_tensors(place, self, stacked_shapes(model, settings.head))
        self.folder: str = folder
        self.going: _Pass = _Pass(settings=settings)
        for module in network.modules():
            module.mindrl_pass = self.going
        if self.other.delta:
            separate_sequences(network)
        # Before FSDP2 renames the classes.
        names = network._no_split_modules or ()
        self._layers = [each for each in network.modules() if type(each).__name__ in names]
        if self.parallel.size > 1:
            self._share()

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Turn tokens [1, S] into hidden states [1, S, H].

        Raises:
            ModelError: A layer mixes tokens by something other than the registered attention
                function.
        """
        self.going.pack, self.going.attended = pack, 0
        hidden_1SH = self.last_hidden(given, pack)
        if self.going.attended != (layers := len(self.part.layers)):
            raise ModelError(
                f"{self.folder}: only {self.going.attended} of its {layers} layers use "
                "transformers' registry of attention functions; the others would mix the sequences "
                "of a pack"
            )
        return self.before_head(hidden_1SH)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the names of the engine's tables; a tied one once."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield stack_name(name), parameter

    def experts_apart(self) -> Iterator[tuple[Any, DeviceMesh, int]]:
        """Yield each layer's experts: see `Network`; tensor-parallel ranks read the same tokens."""
        for experts in experts_of_layers(self.network):
            assert self.settings.experts is not None, "validated: the family is known"
            yield experts, self.settings.experts.data, self.parallel.size

    def last_hidden(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Return the decoder's output for tokens [1, S]."""
        found = self.network.base_model(
            input_ids=given, position_ids=pack.positions_1S, use_cache=False
        )
        hidden_1SH: Tensor = found.last_hidden_state
        return hidden_1SH

    def built(self, folder: str) -> Any:
        """Return the model on the meta device.

        Raises:
            ModelError: transformers cannot build it.
        """
        return built_on_meta(folder, AutoModelForCausalLM, ATTENTION)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Allocate the weights, and recompute the buffers: no file contains them."""
        super().to_empty(device=device, recurse=recurse)
        fill_buffers(self.folder, self.network)
        return self

    def _share(self) -> None:
        """Cut the model over the tensor-parallel ranks by transformers' plan."""
        parallel, other = self.parallel, self.in_modules
        styles = dict(other.styles)
        assert not parallel.sequence, "validated: an engine without sequence parallelism"
        deal_out(
            *(self.network, cuts_by_name(other), parallel),
            lambda path, _: styles.get(path) in _LEARN_BY_PARTS,
            other.embedding,
        )
        for module in gated_delta_nets(self.network):
            reads_directly(module, module.conv1d)
        features = partial(_features, parallel.group)
        before: Mapping[str, _Turn] = {
            "colwise": parallel.enter,
            "colwise_gather_output": parallel.enter,
            "rowwise_split_input": partial(features, own_part),
        }
        after: Mapping[str, _Turn] = {
            "colwise_gather_output": partial(features, gathered_by_all),
            "rowwise": parallel.leave,
            "rowwise_split_input": parallel.leave,
        }
        for path, style in styles.items():
            module = self.network.get_submodule(path)
            if turn := before.get(style):
                enters(module, turn)
            if turn := after.get(style):
                leaves(module, turn)


def _features(group: dist.ProcessGroup, collective: Collective, hidden_RLF: Tensor) -> Tensor:
    """Apply a collective over tokens to the feature dimension."""
    R, L, _ = hidden_RLF.shape
    changed_1FS = collective(hidden_RLF.flatten(0, 1).T[None], group)
    return changed_1FS[0].T.reshape(R, L, -1)


def _attend(
    module: nn.Module,
    query_1NSD: Tensor,
    key_1MSD: Tensor,
    value_1MSD: Tensor,
    _mask: None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend inside each sequence of a pack; registered in transformers.

    Returns:
        [1, S, N, D].

    Raises:
        ModelError: A layer requires more than causal attention.
    """
    going: Any = module.mindrl_pass
    if unbuilt := [name for name in _NOT_BUILT if options.get(name) is not None]:
        raise ModelError(f"{type(module).__name__} requires {', '.join(unbuilt)} in attention")
    going.attended += 1
    heads = [each[0].transpose(0, 1) for each in (query_1NSD, key_1MSD, value_1MSD)]
    kernel, context = going.settings.attention, going.settings.context
    return attend(kernel, context, heads, going.pack.attending, scaling)[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Return no mask: the pack has the bounds of the sequences."""


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, _no_mask)
