"""Write docs/reference/npu-environment.md from the settings in mindrl/platform, or check it."""

import sys
from collections.abc import Iterable, Sequence

from generated_page import REFERENCE, write_or_check

from mindrl.platform.setting import Rule, Setting, settings_by_owner

PAGE = REFERENCE / "npu-environment.md"

HEADER = """\
# Environment variables

<!-- Written by scripts/make_environment_reference.py from mindrl/platform/. Do not edit. -->

How mindrl handles the environment variables of HCCL, CANN, torch_npu and vllm-ascend, followed by
those of the engine, CUDA and the CPU.

Workers inherit the environment of the shell that starts the run, or of `ray start` if the run joins
a cluster. In addition mindrl sets the variables of this page in each worker process, before it
imports large libraries. `OMP_NUM_THREADS` is the worker's share of the cores, and on one machine
`GLOO_SOCKET_IFNAME` is `lo`. Your value takes precedence under the headings "Set, unless you set
it" and "Left to you": set it in the shell that starts the run.
[`mindrl doctor`](../how-to/doctor.md) lists the variables of its shell that a run refuses or
replaces, that slow it down, or that the installed vllm-ascend does not read.

**No run on a real NPU has been made with this version.** The reasons come from the sources in the
last column.
"""

RULES: dict[Rule, tuple[str, str]] = {
    "fixed": ("Set always", "Value"),
    "default": ("Set, unless you set it", "Value"),
    "deterministic": ("Set with `megatron_training.deterministic: true`", "Value"),
    "refused": ("Refused: no run starts with them", "Refused values (regular expression)"),
    "left": ("Left to you", "Default"),
}

SOURCES = """\
## Sources

vllm-ascend: branch releases/v0.23.0; what 0.30 does not read was looked up in 0.30.0rc2. MindSpeed:
branch core_r0.16.0. MindSpeed-RL: commit 05a90d7. verl: commit 1dda039b9. CANN: its manual of
environment variables, release 9.0.0 unless the table names another.
"""


def table(settings: Iterable[Setting], rule: Rule) -> list[str]:
    """Return the Markdown lines of the settings of one rule; empty without settings."""
    chosen = [setting for setting in settings if setting.rule == rule]
    if not chosen:
        return []
    title, value = RULES[rule]
    head = [
        f"### {title}",
        "",
        f"| Variable | {value} | Why | Source |",
        "| --- | --- | --- | --- |",
    ]
    return [*head, *map(row, chosen), ""]


def row(setting: Setting) -> str:
    """Return one setting as a line of a Markdown table."""
    value = setting.pattern if setting.rule == "refused" else setting.value
    shown = f"`{value}`" if value else ""
    why = setting.why
    if setting.until:
        why += f". Not read by vllm-ascend {setting.until}, which reads instead: {setting.instead}"
    cells = (f"`{setting.name}`", shown, why, setting.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def section(title: str, settings: Sequence[Setting]) -> list[str]:
    """Return the Markdown lines of the settings of one kind of device."""
    lines = [line for rule in RULES for line in table(settings, rule)]
    return [f"## {title}", "", *lines]


def page() -> str:
    """Return the whole page."""
    titles = {"npu": "NPU", "engine": "Engine, on every device", "gpu": "CUDA", "cpu": "CPU"}
    sections = [section(title, settings_by_owner()[owner]) for owner, title in titles.items()]
    return "\n".join([HEADER, *(line for lines in sections for line in lines), SOURCES])


if __name__ == "__main__":
    about = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    sys.exit(write_or_check(PAGE, page(), source="mindrl/platform/", description=about))
