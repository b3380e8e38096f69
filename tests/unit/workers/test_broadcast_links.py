"""Whole tensors on their way to a server that speaks SGLang's endpoints.

From two ranks that each have a part: tests/distributed/test_sglang_link.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sglang_like_server import VERSIONS

from mindrl.platform.rendezvous import listen

HERE = Path(__file__).parent
STAND_IN = HERE.parent / "rollout/sglang_like_server.py"


def test_a_server_has_each_version_to_the_bit_also_behind_a_meeting_that_was_called_off(
    random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    model = random_model_of("qwen2")
    with listen("127.0.0.1") as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(STAND_IN), str(port), str(model), "of-this-test", VERSIONS[-1]]
    with (tmp_path / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = subprocess.run(
            [sys.executable, HERE / "broadcaster.py", f"http://127.0.0.1:{port}", model],
            stdout=subprocess.PIPE,
            check=True,
            timeout=600,
        )
    finally:
        server.kill()
        server.wait()
    said = json.loads(found.stdout.splitlines()[-1])
    assert said["linked"] == [None, "it is gone", None]
    assert said["arrived"] == [True, True, True]
    # Two versions to one rank; nothing had to be gathered.
    assert said["sent"] == 2 * said["whole"]
