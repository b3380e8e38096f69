"""A torchvision of another build than torch is found before transformers imports it."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ASK = "from mindrl.platform.vision import vision_trouble; print(vision_trouble())"


@pytest.mark.parametrize(
    ("build", "source", "is_named"),
    [
        ("+other", "raise RuntimeError('operator torchvision::nms does not exist')", True),
        ("+other", "", False),
        (f"+{version('torch').partition('+')[2]}", "raise RuntimeError", False),
    ],
)
def test_only_one_that_does_not_load_is_named_with_the_remedy(
    build: str, source: str, is_named: bool, tmp_path: Path
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text(source)
    about = tmp_path / "torchvision-0.28.0.dist-info/METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0{build}\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    printed = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = f"torchvision 0.28.0+other does not load with torch {version('torch')}, "
    assert printed.startswith(wanted if is_named else "None")
    assert printed.endswith("pip uninstall torchvision torchaudio torchcodec\n") is is_named
