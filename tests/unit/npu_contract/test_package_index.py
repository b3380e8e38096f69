"""Where published sources come from: archives, folders, commits, and a package index made here."""

import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from npu_contract import sources as contract_sources
from npu_contract.package_index import published_file
from npu_contract.published_source import (
    PublishedSource,
    SourceUnavailableError,
    open_source,
)

from mindrl.platform.npu_versions import MINDSPEED

NOWHERE = "http://127.0.0.1:1"


def archive_of(files: dict[str, str], prefix: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def test_source_archive_folder_and_commit_are_read_like_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "acme.tar.gz").write_bytes(archive_of({"acme/a.py": "x = 1"}, "acme-1.2/"))
    with zipfile.ZipFile(tmp_path / "acme.zip", "w") as archive:
        archive.writestr("acme-main/acme/a.py", "x = 1")
    checkout = tmp_path / "checkout"
    (checkout / "acme").mkdir(parents=True)
    (checkout / "acme" / "a.py").write_text("x = 1")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "acme" / "a.py").write_text("x = 2")

    def text(source: PublishedSource) -> str:
        return source.text("acme/a.py")

    assert text(open_source(tmp_path / "acme.tar.gz")) == "x = 1"
    assert text(open_source(tmp_path / "acme.zip")) == "x = 1"
    assert text(open_source(checkout)) == "x = 2"
    assert text(open_source(checkout, commit=commit)) == "x = 1"
    with pytest.raises(SourceUnavailableError, match=f"commit {'0' * 40} cannot be read"):
        open_source(checkout, commit="0" * 40)


def test_an_archive_that_is_none_is_not_kept_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_sources, "_ARCHIVES", (f"{NOWHERE}/{{commit}}.zip",))
    kept = tmp_path / f"mindspeed-{MINDSPEED.commit}.zip"
    kept.write_text("<html>sign in</html>")
    found = contract_sources.contract_sources(tmp_path, index=NOWHERE)
    assert "File is not a zip file" in found.unavailable["mindspeed"]
    assert not kept.exists()


def test_vllm_ascend_is_not_checked_without_the_vllm_that_its_classes_extend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_sources, "_ARCHIVES", (f"{NOWHERE}/{{commit}}.zip",))
    plugin = tmp_path / "plugin"
    (plugin / "vllm_ascend").mkdir(parents=True)
    found = contract_sources.contract_sources(
        tmp_path, given={"vllm-ascend": plugin}, index=NOWHERE
    )
    assert set(found.packages) == {"megatron", "ray"}
    assert found.unavailable["vllm-ascend"] == "its classes extend those of vllm, see there"


class Index(http.server.BaseHTTPRequestHandler):
    """Answers as a package index with two files of acme-npu 1.2 and one of 1.2.post1."""

    wheel = b"a wheel"
    promised = hashlib.sha256(wheel).hexdigest()

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        answer = self.wheel
        if self.path == "/simple/acme-npu/":
            names = (("acme_npu-1.2.tar.gz", 9), ("acme_npu-1.2-py3-none-any.whl", 7))
            files = [(*each, "1.2") for each in names]
            files.append(("acme_npu-1.2.post1-py3-none-any.whl", 1, "1.2.post1"))
            listed = [
                {
                    "filename": name,
                    "size": size,
                    "url": f"http://127.0.0.1:{port}/{name}",
                    "hashes": {"sha256": self.promised},
                }
                for name, size, _ in files
            ]
            answer = json.dumps({"files": listed}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()
        thread.join()


def test_the_smallest_file_of_the_exact_version_is_downloaded_once(
    index: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    file = published_file("acme-npu", "1.2", folder=cache, index=index)
    assert file.name == "acme_npu-1.2-py3-none-any.whl"
    assert file.read_bytes() == b"a wheel"
    assert published_file("acme-npu", "1.2", folder=cache, index=NOWHERE) == file
    assert [path.name for path in cache.iterdir()] == [file.name]


def test_a_file_with_other_contents_than_promised_is_refused_and_not_kept(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, "promised", "0" * 64)
    with pytest.raises(SourceUnavailableError, match="its checksum is not that of the index"):
        published_file("acme-npu", "1.2", folder=tmp_path, index=index)
    assert list(tmp_path.iterdir()) == []


def test_no_index_and_no_such_version_are_said(index: str, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match=r"no version 1\.3"):
        published_file("acme-npu", "1.3", folder=tmp_path, index=index)
    with pytest.raises(SourceUnavailableError, match="acme-npu: the package index does not"):
        published_file("acme-npu", "1.2", folder=tmp_path, index=NOWHERE)
