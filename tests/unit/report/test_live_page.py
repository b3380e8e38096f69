"""What the server of a live page reads and sends: what is new, and to whom."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from threading import Thread
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from made_run import make_run, metrics_of, sample, write_lines

from mindrl.observability.line_tail import LineTail
from mindrl.report.curves import MOST_POINTS, Curves
from mindrl.report.run_state import RunState
from mindrl.report.sample_search import GROUPS
from mindrl.report.server import PageServer

CHECKOUT = Path(__file__).parents[3]
ANYTHING = dict.fromkeys(
    ("run", "kind", "source", "ended", "words", "from", "to", "least", "most"), ""
)


def appended(path: Path, *rows: object) -> None:
    with path.open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def learned(curves: dict[str, Any], news: dict[str, Any]) -> None:
    """Do what the page does with the curves that are new."""
    for name, curve in news.get("curves", {}).items():
        before = curves.get(name, {"steps": [], "values": []})
        curves[name] = {
            key: [*before[key][: curve["start"]], *curve[key]] for key in ("steps", "values")
        }


def test_a_viewer_gets_what_came_after_its_position_and_a_new_one_gets_all(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with PageServer([run], host="127.0.0.1", port=0) as server:
        first = server.news("")
        assert first["whole"]
        assert first["runs"][0]["curves"]["reward/mean"]["steps"] == [1, 2, 3, 4]
        nothing = server.news(first["position"])
        assert (nothing["runs"], "whole" in nothing) == ([{}], False)
        appended(run / "metrics.jsonl", metrics_of(5))
        (news,) = server.news(nothing["position"])["runs"]
        assert news["step"] == 5
        assert news["curves"]["reward/mean"] == {"start": 4, "steps": [5], "values": [0.55]}
        assert not {"config", "faults", "memory", "summary"} & news.keys()
        # Another one is behind: it gets both.
        (late,) = server.news(first["position"])["runs"]
        assert late["curves"] == news["curves"]
        assert server.news("of-1.2.another")["whole"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
def test_files_that_were_replaced_are_read_anew(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=6)
    rows = {"metrics.jsonl": metrics_of, "samples.jsonl": lambda step: sample(step, response="new")}
    with PageServer([run], host="127.0.0.1", port=0) as server:
        position = server.news("")["position"]
        # As a run that is resumed cuts them off, and goes on at once; longer than before.
        other = run / "other"
        write_lines(other, map(rows[name], range(1, 30)))
        other.replace(run / name)
        news = server.news(position)
        assert news["whole"]
        assert not server.news(news["position"]).get("whole")
        found = server.samples({**ANYTHING, "prompt": None, "at": None})
        if name == "samples.jsonl":
            assert {row["response"] for group in found["groups"] for row in group} == {"new"}
        else:
            assert news["runs"][0]["step"] == 29


def test_a_file_that_was_written_anew_in_its_place_is_another(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\nthr")
    tail = LineTail(path)
    assert [*tail.lines()] == [(0, b"one\n"), (4, b"two\n")]
    with path.open("a") as file:
        file.write("ee\n")
    assert not tail.is_restarted()
    assert [*tail.lines()] == [(8, b"three\n")]
    path.write_text("one\ntwo\nother\nand more\n")
    assert tail.is_restarted()
    shorter = LineTail(path)
    assert len([*shorter.lines()]) == 4
    path.write_text("one\n")
    assert shorter.is_restarted()


def test_curves_that_come_in_parts_are_those_that_come_at_once() -> None:
    steps = range(1, 2 * MOST_POINTS + 700)
    parts, whole, held = Curves(), Curves(), dict[str, Any]()
    for position, step in enumerate(steps, start=1):
        parts.add({"step": step, "loss": step / 2}, position)
        if position % 7 == 0 or step == steps[-1]:
            news = {name: vars(curve) for name, curve in parts.since(held.get("at", 0))}
            learned(held.setdefault("curves", {}), {"curves": news})
            held["at"] = position
        whole.add({"step": step, "loss": step / 2}, 1)
    (all_at_once,) = [vars(curve) for _, curve in whole.since(0)]
    assert held["curves"]["loss"]["steps"] == all_at_once["steps"]
    assert held["curves"]["loss"]["values"] == all_at_once["values"]
    assert all_at_once["steps"][-1] == steps[-1]
    assert len(all_at_once["steps"]) <= MOST_POINTS


def test_a_step_that_is_done_again_replaces_those_from_it_on() -> None:
    curves = Curves()
    for position, (step, loss) in enumerate([(1, 1.0), (2, 2.0), (3, 3.0), (2, 4.0)], start=1):
        curves.add({"step": step, "loss": loss}, position)
    ((_, curve),) = curves.since(3)
    assert (curve.start, curve.steps, curve.values) == (0, [1, 2], [1.0, 4.0])


def test_samples_come_by_pages_each_once_the_newest_first(tmp_path: Path) -> None:
    samples = [sample(step, prompt=f"{nr}") for step in range(1, 4) for nr in range(30)]
    run = RunState(make_run(tmp_path / "run", samples=samples))
    with PageServer([run.folder], host="127.0.0.1", port=0) as server:
        server.news("")
        asked, found, looked = {**ANYTHING, "prompt": None, "at": None}, [], 0
        while True:
            answer = server.samples(asked)
            assert len(answer["groups"]) <= GROUPS
            found += [(row["step"], row["prompt"]) for group in answer["groups"] for row in group]
            looked += answer["looked"]
            if answer["next"] is None:
                break
            asked["at"] = answer["next"]
    expected = [(row["step"], row["prompt"]) for row in samples]
    assert (found, looked) == (expected[::-1], len(samples))


def test_the_page_is_served_on_an_ipv6_address(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with PageServer([make_run(tmp_path / "run")], host="::1", port=0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert server.url.startswith("http://[::1]:")
        with urlopen(server.url) as answer:
            assert answer.status == 200
        server.shutdown()


def test_nobody_is_answered_without_the_token_and_no_question_ends_the_server(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    with PageServer([run], host="127.0.0.1", port=0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        root, query = server.url.split("?")
        addresses = (root, f"{root}data.json", f"{root}?token=wrong", f"{root}samples.json")
        for address, data in product(addresses, (None, b"{}")):
            with pytest.raises(HTTPError, match="401"):
                urlopen(Request(address, data))
        for question in (b"", b"[]", b"{}", json.dumps(ANYTHING | {"from": "x"}).encode()):
            with pytest.raises(HTTPError, match="400"):
                urlopen(Request(f"{root}samples.json?{query}", question))
        asked = json.dumps(ANYTHING | {"prompt": None, "at": None}).encode()
        urlopen(f"{root}data.json?{query}").close()
        with urlopen(Request(f"{root}samples.json?{query}", asked)) as answer:
            assert len(json.load(answer)["groups"]) == 2
        server.shutdown()


@contextmanager
def watched(
    run: Path, *options: str, errors: int | IO[str] | None = None
) -> Iterator[tuple[int, str]]:
    """Serve the page of a run; yields the process and the address of its data."""
    command, out = [sys.executable, "cli/watch.py", str(run), *options], subprocess.PIPE
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=out, stderr=errors, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http\S+", process.stdout.readline())
            assert found is not None
            yield process.pid, found[0].replace("/?", "/data.json?")
        finally:
            process.terminate()


def test_watching_a_long_run_reads_and_sends_little_in_bounded_memory(tmp_path: Path) -> None:
    """Before, each question cost the whole of the files, which lay in memory besides."""
    run = make_run(tmp_path / "run", steps=300)
    line = json.dumps(sample(7, response="x" * 2000) | {"data_source": ""}) + "\n"
    with (run / "samples.jsonl").open("w") as file:
        for step in range(1, 301):
            file.write(line.replace('"step": 7', f'"step": {step}') * 180)
    size = (run / "samples.jsonl").stat().st_size
    assert size > 100 << 20

    with watched(run) as (pid, address):

        def asked(since: str = "") -> tuple[int, dict[str, Any]]:
            with urlopen(f"{address}&since={since}") as answer:
                content = answer.read()
            return len(content), json.loads(content)

        def read_bytes() -> int:
            return int(Path(f"/proc/{pid}/io").read_text().split()[1])

        sent, first = asked()
        assert sent < 200_000
        before = read_bytes()
        appended(run / "metrics.jsonl", metrics_of(301))
        sent, news = asked(first["position"])
        assert news["runs"][0]["step"] == 301
        assert sent < 3000
        assert read_bytes() - before < 20_000
        status = Path(f"/proc/{pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        # Python with what it imports, and curves: nowhere near the samples.
        assert int(peak) << 10 < size


@pytest.mark.parametrize(
    ("host", "notes"),
    [
        ("127.0.0.1", ""),
        ("0.0.0.0", "note: others may reach 0.0.0.0, and the page is not encrypted\n"),
    ],
)
def test_a_page_that_others_may_reach_is_announced_before_its_address(
    host: str, notes: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    with (tmp_path / "errors").open("w") as errors, watched(run, "--host", host, errors=errors):
        assert (tmp_path / "errors").read_text() == notes
