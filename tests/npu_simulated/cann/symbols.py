"""Write a C file with the CANN symbols that torch_npu needs and no library defines.

    python symbols.py TORCH_NPU TORCH_LIB LIBRARY... > symbols.c

A function of C answers 0, as most of CANN does where nothing is to be done. What runs an operator
or a graph, and every function of C++, ends the process and says its name; but for those by which
ATB makes and ends its context.
"""

import subprocess
import sys
from pathlib import Path

SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0")
LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
HARMLESS = ("CreateContext", "DestroyContext")
BEGIN = r"""#include <stdio.h>
#include <stdlib.h>
static long gone(const char* name) {
  fprintf(stderr, "[simulated npu] %s is not simulated\n", name);
  abort();
}"""


def main(torch_npu: Path, torch_lib: Path, *ours: str) -> None:
    """Print the file."""
    theirs = [str(file) for file in torch_npu.rglob("*.so*")]
    loader = next(file for file in map(_system_file, LOADER.values()) if Path(file).is_file())
    others = [*map(str, torch_lib.glob("*.so*")), *map(_system_file, SYSTEM), loader]
    there = set().union(*(_symbols(file, "--defined-only") for file in (*theirs, *ours, *others)))
    asked = set().union(*(_symbols(file, "--undefined-only") for file in theirs)) - there
    print(BEGIN)
    for number, name in enumerate(sorted(asked)):
        if not name.startswith(("Py", "_Py")):
            print(f'long f{number}(void) __asm__("{name}");')
            print(f"long f{number}(void) {{ return {_answer(name)}; }}")


def _answer(name: str) -> str:
    fatal = name.startswith("_Z") or "Execute" in name
    return f'gone("{name}")' if fatal and not any(each in name for each in HARMLESS) else "0"


def _symbols(file: str, kind: str) -> set[str]:
    """Return names without their versions, and without those that may stay undefined."""
    command = ["nm", "-D", kind, file]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {row[-1].split("@")[0] for row in rows if row and row[-2] not in ("w", "v")}


def _system_file(name: str) -> str:
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
