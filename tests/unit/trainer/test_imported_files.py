"""Files that count as part of a user's own function, by the imports of its file."""

from pathlib import Path

import pytest

from mindrl.trainer.imported_files import imported_files


def written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"own.py": "import math, helper", "helper.py": "", "other.py": ""}, ["helper.py"]),
        (
            {"own.py": "def f():\n    from parts.text import clean", "parts/text.py": ""},
            ["parts/text.py"],
        ),
        (
            {"own.py": "from parts import text", "parts/__init__.py": "", "parts/text.py": ""},
            ["parts/__init__.py", "parts/text.py"],
        ),
        # Helpers import each other, and the file itself.
        (
            {"own.py": "import one", "one.py": "import two", "two.py": "import own, one"},
            ["one.py", "two.py"],
        ),
        (
            {
                "own.py": "import parts.text",
                "parts/text.py": "from . import marks\nfrom ..far import x\nfrom .... import up",
                "parts/marks.py": "",
                "far.py": "",
            },
            ["far.py", "parts/marks.py", "parts/text.py"],
        ),
        ({"own.py": "import helper", "helper.py": "print 'of Python 2'"}, ["helper.py"]),
        ({"own.py": "import mindrl.errors", "mindrl/errors.py": ""}, []),
        ({"own.py": "import nowhere\nfrom helper import *", "helper.py": ""}, ["helper.py"]),
    ],
)
def test_files_of_the_same_folder_count_if_an_import_names_them(
    files: dict[str, str], found: list[str], tmp_path: Path
) -> None:
    written(tmp_path, files)
    reached = imported_files(tmp_path / "own.py")
    assert sorted(str(each.relative_to(tmp_path)) for each in reached) == found


def test_a_package_names_its_files_from_outside_and_files_outside_do_not_count(
    tmp_path: Path,
) -> None:
    named = "import pkg.rewards.helper, pkg.far, outer"
    files = ("pkg/__init__.py", "pkg/far.py", "pkg/rewards/__init__.py", "pkg/rewards/helper.py")
    written(tmp_path, {**dict.fromkeys((*files, "outer.py"), ""), "pkg/rewards/own.py": named})
    reached = imported_files(tmp_path / "pkg/rewards/own.py")
    assert sorted(each.name for each in reached) == ["__init__.py", "helper.py"]
    assert {each.parent for each in reached} == {tmp_path / "pkg/rewards"}


def test_a_file_among_installed_packages_counts_alone(tmp_path: Path) -> None:
    written(tmp_path / "site-packages", {"own.py": "import helper", "helper.py": ""})
    assert imported_files(tmp_path / "site-packages/own.py") == []
