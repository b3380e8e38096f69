"""Look at this machine before a run does: python cli/doctor.py [--device KIND] [--json]."""

import sys

from mindrl.programs.doctor import doctor

if __name__ == "__main__":
    sys.exit(doctor())
