#!/usr/bin/env bash
# The tests over the simulated NPU, in all their cases.
#
#   bash scripts/test_npu_simulated.sh
#   bash scripts/test_npu_simulated.sh -k hccl -x     the arguments go to pytest
#
# MINDSPEED=FOLDER names a checkout of MindSpeed at the pinned commit (docs/how-to/install-npu.md); the tests
# that need it are skipped without.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh
bash scripts/install_npu_simulated.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
.venv/bin/python -m pytest -m npu_simulated --durations=10 tests/npu_simulated "$@"
