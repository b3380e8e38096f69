"""What is read from `npu-smi info` and from the version files of an Ascend machine.

The tables have the layouts of real machines: Atlas A2 (one die on a card) with npu-smi 25.2.0,
Atlas A3 (two dies) with 25.3.rc1, and A3 with the wide columns of 26.0.rc2.
"""

from pathlib import Path

import pytest

from mindrl.platform.probes.device_report import (
    Device,
    answer_of,
    cann_version,
    driver_version,
    npu_report,
    parse_npu_smi,
    toolkit_folders,
)
from mindrl.platform.probes.machine import group_ports

A2 = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 97.9        34                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3408 / 65536         |
+===========================+===============+====================================================+
| 2     910B3               | OK            | 92.3        32                0    / 0             |
| 0                         | 0000:81:00.0  | 0           0    / 0          41052/ 65536         |
+===========================+===============+====================================================+
| 7     910B3               | Alarm         | 95.4        37                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          3400 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 2       0                 | 1333928       |                          | 37709                   |
+===========================+===============+====================================================+
| No running processes found in NPU 7                                                            |
+===========================+===============+====================================================+
"""

A3 = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.3.rc1                 Version: 25.3.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 176.9       46                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 17          0    / 0          53200/ 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           52                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 17          0    / 0          52940/ 65536         |
+===========================+===============+====================================================+
| 5     Ascend910           | OK            | 174.5       51                0    / 0             |
| 0     10                  | 0000:89:00.0  | 0           0    / 0          3130 / 65536         |
+------------------------------------------------------------------------------------------------+
| 5     Ascend910           | OK            | -           50                0    / 0             |
| 1     11                  | 0000:8B:00.0  | 0           0    / 0          2895 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 3325989       | VLLMWorker_TP            | 50128                   |
| 0       0                 | 3330598       |                          | 132                     |
| 0       1                 | 3328327       |                          | 50119                   |
+===========================+===============+====================================================+
| No running processes found in NPU 5                                                            |
+===========================+===============+====================================================+
"""

WIDE = """
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
"""  # noqa: E501


def device(index: int, used_mib: int, *processes: int, name: str = "Ascend910") -> Device:
    return Device(
        index=index,
        name=name,
        health="OK",
        total_mib=65536,
        used_mib=used_mib,
        processes=processes,
    )


def test_a_card_with_one_die_is_known_by_the_number_of_the_npu() -> None:
    alarm = Device(index=7, name="910B3", health="Alarm", total_mib=65536, used_mib=3400)
    assert parse_npu_smi(A2) == (
        device(0, 3408, name="910B3"),
        device(2, 41052, 1333928, name="910B3"),
        alarm,
    )


def test_a_card_with_two_dies_is_two_devices_by_their_physical_numbers() -> None:
    assert parse_npu_smi(A3) == (
        device(0, 53200, 3325989, 3330598),
        device(1, 52940, 3328327),
        device(10, 3130),
        device(11, 2895),
    )


def test_the_wide_columns_of_a_newer_driver_are_read_alike() -> None:
    assert parse_npu_smi(WIDE) == (device(0, 3419), device(1, 2874))


@pytest.mark.parametrize("text", ["", "dcmi model initialized failed, ret is -8020", "| 0 | x |"])
def test_words_instead_of_a_table_are_no_devices(text: str) -> None:
    assert parse_npu_smi(text) == ()


def test_a_tool_that_is_not_here_or_fails_is_an_error_in_words() -> None:
    assert answer_of("no-such-tool-of-a-vendor") == ("", "not on the PATH")
    assert answer_of("sh", "-c", "echo first; echo ret is -8020 >&2; exit 3") == (
        "",
        "exit code 3: ret is -8020",
    )
    assert answer_of("sh", "-c", "echo a table") == ("a table\n", "")


def test_the_driver_has_the_version_of_its_package(tmp_path: Path) -> None:
    assert driver_version(tmp_path) is None
    (tmp_path / "driver").mkdir()
    file = tmp_path / "driver" / "version.info"
    file.write_text("Version=24.1.rc2.2\nascendhal_version=7.35.23\n", encoding="utf-8")
    assert driver_version(tmp_path) == "24.1.rc2.2"
    file.write_text("Version=7.35.23\npackage_version=26.0.rc1\n", encoding="utf-8")
    assert driver_version(tmp_path) == "26.0.rc1"


def test_cann_has_the_version_of_the_first_folder_that_says_one(tmp_path: Path) -> None:
    absent, old, new = (tmp_path / name for name in ("absent", "8.0.0", "cann-9.1.0"))
    old.mkdir()
    (old / "version.cfg").write_text(
        "runtime_running_version=[7.6.0.1.220:8.0.0]\n", encoding="utf-8"
    )
    (new / "aarch64-linux").mkdir(parents=True)
    (new / "aarch64-linux" / "ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=aarch64\n", encoding="utf-8"
    )
    assert cann_version([absent]) is None
    assert cann_version([absent, old, new]) == "8.0.0"
    assert cann_version([new, old]) == "9.1.0"
    assert toolkit_folders({"ASCEND_HOME_PATH": str(new)}, absent)[0] == new


def test_the_tool_and_the_files_of_a_machine_make_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table").write_text(A3, encoding="utf-8")
    tool = tmp_path / "npu-smi"
    tool.write_text(f'#!/bin/sh\n[ "$1" = info ] && cat {tmp_path}/table\n', encoding="utf-8")
    tool.chmod(0o755)
    (tmp_path / "cann" / "x86_64-linux").mkdir(parents=True)
    (tmp_path / "cann" / "x86_64-linux" / "ascend_toolkit_install.info").write_text(
        "version=9.1.0\n", encoding="utf-8"
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    environment = {"ASCEND_INSTALL_DIR": str(tmp_path), "ASCEND_HOME_PATH": str(tmp_path / "cann")}
    report = npu_report(environment)
    assert (report.error, len(report.devices)) == ("", 4)
    assert {each.name: each.version for each in report.components} == {
        "Ascend driver": None,
        "CANN": "9.1.0",
        "ASCEND_HOME_PATH": str(tmp_path / "cann"),
        "ATB_HOME_PATH": None,
    }


def test_the_ranks_find_each_other_on_32_ports_from_the_one_that_is_set() -> None:
    assert group_ports("npu", {}) == range(60000, 60032)
    assert group_ports("npu", {"HCCL_IF_BASE_PORT": "24703"}) == range(24703, 24735)
    assert group_ports("cpu", {"HCCL_IF_BASE_PORT": "24703"}) is None
