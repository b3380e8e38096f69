# shellcheck shell=bash
# Common part of the Ascend entry scripts: check the node, start Ray, train, and stop all started processes.
# An entry script sources this file and calls: ascend_main PROGRAM CONFIG_NAME "$@"
#
# The preflight is here; Ray and process handling are in ray_nodes.sh.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=ray_nodes.sh
source "$ROOT/scripts/lib/ray_nodes.sh"

EXIT_USAGE=2
EXIT_PREFLIGHT=3
EXIT_TIMEOUT=4

ascend_usage() {
    local script="$1" what="$2"
    cat <<EOF
Usage: bash $script [--check | --dry-run | --help] [OVERRIDE ...]

Trains on Ascend NPUs: $what. Every OVERRIDE
is a Hydra override that is passed to the program, for example: rl_config.n_samples_per_prompt=16

  --check     only check this node: print what is missing and how to get it; exit code 3 if anything is
  --dry-run   only validate the configuration, and print the derived numbers and the number of nodes;
              needs no NPU and does not start Ray
  --help      print this text

One node needs no settings. For several, run the same command on each node with:

  NNODES           number of nodes (default 1)
  NODE_RANK        number of this node, 0 to NNODES-1; the program runs on node 0, the head (default 0)
  MASTER_ADDR      IPv4 address or name of node 0 in the nodes' network
  RAY_AUTH_TOKEN_PATH  file with the same secret on every node (or RAY_AUTH_TOKEN, or ~/.ray/auth_token):
                   run 'ray get-auth-token --generate' once and copy the file; one node creates its own

Optional:

  RAY_PORT         port of the head (default: a free one; with several nodes a port from 20000 to 29999,
                   derived from the secret)
  NPUS_PER_NODE    NPUs to use on each node, equal on all (default: the visible ones of this node, see
                   ASCEND_RT_VISIBLE_DEVICES)
  SOCKET_IFNAME    network interface for HCCL and gloo (default: the one that reaches MASTER_ADDR)
  NODE_IP          address of this node (default: the one that reaches MASTER_ADDR)
  WAIT_SECONDS     time limit for the head and all NPUs to appear (default 600)
  STOP_SECONDS     time limit for the program to stop (default 120)
  PYTHON           interpreter with the NPU packages, with ray in the same folder (default: python, or that
                   of .venv if python lacks the packages of mindrl)
  ASCEND_INSTALL_DIR  folder of CANN (default /usr/local/Ascend)
  DEVICE_DIR       folder of the device files davinci<N> (default /dev)

Exit codes: the program's own; 2 wrong settings; 3 preflight; 4 no head or too few NPUs after WAIT_SECONDS.
Ctrl-C or SIGTERM stops the program, then the Ray node that this script has started.
EOF
}

# The configurations in configs/, without those for CPUs.
ascend_runs() {
    local file name names=()
    for file in "$ROOT"/configs/*_*.yaml; do
        name="$(basename "$file" .yaml)"
        [[ "$name" == *_cpu ]] || ! grep -q '^defaults:' "$file" || names+=("$name")
    done
    printf '%s\n' "${names[*]}"
}

say() { printf '[mindrl] %s\n' "$*" >&2; }

fail() {
    local code="$1"
    shift
    say "error: $*"
    exit "$code"
}

# ---- settings -------------------------------------------------------------------------------------------

require_number() {
    local name="$1" minimum="$2"
    if [[ ! "${!name}" =~ ^[0-9]{1,9}$ ]] || ((10#${!name} < minimum)); then
        fail "$EXIT_USAGE" "$name=${!name} must be a whole number of at least $minimum"
    fi
}

read_settings() {
    NNODES="${NNODES:-1}"
    NODE_RANK="${NODE_RANK:-0}"
    WAIT_SECONDS="${WAIT_SECONDS:-600}"
    STOP_SECONDS="${STOP_SECONDS:-120}"
    ASCEND_INSTALL_DIR="${ASCEND_INSTALL_DIR:-/usr/local/Ascend}"
    DEVICE_DIR="${DEVICE_DIR:-/dev}"
    require_number NNODES 1
    require_number NODE_RANK 0
    require_number WAIT_SECONDS 1
    require_number STOP_SECONDS 1
    ((NODE_RANK < NNODES)) || fail "$EXIT_USAGE" "NODE_RANK=$NODE_RANK must be below NNODES=$NNODES"
    NPUS_PER_NODE="${NPUS_PER_NODE:-$(count_devices)}"
    require_number NPUS_PER_NODE 0
    if [[ -n "${RAY_PORT:-}" ]]; then
        require_number RAY_PORT 1024
    fi
}

# Return whether an interpreter has the packages that every program of mindrl needs.
has_packages() { "$1" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("hydra"))' 2>/dev/null; }

# Set PYTHON to the interpreter of the active environment or of .venv, unless the user has set it, and put its folder
# first on PATH for `ray`.
choose_python() {
    local each
    for each in python "$ROOT/.venv/bin/python" python3; do
        if [[ -z "${PYTHON:-}" ]] && has_packages "$each"; then
            PYTHON="$each"
        fi
    done
    PYTHON="${PYTHON:-python}"
    if [[ "$PYTHON" == */* && -x "$(dirname "$PYTHON")/ray" ]]; then
        PATH="$(cd "$(dirname "$PYTHON")" && pwd):$PATH"
    fi
}

# Count the devices that this process may use: the listed ones, or all davinci<N> files.
count_devices() {
    local listed
    if [[ -n "${ASCEND_RT_VISIBLE_DEVICES:-}" ]]; then
        IFS=, read -ra listed <<<"$ASCEND_RT_VISIBLE_DEVICES"
        printf '%d\n' "${#listed[@]}"
        return
    fi
    devices_there
}

# Print the number of devices of this node.
devices_there() {
    local file count=0
    for file in "$DEVICE_DIR"/davinci[0-9]*; do
        [[ ! -e "$file" ]] || count=$((count + 1))
    done
    printf '%d\n' "$count"
}

# ---- preflight: reports all findings together -----------------------------------------------------------

findings=()

find_fault() { findings+=("$1"$'\n'"      -> $2"); }

check_devices() {
    local found visible="${ASCEND_RT_VISIBLE_DEVICES:-}"
    if [[ "$visible" == *[[:space:]]* ]]; then
        find_fault "ASCEND_RT_VISIBLE_DEVICES=$visible: CANN ends the list at a blank" \
            "write ASCEND_RT_VISIBLE_DEVICES=${visible//[[:space:]]/}"
    fi
    found="$(devices_there)"
    if ((!found)); then
        find_fault "NPU devices: no $DEVICE_DIR/davinci<N>" \
            "install the Ascend driver and firmware; in a container, pass each device: --device /dev/davinci0 ..."
    elif ((NPUS_PER_NODE == 0)); then
        find_fault "NPU devices: NPUS_PER_NODE=0" "unset NPUS_PER_NODE, or set it to 1 or more"
    elif ((NPUS_PER_NODE > found)); then
        find_fault "NPU devices: NPUS_PER_NODE=$NPUS_PER_NODE, and $DEVICE_DIR has $found" \
            "unset NPUS_PER_NODE, or set it to at most $found"
    fi
    if ! command -v npu-smi >/dev/null; then
        find_fault "npu-smi: not on PATH" \
            "install the Ascend driver; in a container, mount /usr/local/bin/npu-smi and /usr/local/dcmi"
    elif ! timeout 60 npu-smi info >/dev/null 2>&1; then
        find_fault "npu-smi: 'npu-smi info' failed" \
            "run it by hand: the driver is not loaded, or this user may not open the devices"
    fi
}

# CANN's scripts read unset variables, and parts of them fail without consequences here.
source_loosely() {
    local script="$1"
    set --
    set +eu
    # shellcheck source=/dev/null
    source "$script" >/dev/null 2>&1
    set -eu
}

check_cann() {
    local script home
    if [[ ! -d "${ASCEND_HOME_PATH:-}" ]]; then
        for home in "$ASCEND_INSTALL_DIR/ascend-toolkit" "$ASCEND_INSTALL_DIR/cann"; do
            [[ -f "$home/set_env.sh" ]] || continue
            source_loosely "$home/set_env.sh"
            break
        done
    fi
    if [[ ! -d "${ASCEND_HOME_PATH:-}" ]]; then
        find_fault "CANN: ASCEND_HOME_PATH=${ASCEND_HOME_PATH:-} is not a folder, and $ASCEND_INSTALL_DIR has no set_env.sh" \
            "install the CANN 9.1.0 toolkit, kernels and NNAL, or source its set_env.sh first"
        return
    fi
    script="$ASCEND_INSTALL_DIR/nnal/atb/set_env.sh"
    if [[ -z "${ATB_HOME_PATH:-}" && -f "$script" ]]; then
        source_loosely "$script"
    fi
}

# Print the pinned requirement of package $1 in pyproject.toml, for pip.
pinned() { sed -nE "s/^ *\"($1==[^\"]*)\",?\$/\1/p" "$ROOT/pyproject.toml" | head -n 1; }

# Use find_spec, because importing one of these packages without its driver would fail.
missing_packages() {
    "$PYTHON" -c '
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        print(name)
' torch_npu vllm_ascend triton torchvision mindspeed megatron.core ray hydra
}

check_packages() {
    local name names
    if ! names="$(missing_packages 2>/dev/null)"; then
        find_fault "Python: '$PYTHON' does not run" "activate the environment with the NPU packages, or set PYTHON"
        return
    fi
    for name in $names; do
        case "$name" in
            torch_npu) find_fault "Python package: torch_npu" "$PYTHON -m pip install $(pinned torch-npu)" ;;
            vllm_ascend)
                find_fault "Python package: vllm_ascend" \
                    "$PYTHON -m pip install $(pinned vllm-ascend), and build vLLM of its version with VLLM_TARGET_DEVICE=empty"
                ;;
            triton)
                find_fault "Python package: triton, which MindSpeed imports" \
                    "$PYTHON -m pip install $(pinned triton-ascend) --extra-index-url \"\$ASCEND_INDEX\": docs/how-to/install-npu.md"
                ;;
            torchvision)
                find_fault "Python package: torchvision, which MindSpeed imports" "$PYTHON -m pip install $(pinned torchvision)"
                ;;
            mindspeed)
                find_fault "Python package: mindspeed" \
                    "clone MindSpeed, branch core_r0.16.0, and $PYTHON -m pip install --no-deps -e MindSpeed"
                ;;
            megatron.core)
                find_fault "Python package: megatron.core" "$PYTHON -m pip install $(pinned megatron-core)"
                ;;
            hydra) find_fault "Python package: hydra" "$PYTHON -m pip install -e . for the packages of mindrl itself" ;;
            ray) find_fault "Python package: ray" "$PYTHON -m pip install $(pinned ray)" ;;
        esac
    done
    if [[ " $names " != *ray* ]] && ! command -v ray >/dev/null; then
        find_fault "ray: installed for $PYTHON, but the command is not on PATH" "activate that environment"
    fi
}

preflight() {
    local finding
    check_devices
    check_cann
    check_packages
    check_network
    if ((${#findings[@]})); then
        say "this node is not ready; ${#findings[@]} finding(s):"
        for finding in "${findings[@]}"; do
            printf '    - %s\n' "$finding" >&2
        done
        exit "$EXIT_PREFLIGHT"
    fi
    say "preflight: ready, $NPUS_PER_NODE NPU(s) on node $NODE_RANK of $NNODES"
}

# ---- number of devices of the run ----------------------------------------------------------------------

# Set RUN_NPUS, RUN_NPUS_PER_NODE, RUN_NODES and RUN_KEYS from the configuration with overrides, and RUN_NPUS_ON_NODE to
# the most NPUs that the run uses on one node.
read_run_size() {
    local size
    size="$("$PYTHON" scripts/lib/count_devices.py "$@")" || exit "$EXIT_USAGE"
    read -r RUN_NPUS RUN_NPUS_PER_NODE RUN_NODES RUN_NPUS_ON_NODE RUN_KEYS <<<"$size"
}

check_run_size() {
    local there=$((NNODES * NPUS_PER_NODE)) need="$RUN_NPUS NPU(s) ($RUN_KEYS)" fixes
    if ((NNODES == RUN_NODES && NPUS_PER_NODE == RUN_NPUS_ON_NODE)); then
        return
    fi
    if ((there == RUN_NPUS && NPUS_PER_NODE != RUN_NPUS_PER_NODE)); then
        fail "$EXIT_USAGE" "rl_config.actor_resource.npus_per_node=$RUN_NPUS_PER_NODE, and NPUS_PER_NODE=$NPUS_PER_NODE;" \
            "set rl_config.actor_resource.npus_per_node=$NPUS_PER_NODE"
    fi
    fixes="$RUN_KEYS=$there with matching layouts"
    if ((RUN_NODES * RUN_NPUS_ON_NODE != RUN_NPUS)); then
        need="$need, at most $RUN_NPUS_ON_NODE on each of $RUN_NODES nodes"
        fixes="NNODES=$RUN_NODES and NPUS_PER_NODE=$RUN_NPUS_ON_NODE, or $fixes"
    elif ((NPUS_PER_NODE > 0 && RUN_NPUS % NPUS_PER_NODE == 0)); then
        fixes="NNODES=$((RUN_NPUS / NPUS_PER_NODE)), or $fixes"
    elif ((NNODES == 1 && there > RUN_NPUS)); then
        fixes="NPUS_PER_NODE=$RUN_NPUS, or $fixes"
    fi
    fail "$EXIT_USAGE" "the run needs $need, but NNODES=$NNODES x NPUS_PER_NODE=$NPUS_PER_NODE is $there; set $fixes"
}

# A dry run works on any machine: the settings are checked only if they are set.
say_run_size() {
    if [[ -n "${NNODES:-}${NPUS_PER_NODE:-}" ]]; then
        NNODES="${NNODES:-1}" NPUS_PER_NODE="${NPUS_PER_NODE:-$RUN_NPUS_ON_NODE}"
        require_number NNODES 1
        require_number NPUS_PER_NODE 1
        check_run_size
    fi
    say "the run needs $RUN_NPUS NPU(s) on $RUN_NODES node(s) of $RUN_NPUS_PER_NODE: NNODES=$RUN_NODES"
}

# ---- main -----------------------------------------------------------------------------------------------

ascend_main() {
    local program="$1" config="$2" mode=run argument overrides=()
    shift 2
    for argument in "$@"; do
        case "$argument" in
            -h | --help)
                ascend_usage "scripts/$(basename "$0")" "cli/$program with configs/$config.yaml"
                return
                ;;
            --check | --dry-run) mode="${argument#--}" ;;
            -*) fail "$EXIT_USAGE" "unknown option $argument; --help lists the options" ;;
            *) overrides+=("$argument") ;;
        esac
    done
    # The workers of every node must find mindrl, installed or not.
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    cd "$ROOT"
    choose_python
    local run=(--config-name "$config" ${overrides[@]+"${overrides[@]}"})
    if [[ "$mode" == dry-run ]]; then
        has_packages "$PYTHON" || fail "$EXIT_USAGE" "PYTHON=$PYTHON lacks the packages of mindrl;" \
            "run scripts/install.sh, activate an environment with them, or set PYTHON to its python"
        "$PYTHON" "cli/$program" "${run[@]}" --dry-run --elsewhere
        read_run_size "${run[@]}"
        say_run_size
        return
    fi
    read_settings
    preflight
    read_run_size "${run[@]}"
    check_run_size
    [[ "$mode" != check ]] || return 0
    run_on_this_node "cli/$program" "${run[@]}"
}
