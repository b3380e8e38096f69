"""Environments in their processes: answers, limits, and the same state again after a loss."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mindrl.environments.host import EnvironmentHost, Key, Limits
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Opening
from mindrl.environments.process import EnvironmentSpec
from mindrl.errors import ConfigError

GAMES = str(Path(__file__).with_name("games.py"))
KEY, OTHER = Key("training", 3, 0), Key("training", 3, 1)
Start = Callable[..., EnvironmentHost]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    hosts = []

    def begin(processes: int = 8, call_seconds: float = 30.0, **keys: Any) -> EnvironmentHost:
        arguments = {"marker": str(tmp_path / "marker")}
        spec = EnvironmentSpec(environment=f"{GAMES}:Guess", arguments=arguments, **keys)
        limits = Limits(processes=processes, start_seconds=60.0, call_seconds=call_seconds)
        hosts.append(EnvironmentHost(spec=spec, limits=limits))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.close()


def answered(host: EnvironmentHost, key: Key, text: str) -> EnvironmentAnswer | Opening | Failed:
    """Return the answer to a turn."""
    host.act(key, Action(text=text))
    ((found, answer),) = host.answers(key.owner, 60.0)
    assert found == key
    return answer


def begun(
    host: EnvironmentHost, key: Key = KEY, seed: int = 7
) -> Opening | EnvironmentAnswer | Failed:
    host.begin(key, seed, {"low": 5})
    ((found, opening),) = host.answers(key.owner, 60.0)
    assert found == key
    return opening


def test_a_conversation_gets_its_row_and_answers_that_depend_on_seed_and_turns_alone(
    start: Start,
) -> None:
    host = start()
    assert begun(host) == Opening(text="guess 5 to 99")
    first = [answered(host, KEY, text) for text in ("1", "print", "3")]
    assert isinstance(first[0], EnvironmentAnswer)
    assert (first[0].reward, first[0].done) == (0.25, False)
    begun(host, OTHER)
    assert [answered(host, OTHER, text) for text in ("1", "print", "3")] == first
    number, began = first[0].messages[0].text.split()[1], time.monotonic()
    last = answered(host, KEY, number)
    assert last == EnvironmentAnswer(messages=(), reward=1.0, done=True)
    assert isinstance(last, EnvironmentAnswer)
    assert 0 < last.seconds < time.monotonic() - began


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "ValueError: bad move"),
        ("not a number", "TypeError: step returned nan; need a finite number"),
        ("crash", "its process has ended"),
        ("flood", "its process sent a message of 10,000,104 bytes; at most 1,048,576"),
        ("hang", "its process gave no answer in time"),
    ],
)
def test_an_environment_that_breaks_has_failed_and_others_answer_on(
    text: str, reason: str, start: Start
) -> None:
    host = start(call_seconds=2.0)
    begun(host)
    begun(host, OTHER)
    answered(host, KEY, "1")
    failed = answered(host, KEY, text)
    assert isinstance(failed, Failed)
    assert failed.reason == reason
    host.end(KEY)
    assert isinstance(answered(host, OTHER, "1"), EnvironmentAnswer)


def test_memory_that_is_written_to_is_limited_and_addresses_are_not(start: Start) -> None:
    """80 MiB in a process that may have 64 or 128 more than its imports."""
    for mib, answer in ((64, Failed(reason="MemoryError: ")), (128, str(80 << 20))):
        host = start(memory_bytes=mib << 20)
        begun(host)
        reserved = answered(host, KEY, "reserve")
        assert isinstance(reserved, EnvironmentAnswer)
        assert reserved.messages[0].text == str(64 << 30)
        filled = answered(host, KEY, "fill")
        text = filled.messages[0].text if isinstance(filled, EnvironmentAnswer) else filled
        assert text == answer
        host.end_all(KEY.owner)


def test_a_process_that_is_lost_is_replaced_by_one_in_the_same_state(start: Start) -> None:
    host = start()
    begun(host)
    begun(host, OTHER)
    turns = ("1", "2", "crash once", "4")
    assert [answered(host, KEY, text) for text in turns] == [
        answered(host, OTHER, text) for text in turns
    ]
    assert host.lost == 1


def test_a_conversation_of_an_earlier_host_goes_on_where_it_was(start: Start) -> None:
    host, later = start(), start()
    begun(host)
    past = []
    for text in ("1", "2"):
        answer = answered(host, KEY, text)
        assert isinstance(answer, EnvironmentAnswer)
        past.append((Action(text=text), answer.fingerprint()))
    later.begin(KEY, 7, {"low": 5}, past)
    assert answered(later, KEY, "3") == answered(host, KEY, "3")


def test_a_conversation_that_cannot_be_repeated_has_failed(start: Start) -> None:
    host, later = start(), start()
    begun(host)
    answer = answered(host, KEY, "otherwise once")
    assert isinstance(answer, EnvironmentAnswer)
    past = [(Action(text="otherwise once"), answer.fingerprint())]
    later.begin(KEY, 7, {"low": 5}, past)
    why = "turn 1 was answered otherwise when it was replayed"
    assert answered(later, KEY, "1") == Failed(reason=why)


def test_a_conversation_that_begins_otherwise_when_it_is_repeated_has_failed(start: Start) -> None:
    host, later, row = start(), start(), {"moody": True}
    failed = Failed(reason="it began otherwise when it was replayed")
    host.begin(KEY, 7, row)
    assert host.answers("training", 60.0) == [(KEY, Opening(text="first"))]
    # Its process ends in the first turn.
    assert answered(host, KEY, "crash") == failed
    later.begin(KEY, 7, row, [], Opening(text="first"))
    assert later.answers("training", 60.0) == [(KEY, failed)]
    later.begin(OTHER, 7, row, [], Opening(text="again"))
    assert isinstance(answered(later, OTHER, "1"), EnvironmentAnswer)


def test_more_conversations_than_processes_wait_for_their_turn(start: Start) -> None:
    host = start(processes=2)
    keys = [Key("training", 0, at) for at in range(5)]
    for key in keys:
        host.begin(key, 7, {})
    found: list[Key] = []
    while len(found) < 5:
        new = [key for key, _ in host.answers("training", 60.0)]
        assert len(new) <= 2
        found += new
        for key in new:
            host.end(key)
    assert sorted(found) == keys


def test_conversations_of_one_owner_do_not_keep_those_of_another_waiting(start: Start) -> None:
    host, test = start(processes=1), Key("evaluation", 0, 0)
    begun(host)
    assert isinstance(begun(host, test), Opening)


def test_conversations_without_a_process_do_not_keep_others_waiting(start: Start) -> None:
    host = start(processes=1)
    for key in (KEY, OTHER):
        host.begin(key, 7, {})
    assert host.is_busy("training")
    assert [key for key, _ in host.answers("training", 60.0)] == [KEY]
    # The other one begins only after a turn of this one that ends it.
    assert not host.is_busy("training")
    host.end(KEY)
    assert host.is_busy("training")
    assert [key for key, _ in host.answers("training", 60.0)] == [OTHER]


def test_answers_are_those_of_their_owner(start: Start) -> None:
    host, test = start(), Key("evaluation", 3, 0)
    host.begin(KEY, 7, {})
    host.begin(test, 7, {})
    assert [key for key, _ in host.answers("evaluation", 60.0)] == [test]
    assert [key for key, _ in host.answers("training", 60.0)] == [KEY]
    host.end_all("evaluation")
    host.begin(test, 7, {})
    with pytest.raises(AssertionError, match="begins once"):
        host.begin(KEY, 7, {})


def test_a_closed_host_leaves_no_process(start: Start) -> None:
    before = {*psutil.Process().children()}
    host = start()
    begun(host)
    answered(host, KEY, "orphan")
    (guard,) = {*psutil.Process().children()} - before
    assert len(guard.children(recursive=True)) == 3
    started = guard.children(recursive=True)
    host.close()
    deadline = time.monotonic() + 30
    while any(each.is_running() for each in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(each.is_running() for each in started)


def test_code_that_cannot_be_imported_is_named() -> None:
    spec = EnvironmentSpec(environment=f"{GAMES}:Gues")
    limits = Limits(processes=1, start_seconds=60.0, call_seconds=1.0)
    with pytest.raises(
        ConfigError, match=r"environment_config\.environment=.*'Gues'; did you mean 'Guess'"
    ):
        EnvironmentHost(spec=spec, limits=limits)
