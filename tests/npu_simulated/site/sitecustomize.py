"""Imported at the start of Python: a process with this folder on its path has simulated NPUs."""

from importlib import import_module
from importlib.util import find_spec

import on_import

on_import.install()
# Of two modules of this name the first is read: the other one is that of scripts/npu_coverage.py.
if find_spec("recorded_lines"):
    import_module("recorded_lines").start()
