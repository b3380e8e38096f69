"""The faults of scripts/mutate.py: each can be planted, and no room of mindrl is without one."""

import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutate() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        import mutate
    return mutate


def test_every_fault_stands_in_one_place_and_has_its_tests(mutate: Any) -> None:
    faults = mutate.faults()
    assert len(faults) >= 40
    for fault in faults:
        assert fault.old != fault.new
        compile(fault.planted(ROOT), fault.name, "exec")
        assert fault.test_files()


def test_every_room_has_a_fault(mutate: Any) -> None:
    rooms = {path.parent.name for path in ROOT.glob("mindrl/*/__init__.py")}
    faulty = {fault.file(ROOT).relative_to(ROOT / "mindrl").parts[0] for fault in mutate.faults()}
    assert rooms <= faulty


@pytest.mark.parametrize(
    ("old", "places"), [("return 1", 2), ("return 2", 0)], ids=["twice", "nowhere"]
)
def test_a_fault_that_does_not_stand_in_one_place_is_refused(
    mutate: Any, tmp_path: Path, old: str, places: int
) -> None:
    (tmp_path / "mindrl").mkdir()
    (tmp_path / "mindrl/one.py").write_text("def f(): return 1\ndef g(): return 1\n")
    fault = mutate.Fault(name="mine", old=old, new="pass", tests=())
    with pytest.raises(mutate.FaultError, match=f"^mine: its text occurs {places} times"):
        fault.file(tmp_path)


def test_a_name_of_tests_that_are_gone_is_refused_even_beside_others(mutate: Any) -> None:
    names = ("test_faults.py", "test_gone.py")
    fault = mutate.Fault(name="mine", old="1", new="2", tests=names)
    with pytest.raises(mutate.FaultError, match=r"^mine: no test file is named test_gone\.py$"):
        fault.test_files()


def test_the_short_suite_is_the_same_for_faults_and_for_the_script_of_all_checks(
    mutate: Any,
) -> None:
    assert f'marks="{mutate.SHORT}"\n' in (ROOT / "scripts/test.sh").read_text("utf-8")


def test_a_run_takes_the_sources_of_its_tree_as_they_are_then(mutate: Any, tmp_path: Path) -> None:
    source, test = tmp_path / "mindrl/value.py", tmp_path / "test_value.py"
    source.parent.mkdir()
    (source.parent / "__init__.py").touch()
    test.write_text("from mindrl.value import VALUE\ndef test_it(): assert VALUE == 11\n")
    codes = []
    with closing(mutate.PreloadedPython(["pytest"])) as preloaded:
        for value in (11, 12, 11):
            source.write_text(f"VALUE = {value}\n")
            done = run_tests(mutate, preloaded, tmp_path)
            codes.append(done.returncode)
    assert codes == [mutate.SURVIVED, mutate.FOUND, mutate.SURVIVED]
    assert "1 passed" in done.stdout


def test_workers_of_pytest_share_the_tests_that_their_process_has_imported(
    mutate: Any, tmp_path: Path
) -> None:
    imports = tmp_path / "imports"
    (tmp_path / "test_it.py").write_text(
        f"with open({str(imports)!r}, 'a') as file: file.write('once ')\n"
        "def test_it(): assert [1] == [1]\n"
    )
    with closing(mutate.PreloadedPython(["pytest"], [str(tmp_path)])) as preloaded:
        for _ in range(2):
            done = run_tests(mutate, preloaded, tmp_path)
            assert "1 passed" in done.stdout, done.stdout
    assert imports.read_text() == "once "


def run_tests(mutate: Any, preloaded: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder in a fork of the process."""
    return subprocess.run(
        [*preloaded.command, "-c", mutate.PYTEST, "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_faults_run_without_the_ranks_and_cases_of_the_suite_that_plants_them(
    mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import os\n"
        "def test_ranks(): assert 'MINDRL_TESTS_ZYGOTE' not in os.environ\n"
        "def test_cases(): assert 'MINDRL_NIGHTLY' not in os.environ\n"
    )
    monkeypatch.setenv("MINDRL_TESTS_ZYGOTE", "of other sources")
    monkeypatch.setenv("MINDRL_NIGHTLY", "1")
    few = mutate.PreloadedPython(["pytest"])
    monkeypatch.setattr(mutate, "PreloadedPython", lambda: few)
    with closing(few):
        tree = mutate._Tree(tmp_path)
        assert tree.first_failure("mine", [test.name]) == ""
        assert tree.first_failure("mine", [test.name], nightly=True) == "test_it.py::test_cases"
