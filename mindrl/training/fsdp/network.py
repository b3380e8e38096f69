"""A causal language model of the transformers library, as the PyTorch-native engine takes one.

Packs and context parallelism come in through transformers' registry of attention functions: the
mask is never built, and positions say where a sequence begins. Logits are never made: the head is
read behind the last hidden states, so it must be a plain product.

Shapes: S tokens of this rank, N heads, M key-value heads, D width of a head, H hidden size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mindrl.errors import ModelError
from mindrl.models.description import ModelDescription
from mindrl.training.archon.network import Network, NetworkSettings, StagePart, attend
from mindrl.training.packs import Pack

_ATTENTION = "mindrl_packs"
_NOT_BUILT = ("sliding_window", "softcap", "s_aux")
"""What attention functions may be told and this one does not do."""


@dataclass(kw_only=True)
class _Pass:
    """What every module knows of the pass that goes on; few hand on all that they are given."""

    settings: NetworkSettings
    pack: Pack[Any] | None = None
    attended: int = 0
    """Layers that attended so far."""


class HuggingFaceNetwork(Network):
    """A model that transformers builds, without memory for its weights."""

    def __init__(
        self, folder: str, model: ModelDescription, part: StagePart, settings: NetworkSettings
    ) -> None:
        """Build it from the folder's config.json, by code of transformers alone.

        Raises:
            ModelError: transformers has no such model, or one whose tensors are not the folder's,
                or whose head is no plain product.
        """
        nn.Module.__init__(self)
        assert (settings.parallel.size, settings.head) == (1, "vocabulary"), "is refused before"
        assert model.other is not None, "a family that mindrl knows has a network of its own"
        self.folder, self.parallel = folder, settings.parallel
        self.part = part
        self.is_value, self.balance = False, None
        self.network = _built(folder)
        self.going = _Pass(settings=settings)
        for module in self.network.modules():
            module.mindrl_pass = self.going
        # FSDP2 gives the classes other names.
        names = self.network._no_split_modules or ()
        self._layers = [each for each in self.network.modules() if type(each).__name__ in names]
        found = {name: tuple(each.shape) for name, each in self.named_parameters()}
        if differing := sorted({*found.items()} ^ {*model.other.tensors}):
            raise ModelError(
                f"{folder}: the tensors of its files are not those of transformers' "
                f"{type(self.network).__name__}; the first that differs is {differing[0]}"
            )
        head = self.network.get_output_embeddings()
        if type(head) is not nn.Linear or head.bias is not None:
            raise ModelError(f"{folder}: its head {head} is no plain product of hidden states")

    @property
    def layers(self) -> list[Any]:
        """Those that FSDP2 brings together one by one."""
        return self._layers

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
        hidden_1SH: Tensor = found.last_hidden_state
        return hidden_1SH

    def head_weight(self) -> Tensor:
        """Return what turns hidden states into logits, [V, H], behind a forward pass."""
        weight: Tensor = self.network.get_output_embeddings().weight
        return weight

    def twins(self) -> dict[str, dist.ProcessGroup]:
        """Return the parameters that tensor-parallel ranks have twice: none."""
        return {}

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the names of the folder; a tied one once."""
        yield from self.network.named_parameters(prefix, recurse, remove_duplicate)

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
