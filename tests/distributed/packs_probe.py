"""What the tests of packs call in prepared processes; see forked_workers.run."""

import torch
from packs_messages import PackFacts, Rules

from mindrl.batch.sequences import Sequences
from mindrl.training.megatron.passes import packed_sequences
from mindrl.training.packs import Pack, PackRules


def packs(sequences: Sequences, rules: Rules) -> list[PackFacts]:
    """Lay sequences out for each context-parallel rank."""
    return [
        facts(
            Pack.of(
                sequences,
                PackRules(
                    removes_padding=rules.removes_padding,
                    shares_prompts=rules.shares_prompts,
                    cp=rules.cp,
                    cp_rank=rank,
                    ring=1,
                    tokens_multiple=rules.tokens_multiple,
                    device_type="cpu",
                ),
            )
        )
        for rank in range(rules.cp)
    ]


def facts(pack: Pack[Sequences]) -> PackFacts:
    """Return what a pack says."""
    told, packing = packed_sequences(pack), pack.packing
    return PackFacts(
        tokens_S=pack.tokens_1S[0],
        positions_S=pack.positions_1S[0],
        predicting_N=pack.predicting_N,
        targets_N=pack.targets_N,
        places_N=pack.places_N,
        spread_BT=pack.spread(torch.arange(1.0, 1.0 + len(pack.places_N))),
        starts=packing.starts,
        longest=packing.longest,
        cumulative=packing.cumulative.tolist(),
        for_megatron=(
            told.qkv_format,
            told.cu_seqlens_q.tolist(),
            told.cu_seqlens_kv.tolist(),
            told.max_seqlen_q,
            told.max_seqlen_kv,
        ),
        gathered=pack.gathered,
        natural=None if pack.gathered is None else pack.attending.natural,
    )
