"""The wheel: what is in it, and that it needs no checkout."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
from built_wheel import ROOT, built_wheel, copied_sources, installed, outside

SHIPPED = re.compile(r"\.(py|pyi|yaml|json|js|css|html|lock|sh)$|/py\.typed$")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy with files that do not belong in it."""
    sources = copied_sources(tmp_path_factory.mktemp("sources"))
    for unwanted in ("tests/test_one.py", "mindrl/tiny/__pycache__/recipe.cpython-311.pyc"):
        (sources / unwanted).parent.mkdir(parents=True, exist_ok=True)
        (sources / unwanted).touch()
    return built_wheel(sources, tmp_path_factory.mktemp("wheel"))


def shipped(folder: Path, place: str = "mindrl") -> set[str]:
    """List the files of the package, with those of configs/, which is a link in it."""
    found = {f"{place}/{file.relative_to(folder)}" for file in folder.rglob("*") if file.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = shipped(ROOT / "mindrl") | shipped(ROOT / "configs", "mindrl/configs")
    assert {name for name in wanted if not SHIPPED.search(name)} == set()
    assert names == wanted
    assert {"mindrl/py.typed", "mindrl/config/section_types.pyi"} <= names


def test_the_wheel_has_the_licence_the_command_and_the_extras(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist()} - {"mindrl"}
        texts = {name: archive.read(f"{folder}/{name}").decode() for name in ("METADATA", "WHEEL")}
        command = archive.read(f"{folder}/entry_points.txt").decode()
        licence = archive.read(f"{folder}/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert command == "[console_scripts]\nmindrl = mindrl.programs.entry:main\n"
    assert f"\nVersion: {version('mindrl')}\n" in texts["METADATA"]
    assert {"cpu", "cuda", "npu"} <= {*re.findall(r"Provides-Extra: (\S+)", texts["METADATA"])}
    assert "Tag: py3-none-any" in texts["WHEEL"]


@pytest.mark.nightly
def test_an_installed_wheel_makes_its_model_and_trains_it_in_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    programs, folder = installed(wheel, tmp_path / "environment"), tmp_path / "empty"
    folder.mkdir()
    place = outside([programs / "python", "-c", "import mindrl; print(mindrl.__file__)"], folder)
    assert place.stdout.startswith(f"{tmp_path}/environment/"), place.stderr
    printed = outside([programs / "mindrl", "--version"], folder).stdout
    assert printed.startswith(f"mindrl {version('mindrl')} (Python 3.")
    started = outside([programs / "mindrl", "quickstart", "hydra.run.dir=run"], folder)
    assert started.returncode == 0, started.stderr
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["accuracy_after"] >= 0.95, started.stdout
    assert "run completed" in started.stdout
