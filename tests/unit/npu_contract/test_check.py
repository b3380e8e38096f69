"""The reader of published packages, on small packages that are made here."""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from npu_contract.check import (
    Checked,
    check_contract,
    matrix,
)
from npu_contract.entry import Entry
from npu_contract.published_source import open_source
from npu_contract.sources import Sources

from mindrl.platform.npu_versions import Pin

PIN = Pin(distribution="acme-npu", module="acme_npu", version="1.2", origin="extra")
entry = partial(Entry, pin=PIN, used_by="mindrl/platform/device.py")

SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
FILES = {
    "acme_npu/__init__.py": "from .streams import *\nfrom acme_npu.engine import Engine as Motor\n"
    "LAZY = {'Late': '.engine:Options'}\n",
    "acme_npu/streams.py": "class Stream(Base):\n    def wait(self, other):\n        pass\n"
    "def current(device=None, *, kind):\n    pass\n",
    "acme_npu/engine.py": """\
from dataclasses import dataclass
import os
import acme_npu.heavy
@dataclass
class Common:
    level: int
class Options(Common):
    tags: list[str]
class Engine:
    def __init__(self, model, **rest):
        self.worker = None
        os.environ['ACME_ORDER'] = '1'
        self.mode = os.getenv('ACME_MODE', '0')
        self._get('nz', 'ACME_NZ')
def cast(weight, args):
    return npu_format_cast(weight, ACME_NZ) if args.tp_size else weight
""",
    "acme_npu/heavy.py": "try:\n    import soft.part\nexcept ImportError:\n    pass\n"
    "import hard.part\n"
    "def late():\n    if absent:\n        import rare.part\n"
    "    try:\n        import soft.part\n    except ImportError:\n        pass\n",
    "acme_npu/lib/libacme.so": "\0\0ACME_TIMEOUT\0",
    "docs/faq.md": "Set ACME_SHUFFLE to 0.",
    "acme_npu-1.2.dist-info/METADATA": "Requires-Dist: torch ==2.10.0; extra == 'x'\n",
    "acme_npu-1.2.dist-info/entry_points.txt": "[other]\na = b:c\n\n[engine.plugins]\n"
    "acme = acme_npu:register\n",
    SCHEMAS: "- exposed: true\n"
    "  func: npu_mix(Tensor query, int heads, *, float scale=1., int[]? ends=None) -> (Tensor)\n",
    "torch_npu/utils/exposed_api.py": "public_npu_functions = ['npu_mix']\n",
    "torch_npu/_op_plugin_docs.py": "'''\ntorch_npu.npu_mix(query)\n\nlayout: BSH or TND\n'''\n",
}

Change = dict[str, tuple[str, str]]
Check = Callable[..., Checked]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check one entry against a wheel in which some texts are replaced."""

    def run(wanted: Entry, **changes: tuple[str, str]) -> Checked:
        files = dict(FILES)
        for name, (old, new) in changes.items():
            file = next(path for path in files if Path(path).stem == name)
            assert old in files[file]
            files[file] = files[file].replace(old, new)
        wheel = tmp_path / "acme_npu-1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return check_contract(
            [wanted], Sources(packages={"acme_npu": open_source(wheel)}, unavailable={})
        )

    return run


@pytest.mark.parametrize(
    ("wanted", "evidence"),
    [
        (entry(kind="module", name="acme_npu.engine"), "file acme_npu/engine.py"),
        (entry(kind="name", name="acme_npu.Stream"), "class, acme_npu/streams.py:1"),
        (
            entry(kind="name", name="acme_npu.Stream.wait", arguments=("other",)),
            "def with arguments, acme_npu/streams.py:2",
        ),
        (
            entry(kind="name", name="acme_npu.current", arguments=("device", "kind")),
            "def with arguments, acme_npu/streams.py:4",
        ),
        (entry(kind="name", name="acme_npu.Motor.worker"), "assigned, acme_npu/engine.py:11"),
        (
            entry(kind="name", name="acme_npu.Late", arguments=("level", "tags")),
            "class with arguments, acme_npu/engine.py:7",
        ),
        (
            entry(
                kind="name",
                name="acme_npu.Motor",
                arguments=("model", "tags"),
                passed_on_to="acme_npu.engine.Options",
            ),
            "class with arguments, others passed on to acme_npu/engine.py:7, acme_npu/engine.py:9",
        ),
        (
            entry(kind="operator", name="torch_npu.npu_mix", arguments=("query", "heads", "ends")),
            f"schema with arguments, {SCHEMAS}:2; exported",
        ),
        (
            entry(kind="format", name="torch_npu.npu_mix", values=("layout", "TND")),
            "described, torch_npu/_op_plugin_docs.py:4",
        ),
        (
            entry(kind="call", name="self._get", values=("nz", "ACME_NZ")),
            "call, acme_npu/engine.py:14",
        ),
        (entry(kind="variable", name="ACME_MODE"), "read in Python, acme_npu/engine.py:13"),
        (entry(kind="variable", name="ACME_ORDER"), "set in Python, acme_npu/engine.py:12"),
        (entry(kind="variable", name="ACME_NZ"), "named in Python, acme_npu/engine.py:14"),
        (
            entry(kind="variable", name="ACME_TIMEOUT"),
            "string in shared library, acme_npu/lib/libacme.so",
        ),
        (entry(kind="variable", name="ACME_SHUFFLE"), "documentation only, docs/faq.md"),
        (entry(kind="setting", name="tp_size"), "read as args.tp_size, acme_npu/engine.py:16"),
        (
            entry(kind="entry point", name="engine.plugins", values=("acme_npu:register",)),
            "metadata, acme_npu-1.2.dist-info/entry_points.txt",
        ),
        (
            entry(kind="requirement", name="torch", values=("2.10.0",)),
            "metadata, acme_npu-1.2.dist-info/METADATA",
        ),
        (
            entry(kind="import", name="acme_npu.engine", values=("hard",)),
            "imported by acme_npu/heavy.py; not published",
        ),
        (
            entry(kind="import", name="acme_npu.heavy.late", values=("rare",)),
            "imported by acme_npu/heavy.py; not published",
        ),
        (
            entry(kind="casts", name="ACME_NZ", values=("acme_npu.engine.cast",)),
            "npu_format_cast in 1 functions, all known",
        ),
    ],
)
def test_what_is_published_is_found_with_its_place(
    check: Check, wanted: Entry, evidence: str
) -> None:
    checked = check(wanted)
    assert [row.evidence for row in checked.rows] == [evidence]
    assert checked.findings() == checked.notes() == []


@pytest.mark.parametrize(
    ("wanted", "changes", "finding"),
    [
        (
            entry(kind="module", name="acme_npu.absent"),
            {},
            "no file for module acme_npu.absent",
        ),
        (
            entry(kind="name", name="acme_npu.current"),
            {"streams": ("def current", "def at_present")},
            "acme_npu.current is not defined",
        ),
        (
            entry(kind="name", name="acme_npu.current", arguments=("device", "kind")),
            {"streams": ("kind", "sort")},
            "acme_npu.current does not take kind",
        ),
        (
            entry(kind="name", name="acme_npu.Motor.worker"),
            {"engine": ("self.worker", "self.driver")},
            "acme_npu.Motor.worker is not defined",
        ),
        (
            entry(
                kind="name",
                name="acme_npu.Motor",
                arguments=("model", "tags"),
                passed_on_to="acme_npu.engine.Options",
            ),
            {"engine": ("tags", "labels")},
            "acme_npu.Motor does not take tags",
        ),
        (
            entry(kind="operator", name="torch_npu.npu_mix", arguments=("query", "ends")),
            {"npu_native_functions_by_codegen": ("ends", "lengths")},
            "torch_npu.npu_mix does not take ends",
        ),
        (
            entry(kind="operator", name="torch_npu.npu_mix"),
            {"exposed_api": ("npu_mix", "npu_blend")},
            "torch_npu.npu_mix is not exported by torch_npu/utils/exposed_api.py",
        ),
        (
            entry(kind="format", name="torch_npu.npu_mix", values=("layout", "TND")),
            {"_op_plugin_docs": ("TND", "BNSD")},
            "torch_npu.npu_mix: layout does not mention 'TND'",
        ),
        (
            entry(kind="variable", name="ACME_MODE"),
            {"engine": ("ACME_MODE", "ACME_MANNER")},
            "ACME_MODE does not occur",
        ),
        (
            entry(kind="call", name="self._get", values=("nz", "ACME_NZ")),
            {"engine": ("'nz'", "'layout'")},
            "no call of self._get with nz, ACME_NZ",
        ),
        (
            entry(kind="setting", name="tp_size"),
            {"engine": ("tp_size", "tensor_size")},
            "args.tp_size is never read",
        ),
        (
            entry(kind="entry point", name="engine.plugins", values=("acme_npu:register",)),
            {"entry_points": ("acme_npu:register", "acme_npu:start")},
            "no acme_npu:register among the entry points engine.plugins",
        ),
        (
            entry(kind="requirement", name="torch", values=("2.10.0",)),
            {"METADATA": ("2.10.0", "2.11.0")},
            "the metadata does not require torch==2.10.0",
        ),
        (
            entry(kind="import", name="acme_npu.engine", values=("soft",)),
            {},
            "acme_npu.engine does not import soft, so no patch is needed",
        ),
        (
            entry(kind="import", name="acme_npu.engine", values=("rare",)),
            {},
            "acme_npu.engine does not import rare, so no patch is needed",
        ),
        (
            entry(kind="import", name="acme_npu.heavy.late", values=("soft",)),
            {},
            "acme_npu.heavy.late does not import soft, so no patch is needed",
        ),
        (
            entry(kind="casts", name="ACME_NZ", values=("acme_npu.engine.cast",)),
            {"streams": ("pass\ndef", "npu_format_cast(other, 29)\ndef")},
            "ACME_NZ: weights are also cast in acme_npu.streams.Stream.wait",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_file_of_ours_that_needs_it(
    check: Check, wanted: Entry, changes: Change, finding: str
) -> None:
    assert check(wanted, **changes).findings() == [
        f"acme-npu==1.2: {finding}; mindrl/platform/device.py needs it"
    ]


def test_a_package_that_cannot_be_read_is_a_note_and_never_passes_silently() -> None:
    sources = Sources(packages={}, unavailable={"acme-npu": "no answer"})
    checked = check_contract([entry(kind="module", name="acme_npu")], sources)
    assert (checked.rows, checked.findings()) == ((), [])
    assert checked.notes() == ["NPU contract not checked: acme-npu: no answer"]


def test_the_matrix_has_a_table_for_each_package(check: Check) -> None:
    rows = check(entry(kind="module", name="acme_npu.engine")).rows
    table = (
        "### acme-npu==1.2\n\n| Name | Kind | Evidence | Needed by |\n| --- | --- | --- | --- |\n"
        "| `acme_npu.engine` | module | file acme_npu/engine.py | `mindrl/platform/device.py` |"
    )
    assert matrix(rows) == table
