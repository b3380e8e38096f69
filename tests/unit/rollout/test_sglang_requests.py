"""What is asked of SGLang, judged by the record of its published endpoints.

No SGLang runs on a CPU: the server here knows the record and draws nothing.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from sglang_like_server import VERSIONS, SpokenSglang
from vllm_like_server import VOCABULARY, advance_to_the_end, listening

from mindrl.config.generate import SamplingConfig
from mindrl.errors import AnswerError, ReshardError, WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import HttpReplica
from mindrl.rollout.http.sglang_server import SglangServer, WholeTensor

SAMPLING = Sampling(section=SamplingConfig(max_tokens=4), stop_token_ids=(1,))
REQUESTS = [Request(token_ids=(5, 6, row), drawn=1, seed=row) for row in range(3)]
TENSORS = [
    WholeTensor("model.embed_tokens.weight", "bfloat16", (10, 6)),  # 120 bytes
    WholeTensor("model.norm.weight", "bfloat16", (6,)),  # 12
    WholeTensor("router.bias", "float32", (3,)),  # 12
]


@pytest.fixture(params=VERSIONS)
def engine(request: pytest.FixtureRequest) -> SpokenSglang:
    return SpokenSglang(release=request.param)


@pytest.fixture
def replica(engine: SpokenSglang) -> Iterator[HttpReplica]:
    with listening(engine) as url:
        client = ServerClient(url=url, token="secret", name="replica 1")
        server = SglangServer(
            client=client,
            control_seconds=5,
            ranks=2,
            collectives="gloo",
            tensors=TENSORS,
            bucket_bytes=130,
        )
        yield HttpReplica(
            number=1,
            server=server,
            vocabulary=VOCABULARY,
            rows=4,
            answer_seconds=5,
            control_seconds=5,
        )


def test_weights_come_in_buckets_between_pause_and_continue(
    engine: SpokenSglang, replica: HttpReplica
) -> None:
    replica.server.join_link(("127.0.0.1", 29500), 1, 3)
    replica.receive_weights(7)
    assert engine.paths == [
        "/init_weights_update_group",
        "/pause_generation",
        # 120 and 12 bytes would be more than 130.
        "/update_weights_from_distributed",
        "/update_weights_from_distributed",
        "/continue_generation",
    ]
    assert (engine.weight_version, engine.flushed) == ("7", 1)
    # Another link takes the place of this one.
    replica.server.join_link(("127.0.0.1", 29500), 1, 4)
    assert engine.paths[-2:] == ["/destroy_weights_update_group", "/init_weights_update_group"]


def test_requests_are_answered_with_the_tokens_and_log_probs_that_were_drawn(
    engine: SpokenSglang, replica: HttpReplica
) -> None:
    replica.receive_weights(7)
    replica.begin(REQUESTS, SAMPLING)
    assert advance_to_the_end(replica, 3) == [0, 1, 2]
    found = replica.take()
    assert found.token_ids_N.tolist() == [40] * 9
    assert found.logprobs_N.tolist() == [-0.5] * 9
    assert found.finished_B.tolist() == [False] * 3
    assert engine.paths.count("/generate") == 3


def test_requests_are_taken_back_one_by_one(engine: SpokenSglang, replica: HttpReplica) -> None:
    replica.receive_weights(7)
    engine.holds, replica.round_seconds = True, 0.1
    replica.begin(REQUESTS, SAMPLING)
    assert replica.advance(8, []) == []
    assert replica.take().token_ids_N.tolist() == [40, 40, 40]
    assert len(engine.aborted) == 3


def test_what_was_drawn_by_other_weights_is_refused(
    engine: SpokenSglang, replica: HttpReplica
) -> None:
    replica.receive_weights(7)
    engine.weight_version = "default"
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match="weights default, but 7 were sent"):
        advance_to_the_end(replica, 1)


def test_a_link_that_is_not_made_is_told_in_the_words_of_the_server(
    engine: SpokenSglang, replica: HttpReplica
) -> None:
    def failing(_: Any) -> dict[str, Any]:
        return {"success": False, "message": "no master"}

    engine.init_weights_update_group = failing  # type: ignore[method-assign]
    with pytest.raises(ReshardError, match="replica 1: /init_weights_update_group: no master"):
        replica.server.join_link(("127.0.0.1", 29500), 1, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "else"}, "the response to else"),
        ({"finish_reason": None}, "finish_reason: Input should be"),
        ({"output_token_logprobs": [[None, 4, None]]}, "output_token_logprobs.0.0: .*valid number"),
        ({"output_token_logprobs": [[-1.0, 4]]}, "output_token_logprobs.0.2: Field required"),
        ({"output_token_logprobs": None}, "a response is empty"),
        ({"output_token_logprobs": [[-1.0, 4, None]]}, "a response was cut off at 1 of 3 tokens"),
    ],
)
def test_garbage_loses_the_server(
    engine: SpokenSglang, replica: HttpReplica, change: dict[str, Any], said: str
) -> None:
    replica.receive_weights(7)
    sound = engine.generate

    def garbled(body: dict[str, Any]) -> dict[str, Any]:
        reply = sound(body)
        reply["meta_info"] |= change
        return reply

    engine.generate = garbled  # type: ignore[method-assign]
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(AnswerError, match=rf"^replica 1 at .*: invalid response.*: .*{said}"):
        advance_to_the_end(replica, 1)


def test_the_record_refuses_what_no_version_has() -> None:
    engine = SpokenSglang(release=VERSIONS[0])
    assert engine.misfit("/generate", {"prompt": "text"}) == "/generate has no {'prompt'}"
    assert "lacks" in engine.misfit("/init_weights_update_group", {"rank_offset": 1})
    assert engine.misfit("/get_weights", {}) == "there is no POST /get_weights"
