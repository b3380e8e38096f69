"""A teacher on a real vLLM server: its log-probs, and a run that learns from it."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch
from program import CHECKOUT, start_program
from transformers import AutoModelForCausalLM

from mindrl.batch.sequences import Sequences
from mindrl.config.teacher import Candidates
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.teacher import ServedTeacher

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

START_SECONDS = 420
TOKEN = "for-this-test"


@pytest.fixture(scope="module")
def address(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the tiny model with vLLM."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "token").write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--port", port, "--token-file", folder / "token")
    given = (tiny_model, *options, "--", "--dtype", "float32")
    with (folder / "said.txt").open("w") as said:
        command = [sys.executable, "cli/serve.py", *map(str, given)]
        server = subprocess.Popen(command, cwd=CHECKOUT, stdout=said, stderr=said)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while not is_up(url):
            text = (folder / "said.txt").read_text()
            assert server.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(1)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def is_up(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


@pytest.mark.parametrize("number", [0, 5])
def test_its_log_probs_are_those_of_the_model(number: int, address: str, tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    tokens_BT = torch.randint(0, model.config.vocab_size, (3, 40), generator=generator)
    lengths_B = torch.tensor([40, 17, 30])
    places_T = torch.arange(40)
    batch = Sequences(
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        response_mask_BT=(places_T >= 6) & (places_T < lengths_B[:, None]),
    )
    teacher = ServedTeacher(
        client=ServerClient(url=address, token=TOKEN, name="the teacher"),
        candidates=Candidates(number=number, below=model.config.vocab_size) if number else None,
        seconds=120.0,
    )
    found = teacher(batch)
    with torch.no_grad():
        scores_BTV = model(tokens_BT).logits.log_softmax(dim=-1)[:, :-1]
    after_BT = scores_BTV.gather(-1, tokens_BT[:, 1:, None])[..., 0]
    mask_BT = batch.response_mask_BT[:, 1:]
    # Sums of float32 in another order.
    torch.testing.assert_close(
        found.logprobs_BT[:, 1:][mask_BT], after_BT[mask_BT], rtol=1e-4, atol=1e-4
    )
    if number:
        assert found.likely is not None
        best_NK = scores_BTV[mask_BT].topk(number).values
        torch.testing.assert_close(found.likely.logprobs_KR.T, best_NK, rtol=1e-4, atol=1e-4)


def test_a_run_starts_at_no_distance_from_itself_as_its_teacher(
    address: str, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    steps = ("megatron_training.train_iters=2", "rl_config.test_freq=0")
    server = (f"teacher_config.url={address}", f"teacher_config.token_file={tmp_path / 'token'}")
    words = [f"actor_config.load={tiny_model}", "teacher_config.load=null", *server, *steps]
    run = start_program(tmp_path / "run", ["--config-name=distill_tiny_cpu", *words])
    assert run.process.wait(timeout=600) == 0, run.text()
    first, second = (step["teacher/kl"] for step in run.steps())
    # Both compute the log-probs of the same weights, and then those of the first update.
    assert abs(first) < 1e-4
    assert abs(second) > 10 * abs(first)
