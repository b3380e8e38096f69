"""The environments of a run, from its configuration."""

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from galleries import NAMES, shown
from memory_roles import config, data

from mindrl.agents.host import AgentHost
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.images import ImageConfig
from mindrl.data.row_images import RowImages
from mindrl.environments.host import EnvironmentHost, Key
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed
from mindrl.launch.environments import environments_of
from mindrl.tiny.chat_model import build_tokenizer

AGENTS = Path(__file__).parents[1] / "agents/agents.py"
GALLERIES = Path(__file__).parents[1] / "environments/galleries.py"
LARGE = "a very large file"
"""Of 3 MB: four thirds of it, in a message, are more than 1 MiB."""


def test_the_run_receives_the_call_of_an_agent_that_exceeds_its_turns() -> None:
    section = EnvironmentConfig(agent=f"{AGENTS}:plain", max_turns=2)
    chosen, key = replace(config(), environment_config=section), Key("training", 0, 0)
    with environments_of(chosen, replace(data(), tokenizer=build_tokenizer())) as host:
        assert isinstance(host, AgentHost)
        session = host.sessions.begin(key)
        for number in range(3):
            call = Thread(
                target=host.sessions.call,
                args=(session, (1,), 1),
                kwargs={"is_awaited": lambda: True},
                daemon=True,
            )
            call.start()
            (pending,) = host.requests("training", 60.0)
            assert pending.call_number == number
            host.reply(key, number, [1], [-0.5], 1, "stop")
            call.join()


@pytest.mark.parametrize("reads_images", [False, True])
def test_answers_may_be_as_large_as_pictures_if_the_model_reads_some(reads_images: bool) -> None:
    assert LARGE in NAMES
    assert len(shown(LARGE)[0]["image"]) == 3_000_000
    section = EnvironmentConfig(environment=f"{GALLERIES}:Gallery")
    of_run = data()
    if reads_images:
        images = RowImages(model="unused", config=ImageConfig(), token=1)
        of_run = replace(of_run, images=images)
    key = Key("training", 0, 0)
    with environments_of(replace(config(), environment_config=section), of_run) as host:
        assert isinstance(host, EnvironmentHost)
        host.begin(key, 1, {})
        host.answers("training", 60.0)
        host.act(key, Action(text=LARGE))
        ((_, answer),) = host.answers("training", 60.0)
    if reads_images:
        assert isinstance(answer, EnvironmentAnswer)
        assert answer.messages[0].pictures[0].content == shown(LARGE)[0]["image"]
    else:
        assert isinstance(answer, Failed)
        assert answer.reason.endswith("bytes; at most 1,048,576")
