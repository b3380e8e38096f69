"""Python reads it as it begins: whatever process has this folder on its path has simulated NPUs."""

import on_import

on_import.install()
