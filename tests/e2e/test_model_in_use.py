"""The model that a run exported: asked, measured on other rows, served."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil
import pytest
from program import CHECKOUT, DATA, Program, gone, listening

pytestmark = pytest.mark.e2e


def ran(program: str, *arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"cli/{program}.py", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=CHECKOUT,
        env=os.environ | {"COLUMNS": "160"},
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )


def questions(count: int) -> list[str]:
    with (DATA / "test.jsonl").open() as lines:
        rows = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return [row["messages"][0]["content"] for row in rows]


def last_answers(run: Program) -> list[str]:
    steps = run.summary()["steps"]
    return [row["response"] for row in run.evaluations(steps)]


@pytest.mark.nightly
def test_asked_one_by_one_the_model_says_what_it_said_in_the_last_evaluation(
    kept_run: Program,
) -> None:
    (question,), (answer, *_) = questions(1), last_answers(kept_run)
    done = ran("generate", kept_run.folder, question, "--temperature", 0)
    assert (done.returncode, done.stdout) == (0, f"{answer}\n"), done.stderr
    start = f"starting the engine with {kept_run.folder}; this takes a minute or two\n"
    assert done.stderr == start


@pytest.mark.nightly
def test_in_a_conversation_each_line_has_an_answer_and_several_are_drawn(
    kept_run: Program,
) -> None:
    first, second = questions(2)
    said = f"{first}\n/reset\n{second}\n"
    talked = ran("generate", kept_run.folder, "--temperature", 0, said=said)
    assert talked.returncode == 0, talked.stderr
    assert talked.stdout.splitlines() == last_answers(kept_run)[:2]
    drawn = ran("generate", kept_run.folder, "-", "--samples", 4, said=f"{first}\n")
    assert drawn.stdout.count("--- answer ") == 4
    plain = ran("generate", kept_run.folder, "47+38=", "--plain", "--max-tokens", 5)
    assert plain.returncode == 0, plain.stderr


@pytest.mark.nightly
def test_measured_on_other_rows_a_table_has_their_rates_and_all_answers_are_kept(
    kept_run: Program, tmp_path: Path
) -> None:
    rows = (DATA / "test.jsonl").read_text().splitlines()
    for name, kept in (("easy", rows[:6]), ("hard", rows[6:16])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(kept))
    files = [tmp_path / "easy.jsonl", tmp_path / "hard.jsonl"]
    output = tmp_path / "measured"
    asked = (kept_run.folder, "--data", *files, "--samples", 4, "--output", output)
    done = ran("evaluate", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    titles, easy, hard = done.stdout.splitlines()[-4:-1]
    named = ["set", "prompts", "avg@4", "pass@2", "pass@4", "reward", "tokens", "cut", "off"]
    assert titles.split() == named
    assert (easy.split()[:2], hard.split()[:2]) == (["easy", "6"], ["hard", "10"])
    for name, prompts in (("easy", 6), ("hard", 10)):
        kept = (output / "evaluations" / f"{name}.jsonl").read_text().splitlines()
        shares = [json.loads(line)["parts"]["math_verify"] for line in kept]
        assert len(shares) == 4 * prompts
        metrics = {}
        for line in (output / "metrics.jsonl").read_text().splitlines():
            metrics |= json.loads(line)
        assert metrics[f"eval/{name}/avg@4"] == pytest.approx(sum(shares) / len(shares))
        assert f"{metrics[f'eval/{name}/avg@4']:.3f} [" in done.stdout


@pytest.mark.nightly
def test_served_it_answers_who_has_the_token_and_leaves_nothing(
    kept_run: Program, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("for-this-test")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = (kept_run.folder, "--port", port, "--token-file", tmp_path / "token")
    command = [sys.executable, "cli/serve.py", *map(str, given)]
    with (tmp_path / "said.txt").open("w") as said:
        server = subprocess.Popen(command, cwd=CHECKOUT, stdout=said, stderr=said)
    text = tmp_path / "said.txt"
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while not answers(f"{url}/health"):
            assert server.poll() is None, text.read_text()
            assert time.monotonic() < deadline, text.read_text()
            time.sleep(1)
        name = "/".join(kept_run.folder.parts[-2:])
        (question,), (answer, *_) = questions(1), last_answers(kept_run)
        messages = [{"role": "user", "content": question}]
        body = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 40}
        with pytest.raises(HTTPError, match="401"):
            ask(f"{url}/v1/chat/completions", body, "another")
        found = ask(f"{url}/v1/chat/completions", body, "for-this-test")
        assert found["choices"][0]["message"]["content"] == answer
        assert {at for at in listening(server.pid) if at[1] == port} == {("127.0.0.1", port)}
        processes = psutil.Process(server.pid).children(recursive=True)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    assert gone(processes, timeout_seconds=20)
    assert "for-this-test" not in text.read_text()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


def ask(url: str, body: object, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = Request(url, json.dumps(body).encode(), headers)
    with urlopen(request, timeout=120) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found
