"""vLLM's own server as a replica: weights by a link in place, requests by its token route."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Asked
from urllib.request import urlopen

import pytest
import torch
from forked_workers import ForkedWorkers
from linked_groups import LinkedGroups, begin_all

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.launch.engine_server import configuration_text, server_command, server_environment
from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import listen
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import HttpReplica
from mindrl.rollout.http.vllm_server import VllmServer

# A server starts for half a minute.
pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

MakeModel = Callable[..., Path]
TOKEN = "a-token-of-this-test"
APART: dict[str, Any] = {
    "rl_config.use_integrated_worker": False,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.rollout_resource.num_npus": 2,
    "actor_config.tensor_model_parallel_size": 2,
    "generate_config.kv_cache_mib": 16,
    "generate_config.max_model_len": 128,
    "generate_config.max_num_seqs": 8,
    "generate_config.max_num_batched_tokens": 128,
    "generate_config.reshard_timeout_seconds": 60,
}
PROMPTS = [[5, 9, 40], [200, 3], [17, 17, 17, 17, 90], [2]]
SAMPLED = Sampling(section=SamplingConfig(temperature=1.0, max_tokens=100), stop_token_ids=(7,))
REQUESTS = [
    Request(token_ids=tuple(prompt), drawn=0, seed=3 + row) for row, prompt in enumerate(PROMPTS)
]


@dataclass
class Served:
    """A training side, a server as its replica, and the same replica in a process of its own."""

    linked: LinkedGroups
    server: "subprocess.Popen[bytes]"
    replica: HttpReplica
    url: str

    def publish(self, version: int) -> list[dict[int, str]]:
        """Send the weights to the server."""
        begin_all(self.linked.trainers, "send_weights", [0])
        try:
            self.replica.receive_weights(version)
        finally:
            lost: list[dict[int, str]] = self.linked.trainers.collect()
        return lost

    def link(self, generation: int) -> list[str | None]:
        begin_all(self.linked.trainers, "open_link", 0, generation)
        self.replica.server.join_link(self.linked.address, 0, generation)
        said: list[str | None] = self.linked.trainers.collect()
        return said


@pytest.fixture(scope="module")
def served(
    forked_workers: ForkedWorkers,
    run_config: Callable[..., RunConfig],
    random_model_of: MakeModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    with listen("127.0.0.1") as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text(f"{TOKEN}\n", "utf-8")
    # The second replica is no server here.
    servers = {
        "generate_config.servers": [url, "http://127.0.0.1:1"],
        "generate_config.server_token_file": str(token),
    }
    config = run_config(random_model_of("qwen2"), APART | servers)
    platform = PLATFORMS["cpu"]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with log.open("wb") as output:
        server = subprocess.Popen(
            server_command(config, platform, url),
            env=os.environ | server_environment(config, platform),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    linked = LinkedGroups(forked_workers, unordered_shardings(config).ordered.plan)
    client = ServerClient(url=url, token=TOKEN, name="replica 0")
    text = configuration_text(linked.plan.config)
    replica = HttpReplica(
        number=0,
        server=VllmServer(client=client, control_seconds=120, configuration=text),
        vocabulary=linked.plan.models["actor"].vocab_size,
        rows=8,
        answer_seconds=120,
        control_seconds=120,
        round_seconds=0.2,
    )
    try:
        replica.wait_until_up(300, lambda: refuse_ended(server, log))
        yield Served(linked, server, replica, url)
    finally:
        linked.stop()
        server.terminate()
        server.wait(timeout=60)
        with suppress(ProcessLookupError):
            # Of a server that was killed the engine lives on.
            os.killpg(server.pid, signal.SIGKILL)


def refuse_ended(server: "subprocess.Popen[bytes]", log: Path) -> None:
    assert server.poll() is None, log.read_text("utf-8")[-3000:]


def all_of(replica: HttpReplica) -> Responses:
    return replica.generate(PROMPTS, SAMPLED, [each.seed for each in REQUESTS])


def counted(served: Served, name: str) -> int:
    """Return a number that the engine counts."""
    with urlopen(f"{served.url}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    (found,) = [line for line in lines if line.startswith(f"vllm:{name}{{")]
    return int(float(found.split()[-1]))


def advance_for_ever(replica: HttpReplica) -> None:
    while True:
        replica.advance(1, [])


def test_a_server_takes_each_version_in_place_and_answers_as_the_engine_in_a_worker(
    served: Served,
) -> None:
    with pytest.raises(ReshardError, match="has no weights"):
        served.replica.begin(REQUESTS, SAMPLED)
    assert served.link(0) == [None, None]
    served.linked.start(1)
    assert served.linked.link(1) == [None, None]
    for version in range(2):
        served.linked.trainers.call_all("change", version)
        assert served.publish(version) == [{}, {}]
        served.linked.publish(version, [1])
        of_server = all_of(served.replica)
        arguments = (PROMPTS, SAMPLED, [each.seed for each in REQUESTS])
        (of_worker,) = served.linked.replicas[1].call_all("generate_sequences", *arguments)
        # The same seeds, kernels and weights; requests that come one by one share other batches,
        # whose sums round otherwise: 1e-6 of log-probs down to -10.
        assert of_server.token_ids_N.tolist() == of_worker.token_ids_N.tolist()
        torch.testing.assert_close(of_server.logprobs_N, of_worker.logprobs_N, atol=1e-5, rtol=0)
        assert of_server.finished_B.tolist() == of_worker.finished_B.tolist()


def test_what_is_taken_back_early_is_the_beginning_of_the_whole_answers(served: Served) -> None:
    whole = [tokens.tolist() for tokens, _ in all_of(served.replica).each()]
    served.replica.begin(REQUESTS, SAMPLED)
    time.sleep(0.03)
    taken = [tokens.tolist() for tokens, _ in served.replica.take().each()]
    assert any(len(part) < len(tokens) for part, tokens in zip(taken, whole, strict=True))
    for part, tokens in zip(taken, whole, strict=True):
        assert part == tokens[: len(part)]


def test_the_engine_drops_the_requests_of_a_replica_that_closes(served: Served) -> None:
    own = served.replica.server
    assert isinstance(own, VllmServer)
    closing = replace(served.replica, server=replace(own, client=replace(own.client)), in_flight=[])
    whole = int(all_of(served.replica).lengths_B.sum())
    before = counted(served, "generation_tokens_total")
    closing.begin(REQUESTS, SAMPLED)
    time.sleep(0.03)
    closing.close()
    closing.threads.shutdown()
    while counted(served, "num_requests_running"):
        time.sleep(0.05)
    assert counted(served, "generation_tokens_total") - before < whole


def test_single_answers_come_out_while_others_are_drawn(served: Served) -> None:
    served.replica.begin(REQUESTS, SAMPLED)
    while not (found := served.replica.advance(1, [])):
        pass
    early = [tokens.tolist() for tokens, _ in served.replica.answers(found).each()]
    while len(found) < len(REQUESTS):
        found += served.replica.advance(1, [])
    whole = [tokens.tolist() for tokens, _ in served.replica.take().each()]
    assert early == [whole[place] for place in found[: len(early)]]


def test_a_request_of_another_user_goes_on_over_new_weights(served: Served) -> None:
    body = {
        "token_ids": PROMPTS[0],
        "sampling_params": {"temperature": 0.0, "max_tokens": 120, "ignore_eos": True},
    }
    client, published, found = served.replica.client, threading.Event(), []

    def ask_until_published() -> None:
        while not published.is_set():
            found.append(client.post("/inference/v1/generate", body, seconds=120))

    # Three threads ask without a pause, so a request is in flight when the weights arrive.
    others = [threading.Thread(target=ask_until_published) for _ in range(3)]
    served.linked.trainers.call_all("change", 1)
    for other in others:
        other.start()
    try:
        assert served.publish(7) == [{}, {}]
    finally:
        published.set()
        for other in others:
            other.join(timeout=120)
    choices = [choice for answer in found for choice in json.loads(answer)["choices"]]
    assert {len(choice["token_ids"]) for choice in choices} == {120}
    versions = [[each["version"] for each in choice["weight_versions"]] for choice in choices]
    assert any(len(each) == 2 and each[-1] == "7" for each in versions)


def test_without_the_token_nothing_is_answered(served: Served) -> None:
    asked = Asked(f"{served.url}/inference/v1/generate", b"{}", method="POST")
    with pytest.raises(HTTPError, match="401"):
        urlopen(asked, timeout=20)
    wrong = ServerClient(url=served.url, token="another", name="replica 0")
    with pytest.raises(WorkerDiedError, match=r"replica 0 at .* HTTP 401"):
        wrong.post("/inference/v1/generate", {}, seconds=20)


def test_a_server_that_has_other_weights_than_it_was_given_is_not_believed(
    served: Served,
) -> None:
    client = served.replica.client
    client.post("/update_weight_version", {"new_version": "default"}, seconds=20)
    served.replica.begin(REQUESTS, SAMPLED)
    with pytest.raises(WorkerDiedError, match="uses weights default, but 7 were sent"):
        advance_for_ever(served.replica)


def test_a_server_that_dies_is_told_and_the_training_side_goes_on(served: Served) -> None:
    served.server.kill()
    served.server.wait(timeout=60)
    served.replica.in_flight.clear()
    began = time.monotonic()
    served.replica.begin(REQUESTS, SAMPLED)
    with pytest.raises(WorkerDiedError, match=r"replica 0 at http://127.0.0.1:.* did not respond"):
        advance_for_ever(served.replica)
    assert time.monotonic() - began < 30
    lost = served.linked.trainers.call_all("send_weights", [0, 1])
    assert [*lost[0]] == [0, 1]
