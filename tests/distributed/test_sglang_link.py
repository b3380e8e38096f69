"""Whole tensors on their way from two training ranks to a server that speaks SGLang's endpoints.

The server is a stand-in (tests/unit/rollout/sglang_like_server.py): its group and weights are real,
its engine is a model of transformers.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from linked_groups import LinkedGroups, begin_all
from safetensors.torch import load_file
from sglang_like_server import VERSIONS
from transformers import AutoModelForCausalLM

from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.servers import RunServers
from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import call_off, link_name, listen
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.replica import HttpReplica

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

MakeModel = Callable[..., Path]
STAND_IN = Path(__file__).parents[1] / "unit/rollout/sglang_like_server.py"
APART: dict[str, Any] = {
    "rl_config.use_integrated_worker": False,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.rollout_resource.num_npus": 1,
    "actor_config.tensor_model_parallel_size": 2,
    "generate_config.backend": "sglang:d1",
    # Several buckets; a matrix of the model has 211 x 128 x 4 bytes.
    "generate_config.reshard_bucket_mib": 1,
    "generate_config.reshard_timeout_seconds": 60,
    "generate_config.verify_weights": "always",
}
SAMPLED = Sampling(section=SamplingConfig(temperature=0.7, max_tokens=12), stop_token_ids=(7,))


@dataclass
class Served:
    """A training side and a server of whole tensors."""

    linked: LinkedGroups
    replica: HttpReplica

    def link(self, generation: int) -> list[str | None]:
        begin_all(self.linked.trainers, "open_link", 0, generation)
        self.replica.server.join_link(self.linked.address, 0, generation)
        said: list[str | None] = self.linked.trainers.collect()
        return said

    def publish(self, version: int) -> list[dict[int, str]]:
        begin_all(self.linked.trainers, "send_weights", [0])
        try:
            self.replica.receive_weights(version)
        finally:
            lost: list[dict[int, str]] = self.linked.trainers.collect()
        return lost


@pytest.fixture(scope="module")
def served(
    forked_workers: ForkedWorkers,
    run_config: Callable[..., RunConfig],
    random_model_of: MakeModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    folder, model = tmp_path_factory.mktemp("sglang"), random_model_of("qwen2")
    (folder / "token").write_text("of-this-test", "utf-8")
    with listen("127.0.0.1") as free:
        port = free.getsockname()[1]
    servers = {
        "generate_config.servers": [f"http://127.0.0.1:{port}"],
        "generate_config.server_token_file": str(folder / "token"),
    }
    plan = unordered_shardings(run_config(model, APART | servers)).ordered.plan
    command = [sys.executable, str(STAND_IN), str(port), str(model), "of-this-test", VERSIONS[-1]]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
    linked = LinkedGroups(forked_workers, plan)
    try:
        servers = RunServers.open(plan, PLATFORMS["cpu"], folder, print)
        group = servers.join(0, lambda: refuse_ended(server, folder))
        yield Served(linked, group.replica)
    finally:
        linked.stop()
        server.kill()
        server.wait()


def refuse_ended(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert server.poll() is None, (folder / "log.txt").read_text("utf-8")[-3000:]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest()


def test_a_server_has_each_version_to_the_bit_and_draws_with_it(
    served: Served, tmp_path: Path
) -> None:
    assert served.link(0) == [None, None]
    for version in range(2):
        served.linked.trainers.call_all("change", version)
        assert served.publish(version) == [{}, {}]
        folder = tmp_path / str(version)
        served.linked.trainers.call_all("export", str(folder), {})
        exported = load_file(folder / "model.safetensors")
        found = json.loads(served.replica.client.post("/weights", {}, seconds=60))
        assert exported
        for name, tensor in exported.items():
            assert found[name] == digest(tensor), name
        prompts, seeds = [[5, 9, 40], [200, 3]], [1, 2]
        answers = served.replica.generate(prompts, SAMPLED, seeds)
        model = AutoModelForCausalLM.from_pretrained(folder)
        for prompt, (tokens, logprobs) in zip(prompts, answers.each(), strict=True):
            ids = torch.tensor([[*prompt, *tokens.tolist()]])
            with torch.no_grad():
                logits = model(ids).logits[0, len(prompt) - 1 : -1] / 0.7
            of_model = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            # The same weights; a whole sequence rounds otherwise than one that grows.
            torch.testing.assert_close(logprobs, of_model, atol=1e-4, rtol=0)


def test_training_rank_0_sends_the_whole_model_once_and_gathers_what_it_lacks(
    served: Served,
) -> None:
    served.linked.trainers.call_all("flush_metrics")
    assert served.publish(5) == [{}, {}]
    first, second = served.linked.trainers.call_all("flush_metrics")
    whole = sum(
        each.nbytes  # type: ignore[attr-defined]
        for each in served.replica.server.tensors  # type: ignore[attr-defined]
    )
    assert first["bytes/reshard_sent"] == whole
    assert first["bytes/reshard_received"] == second["bytes/reshard_sent"] < whole


def test_requests_that_are_taken_back_are_the_beginning_of_the_whole_answers(
    served: Served,
) -> None:
    requests = [Request(token_ids=(5, 9, 40), drawn=0, seed=3)]
    (whole, _), *_ = served.replica.generate([[5, 9, 40]], SAMPLED, [3]).each()
    served.replica.begin(requests, SAMPLED)
    time.sleep(0.02)
    ((taken, _),) = served.replica.take().each()
    assert taken.tolist() == whole[: len(taken)].tolist()


def test_a_meeting_that_does_not_take_place_is_called_off(served: Served) -> None:
    begin_all(served.linked.trainers, "open_link", 0, 9)
    call_off(served.linked.address, link_name(0, 9), "it is gone", timedelta(seconds=20))
    assert served.linked.trainers.collect() == ["it is gone", None]
    # Whoever has no link sends nothing, and what is linked anew goes on.
    assert served.link(10) == [None, None]
    assert served.publish(6) == [{}, {}]
