"""The estimated memory of graphs: when there are some, and what it takes from."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_memory_plan import MIB, plan_of

from mindrl.preflight.memory_plan import too_small

GRAPHS = 11 * 28 * MIB
"""1 MiB for each of 28 layers in graphs of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128 sequences."""
EAGER = ("generate_config.enforce_eager=true", "generate_config.cudagraph_capture_sizes=null")


@pytest.mark.parametrize(
    ("settings", "nbytes"),
    [
        ((), GRAPHS),
        (("generate_config.enforce_eager=true",), 0),
        (("generate_config.cudagraph_capture_sizes=[8,64]",), 2 * 28 * MIB),
        # Two stages of 14 layers.
        (("generate_config.infer_pipeline_parallel_size=2",), 11 * 14 * MIB),
        # 51 sizes in parts, and the 35 of them up to 256 whole, at half a MiB.
        (("rl_config.device=gpu", "generate_config.max_num_seqs=256"), (51 + 35) * 14 * MIB),
        (("rl_config.device=cpu",), 0),
    ],
)
def test_graphs_are_on_the_device_at_all_times_and_take_from_the_kv_cache(
    settings: Sequence[str], nbytes: int
) -> None:
    memory, eager = plan_of(*settings), plan_of(*settings, *EAGER)
    assert memory.graphs == nbytes
    assert eager.graphs == 0
    assert eager.kv_cache_bytes is not None
    assert memory.kv_cache_bytes == eager.kv_cache_bytes - nbytes
    assert memory.needed_bytes == memory.peak_bytes + nbytes
    tight = replace(memory, capacity_bytes=memory.needed_bytes)
    assert tight.fits
    more = replace(tight, graphs=nbytes + MIB)
    assert not more.fits
    assert f"', {nbytes / MIB + 1:,.1f} MiB of them for graphs, and the device" in too_small(more)
