"""Mixture of experts: each rank routes its own tokens to the ranks that have the experts.

Each rank has some of the experts, or parts of them. A token goes to every rank that has a part of
its expert, and the results are summed where it came from. So the order of the ranks, and how the
rest of the model is cut, do not matter here.

Shapes: S tokens of this rank, K experts of a token, E experts, L experts of this rank, R rows (a
token for one of its experts), P ranks that have all experts together, H hidden size.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.training.archon.balance import Balance, Spans
from mindrl.training.archon.meshes import ExpertMeshes
from mindrl.training.archon.tensor import TensorParallel, local
from mindrl.training.context import exchanged
from mindrl.training.pack_routes import PackRoutes


class Router(nn.Module):
    """Computes routing probabilities, in float32: rounding would change the choice of experts."""

    def __init__(self, model: ModelDescription, experts: int, parallel: TensorParallel) -> None:
        """Build the router on the meta device; tensor-parallel ranks must have different tokens."""
        super().__init__()
        assert parallel.is_cut or parallel.size == 1, "ranks with the same tokens"
        self.weight = parallel.parameter(experts, model.hidden_size)
        self.sums = parallel.size > 1

    def forward(self, read_SH: Tensor) -> Tensor:
        """Return the probabilities of all experts, [S, E]."""
        weight_EH = local(self.weight, sums=self.sums)
        return functional.linear(read_SH.float(), weight_EH.float()).softmax(-1)


class SharedGate(Router):
    """Computes how much of the shared expert's output each token uses: its only expert."""

    def forward(self, read_1SH: Tensor) -> Tensor:
        """Return numbers from 0 to 1, [1, S, 1]."""
        return functional.linear(read_1SH, local(self.weight, sums=self.sums)).sigmoid()


class Experts(nn.Module):
    """A rank's experts of one layer, in two stacked tensors."""

    def __init__(self, hidden: int, moe: MoeDescription, meshes: ExpertMeshes) -> None:
        """Build the experts on the meta device."""
        super().__init__()
        own, inner = moe.num_experts // meshes.ep, moe.intermediate_size // meshes.etp
        self.gate_up = nn.Parameter(torch.empty(own, 2 * inner, hidden, device="meta"))
        self.down = nn.Parameter(torch.empty(own, hidden, inner, device="meta"))

    def forward(self, rows_RH: Tensor, counts_L: Tensor) -> Tensor:
        """Apply the experts to rows sorted by expert; `counts_L` rows for each."""
        ends_L = counts_L.cumsum(0, dtype=torch.int32)
        gate_up = self.gate_up.transpose(-2, -1)
        gate, up = functional.grouped_mm(rows_RH, gate_up, offs=ends_L).chunk(2, -1)
        return functional.grouped_mm(
            functional.silu(gate) * up, self.down.transpose(-2, -1), offs=ends_L
        )


class Mixture(nn.Module):
    """A feed-forward part with several experts, of which each token uses some."""

    def __init__(
        self,
        model: ModelDescription,
        parallel: TensorParallel,
        meshes: ExpertMeshes,
        balance: Balance | None,
    ) -> None:
        """Build the layer on the meta device."""
        super().__init__()
        moe = model.moe
        assert moe is not None, "the model has no experts"
        self.moe, self.meshes, self.balance = moe, meshes, balance
        self.index = 0
        """Number of the layer among those with experts of this rank."""
        self.gate = Router(model, moe.num_experts, parallel)
        self.experts = Experts(model.hidden_size, moe, meshes)

    # Not compiled: only the host knows how many tokens go to each expert.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, hidden_1SH: Tensor, spans: Spans | None, routes: PackRoutes | None = None
    ) -> Tensor:
        """Return the new hidden states. A collective over the ranks that share the experts."""
        probs_SE = self.gate(hidden_1SH[0])
        weights_SK, own_SK = probs_SE.topk(self.moe.num_experts_per_tok, -1)
        ids_SK = own_SK
        if routes is not None:
            ids_SK = routes.chosen(self.index, own_SK)
            weights_SK = probs_SE.gather(-1, ids_SK)
        if self.moe.norm_topk_prob:
            weights_SK = weights_SK / weights_SK.sum(-1, keepdim=True)
        if spans is not None and self.balance is not None:
            # The router learns to spread its own choices.
            weights_SK = self.balance.attached(weights_SK, probs_SE, own_SK, spans)
        return self._mixed(hidden_1SH[0], weights_SK, ids_SK)[None]

    def _mixed(self, read_SH: Tensor, weights_SK: Tensor, ids_SK: Tensor) -> Tensor:
        counts_E = torch.bincount(ids_SK.flatten(), minlength=self.moe.num_experts)
        counts_PL = counts_E.view(self.meshes.ep, -1)[self.meshes.parts]
        by_expert = ids_SK.flatten().argsort(stable=True)
        # Ranks with parts of the same experts get the same rows.
        runs = torch.split(by_expert, counts_E.view(self.meshes.ep, -1).sum(1).tolist())
        choice_R = torch.cat([runs[part] for part in self.meshes.parts])
        token_R = choice_R // self.moe.num_experts_per_tok
        done_RH = self._at_their_ranks(read_SH.index_select(0, token_R), counts_PL)
        weighted_RH = done_RH * weights_SK.flatten().index_select(0, choice_R)[:, None]
        mixed_SH = weighted_RH.new_zeros(read_SH.shape).index_add(0, token_R, weighted_RH)
        return mixed_SH.to(read_SH.dtype)

    def _at_their_ranks(self, rows_RH: Tensor, counts_PL: Tensor) -> Tensor:
        """Send rows to the ranks of their experts, and return the results."""
        group = self.meshes.group
        if group is None:
            return self.experts(rows_RH, counts_PL[0])  # type: ignore[no-any-return]
        got_PL = torch.empty_like(counts_PL)
        dist.all_to_all_single(got_PL, counts_PL, group=group)
        sizes = got_PL.sum(1).tolist(), counts_PL.sum(1).tolist()
        here_RH = exchanged(rows_RH, group, *sizes)
        # Rows arrive by rank; sort them by expert.
        expert_R = torch.arange(got_PL.size(1), device=got_PL.device).repeat(group.size())
        order_R = expert_R.repeat_interleave(got_PL.flatten()).argsort(stable=True)
        done_RH = self.experts(here_RH.index_select(0, order_R), got_PL.sum(0))
        return exchanged(done_RH.index_select(0, order_R.argsort()), group, *sizes[::-1])
