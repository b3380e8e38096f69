"""Megatron-core's process groups for any numbering of the ranks.

Upstream: megatron-core 0.13 to 0.16.1 (checked with 0.16.1). Reason: `initialize_model_parallel`
numbers the ranks by one order of whole dimensions, the same for experts and for all else (see its
source). It cannot split a dimension in two, as in data 2, tensor 2, data 2, and cannot number the
experts in a separate order. Some reshards move fewer bytes in such an order. No longer needed when
an order string or an argument can express those groups: tests/unit/platform checks all order
strings. 0.19 has another dimension, `gtp_remat`, of size 1 here.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from megatron.core import parallel_state

GroupsOf = Callable[[Collection[str]], list[list[int]]]
"""Maps dimensions to the groups of ranks that differ only in them."""
_REMATERIALIZED = "gtp_remat"


@contextmanager
def rank_groups(dense: GroupsOf, experts: GroupsOf) -> Iterator[None]:
    """Make `initialize_model_parallel` use groups from two functions.

    Their arguments are Megatron's names: `tp`, `cp`, `dp`, `pp` of the dense grid; `tp` (of each
    expert), `ep`, `dp` (of each expert), `pp` of the experts.
    """
    upstream = parallel_state.RankGenerator
    # Megatron creates the generator of the dense grid first.
    waiting = [dense, experts]

    def generator(**_: object) -> SimpleNamespace:
        groups_of = waiting.pop(0)
        return SimpleNamespace(
            get_ranks=lambda token: groups_of(set(token.split("-")) - {_REMATERIALIZED}),
            get_gtp_ranks=lambda _size: groups_of(()),
        )

    parallel_state.RankGenerator = generator
    try:
        yield
    finally:
        parallel_state.RankGenerator = upstream
    assert not waiting, "Megatron did not request both grids"
