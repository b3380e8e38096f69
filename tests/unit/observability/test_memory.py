"""Memory measured in fresh processes."""

import json
import platform
import subprocess
import sys

import pytest

MIB = 2**20


def run_python(program: str) -> dict[str, int]:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(result.stdout)
    return found


def test_200_mib_written_and_freed_show_in_the_peak_but_no_longer_in_the_present() -> None:
    found = run_python(
        "import json; from mindrl.platform.host_memory import process_memory\n"
        "before = process_memory()\n"
        "block = bytearray(b'x') * (200 * 2**20); held = process_memory()\n"
        "del block; after = process_memory()\n"
        "print(json.dumps({'before': before.rss_bytes, 'held': held.rss_bytes,\n"
        "    'after': after.rss_bytes, 'peak': after.peak_rss_bytes}))\n"
    )
    # Other allocations and the kernel's lazy counters move by less than 10 MiB.
    assert found["held"] - found["before"] == pytest.approx(200 * MIB, abs=10 * MIB)
    assert found["after"] - found["before"] == pytest.approx(0, abs=10 * MIB)
    assert found["peak"] - found["before"] == pytest.approx(200 * MIB, abs=10 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_the_peak_of_a_child_is_its_own_and_not_that_of_the_parent_that_started_it() -> None:
    found = run_python(
        "import subprocess, sys\n"
        "block = bytearray(b'x') * (300 * 2**20)\n"
        "program = '''\n"
        "import json; from mindrl.platform.host_memory import process_memory\n"
        "print(json.dumps({'peak': process_memory().peak_rss_bytes}))\n"
        "'''\n"
        "subprocess.run([sys.executable, '-c', program], check=True)\n"
    )
    assert 5 * MIB < found["peak"] < 150 * MIB


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_100_mib_of_freed_blocks_below_a_live_one_go_back_to_the_system_on_release() -> None:
    found = run_python(
        "import json\n"
        "from mindrl.platform.host_memory import process_memory\n"
        "from mindrl.platform.garbage import release_free_heap\n"
        "blocks = [bytes(2048) for _ in range(50_000)]; full = process_memory().rss_bytes\n"
        "last = blocks[-1]; del blocks; freed = process_memory().rss_bytes\n"
        "release_free_heap(); released = process_memory().rss_bytes\n"
        "print(json.dumps({'full': full, 'freed': freed, 'released': released}))\n"
    )
    # Without the release the heap keeps nearly all of it: that is why the function exists.
    assert found["full"] - found["freed"] < 20 * MIB
    assert found["full"] - found["released"] > 80 * MIB


def test_release_collects_a_reference_cycle_at_once() -> None:
    found = run_python(
        "import gc, json, weakref\n"
        "from mindrl.platform.garbage import release_free_heap\n"
        "class Node: pass\n"
        "gc.disable(); node = Node(); node.self = node; alive = weakref.ref(node); del node\n"
        "before = alive() is not None; release_free_heap()\n"
        "print(json.dumps({'before': before, 'after': alive() is not None}))\n"
    )
    assert found == {"before": True, "after": False}
