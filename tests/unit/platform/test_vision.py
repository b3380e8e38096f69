"""torchvision loads beside a CPU build of torch, and one for another torch is named."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ASK = "from mindrl.platform.vision import vision_trouble; print(vision_trouble())"


def python(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, with folders before those it imports from."""
    given = filter(None, [*map(str, paths), os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(given)},
        capture_output=True,
        text=True,
        check=False,
    )


def installed(folder: Path, source: str, needs: str) -> Path:
    """Write a torchvision of this source that requires this torch."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision/__init__.py").write_text(source)
    about = folder / "torchvision-0.28.0.dist-info/METADATA"
    about.parent.mkdir()
    text = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    about.write_text(f"{text}Requires-Dist: numpy\nRequires-Dist: {needs}\n")
    return folder


@pytest.mark.parametrize(
    ("needs", "is_named"), [("torch==1.5.0", True), (f"torch=={version('torch')}", False)]
)
def test_only_one_that_requires_another_torch_is_named(
    needs: str, is_named: bool, tmp_path: Path
) -> None:
    printed = python(ASK, installed(tmp_path, "", needs)).stdout
    wanted = f"torchvision 0.28.0 requires {needs} but torch {version('torch')} is installed, "
    assert printed.startswith(wanted if is_named else "None")
    assert printed.endswith("pip uninstall torchvision\n") is is_named


# What the builds for CUDA do at import beside a CPU build of torch.
# scripts/install.sh lets every process import mindrl.
WITHOUT = "import mindrl, sys; sys.meta_path.pop(0); import torchvision"
FAKE = "import torch; torch.library.register_fake('torchvision::{}')(lambda *_: None)"


@pytest.mark.nightly
@pytest.mark.parametrize("operator", ["nms", "qnms"])
def test_operators_are_declared_for_a_build_that_brings_none(operator: str, tmp_path: Path) -> None:
    folder = installed(tmp_path, FAKE.format(operator), "torch")
    assert "does not exist" in python(WITHOUT, folder).stderr
    assert python("import mindrl, torchvision", folder).returncode == 0


@pytest.mark.nightly
def test_transforms_of_the_installed_one_work() -> None:
    shown = python(
        "import mindrl, torch; from torchvision.transforms import v2; "
        "print(v2.Resize([2, 2])(torch.ones(3, 4, 4)).shape)"
    )
    assert shown.stdout == "torch.Size([3, 2, 2])\n", shown.stderr
