"""The versions and inputs of a run in its summary and its models."""

import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.launch.provenance import commit, provenance


def test_the_seed_the_packages_that_count_and_the_commit_are_known(
    random_model: Callable[[bool], Path], run_config: Callable[..., RunConfig]
) -> None:
    found = provenance(run_config(random_model(False), {"megatron_training.seed": 41}))
    assert found["seed"] == 41
    versions = found["versions"]
    assert isinstance(versions, dict)
    for name in ("mindrl", "torch", "ray", "transformers", "megatron-core"):
        assert versions[name] == version(name)
    assert "python" in versions
    assert "pytest" not in versions


def test_a_commit_is_that_of_the_checkout_and_says_whether_files_differ(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit(tmp_path) == head.stdout.strip()
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{head.stdout.strip()}-dirty"
