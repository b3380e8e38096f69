# shellcheck shell=bash
# Common part of the quickstarts: create the environment, the data and the small model if they are missing.
# An entry script sources this file and calls: quickstart_prepare FAMILY MODEL_FOLDER
# Afterwards the current folder is the root of the checkout, and python is that of the environment.
# A script in an existing environment calls: make_tiny FAMILY MODEL_FOLDER

quickstart_prepare() {
    cd "$(dirname "${BASH_SOURCE[0]}")/../.." || return
    bash scripts/install.sh
    export PATH="$PWD/.venv/bin:$PATH"
    export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1
    make_tiny "$@"
}

make_tiny() {
    local family="$1" model="$2" data=.cache/tiny/data
    python scripts/make_tiny_data.py --output "$data" --seed 1
    python scripts/make_tiny_model.py --output "$model" --data "$data" --seed 1 --family "$family"
}
