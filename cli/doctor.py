"""Check this machine before a run: python cli/doctor.py [--device KIND] [--json]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.doctor import doctor

if __name__ == "__main__":
    sys.exit(doctor())
