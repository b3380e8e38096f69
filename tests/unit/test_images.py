"""The Dockerfiles install what pyproject.toml and the locks name, and lack known mistakes."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mindrl.platform import npu_versions

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("docker/Dockerfile.*"))
REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,]+\])?==([\w.+]+)")


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("check_images")


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def pins(text: str) -> dict[str, str]:
    found = REQUIREMENT.findall(text)
    return {name.lower().replace("_", "-"): version for name, version in found}


def test_the_dockerfiles_have_no_findings(images: Any) -> None:
    assert [file.name for file in FILES] == ["Dockerfile.ascend", "Dockerfile.cpu"]
    for file in FILES:
        assert list(images.findings(images.read_lines(file.read_text("utf-8")))) == []


def test_versions_in_the_dockerfiles_are_those_of_the_project() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    known = pins(" ".join(project["dependencies"]))
    for file in FILES:
        found = pins(file.read_text("utf-8"))
        assert found
        assert found.items() <= known.items()
    ascend = read("docker/Dockerfile.ascend")
    tags = re.findall(r"^FROM quay\.io/ascend/vllm-ascend:(\S+) AS (\w+)$", ascend, re.MULTILINE)
    version = f"v{npu_versions.VLLM_ASCEND.version}"
    assert tags == [(version, "a2"), (f"{version}-a3", "a3")]
    assert f"--branch {npu_versions.MINDSPEED.branch} " in ascend
    assert f"checkout {npu_versions.MINDSPEED.commit} " in ascend
    assert "'.[npu]'" in ascend
    assert "'.[cpu]'" in read("docker/Dockerfile.cpu")


def test_the_lock_of_the_image_adds_to_the_lock_of_the_tests_and_changes_none_of_it() -> None:
    tested, image = (pins(read(f"requirements/{name}.lock")) for name in ("cpu", "image"))
    assert len(image) >= 10
    assert tested.keys() & image.keys() == set()


def test_what_the_images_copy_is_in_the_build_and_caches_and_runs_are_not(images: Any) -> None:
    patterns = [line for line in read(".dockerignore").splitlines() if line[:1] not in ("", "#")]
    copied = [
        source
        for file in FILES
        for line in images.read_lines(file.read_text("utf-8"))
        if line.word == "COPY"
        for source in line.listed()[:-1]
    ]
    assert len(copied) >= 16
    inner = {"requirements/": "requirements/cpu.lock"}
    named = [inner.get(each, each).rstrip("/") for each in copied]
    assert [each for each in named if images.is_ignored(each, patterns)] == []
    assert [each for each in named if not (ROOT / each).exists()] == []
    kept_out = [".git/config", ".venv/bin/python", "outputs/a/model", ".cache/tiny/model"]
    kept_out += ["mindrl/config/__pycache__/run.pyc", "tests/conftest.py", "requirements/a.txt"]
    assert [each for each in kept_out if not images.is_ignored(each, patterns)] == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("FROM debian:latest", "FROM debian:latest"),
        ("FROM debian", "FROM debian:"),
        ("ADD http://127.0.0.1/a.tar /", "use COPY"),
        ("RUN pip install a && pip install --no-cache-dir b", "pip install a: need --no-cache"),
        ("RUN apt-get install -y --no-install-recommends gcc", "rm -rf"),
        ("RUN apt-get install -y gcc && rm -rf /var/lib/apt/lists/*", "recommends"),
        ("USER 1000:1000\nUSER 0:0", "USER 0:0"),
        ("USER mindrl", "USER mindrl"),
        ('ENTRYPOINT ["bash"]', "ENTRYPOINT"),
    ],
)
def test_each_mistake_is_found_once(images: Any, text: str, finding: str) -> None:
    good = {"USER": "USER 1000:1000", "ENTRYPOINT": 'ENTRYPOINT ["tini", "mindrl"]'}
    lines = [text, *(line for word, line in good.items() if word not in text)]
    (found,) = images.findings(images.read_lines("\n".join(lines)))
    assert finding in found


def test_loading_cann_keeps_the_options_and_arguments_of_the_shell() -> None:
    shown = "echo $- $#; [[ $- == *e* ]] && echo strict"
    done = subprocess.run(
        ["bash", "-c", f"set -e; set -- one two; source docker/load_cann.sh; {shown}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "strict"
    assert done.stdout.split()[1] == "2"


def test_a_build_follows_folders_variables_and_users(images: Any, tmp_path: Path) -> None:
    build = images.Build(root=tmp_path, arguments={"INDEX": "there"}, binds=[])
    text = """
    FROM debian:12.1
    ENV PATH=/opt/bin:$PATH \\
        A=1
    ARG INDEX
    ARG OTHER
    WORKDIR /opt/here
    # a comment
    COPY docker/load_cann.sh ./
    USER 1000:1000
    ENTRYPOINT ["tini", "mindrl"]
    """
    for line in images.read_lines(text):
        build.apply(line)
    assert build.environment["PATH"].startswith("/opt/bin:/usr/local/sbin")
    assert (build.environment["A"], build.environment["INDEX"]) == ("1", "there")
    assert "OTHER" not in build.environment
    assert (tmp_path / "opt/here/load_cann.sh").is_file()
    assert (build.user, build.entry) == ("1000:1000", ["tini", "mindrl"])


def test_the_script_checks_all_dockerfiles() -> None:
    command = [sys.executable, "scripts/check_images.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
