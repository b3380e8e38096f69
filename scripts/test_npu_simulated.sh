#!/usr/bin/env bash
# Run all tests on the simulated NPU.
#
#   bash scripts/test_npu_simulated.sh
#   bash scripts/test_npu_simulated.sh -k hccl -x     passes the arguments to pytest
#
# MINDSPEED=FOLDER names a checkout of MindSpeed at the pinned commit (docs/how-to/install-npu.md); without it the
# tests that need MindSpeed are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh
bash scripts/install_npu_simulated.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
.venv/bin/python -m pytest -m npu_simulated --durations=10 tests/npu_simulated "$@"
