# shellcheck shell=bash
# What every Ascend entry script does: check the node, bring up Ray, train, and stop what was started.
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
is a Hydra override and goes to the program as it is, for example: rl_config.n_samples_per_prompt=16

  --check     only look at this node: what is missing, and how to get it; exit code 3 if anything is
  --dry-run   only validate the configuration and print what follows from it, and the nodes that it
              takes; needs no NPU and starts no Ray
  --help      this text

One node needs no settings. For several, run the same command on each node with:

  NNODES           number of nodes (default 1)
  NODE_RANK        number of this node, 0 to NNODES-1; the program runs on node 0, the head (default 0)
  MASTER_ADDR      IPv4 address or name of node 0, as the other nodes reach it
  RAY_AUTH_TOKEN_PATH  file with the same secret on every node (or RAY_AUTH_TOKEN, or ~/.ray/auth_token):
                   run 'ray get-auth-token --generate' once and copy the file; one node makes its own

Optional:

  RAY_PORT         port of the head (default: a free one; with several nodes one that all of them derive
                   from the secret, 20000 to 29999)
  NPUS_PER_NODE    NPUs to use on each node, the same on all (default: those that are visible here;
                   ASCEND_RT_VISIBLE_DEVICES counts)
  SOCKET_IFNAME    network interface for HCCL and gloo (default: the one that reaches MASTER_ADDR)
  NODE_IP          address of this node (default: the one it reaches MASTER_ADDR with)
  WAIT_SECONDS     how long to wait for the head and for all NPUs (default 600)
  STOP_SECONDS     how long the program may take to stop (default 120)
  PYTHON           interpreter with the NPU packages, and ray beside it (default: python, or that of .venv
                   where python has not the packages of mindrl)
  ASCEND_INSTALL_DIR  where CANN is installed (default /usr/local/Ascend)
  DEVICE_DIR       where the device files davinci<N> are (default /dev)

Exit codes: the program's own; 2 wrong settings; 3 preflight; 4 head or NPUs not there in WAIT_SECONDS.
Ctrl-C or SIGTERM asks the program to stop, then ends the Ray node that this script started, and no other.
EOF
}

# The runs that configs/ has, without those on CPUs.
ascend_runs() {
    local file name names=()
    for file in "$ROOT"/configs/*_*.yaml; do
        name="$(basename "$file" .yaml)"
        [[ "$name" == *_cpu || ! -f "$ROOT/cli/train_${name%%_*}.py" ]] || names+=("$name")
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

# The packages that every program of mindrl needs, NPU or not.
has_packages() { "$1" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("hydra"))' 2>/dev/null; }

# Sets PYTHON, unless the user has, to that of the active environment or of .venv; its folder's `ray`
# comes first from then on.
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

# The devices that this process may use: those listed, or every davinci<N> file.
count_devices() {
    local file count=0 listed
    if [[ -n "${ASCEND_RT_VISIBLE_DEVICES:-}" ]]; then
        IFS=, read -ra listed <<<"$ASCEND_RT_VISIBLE_DEVICES"
        printf '%d\n' "${#listed[@]}"
        return
    fi
    for file in "$DEVICE_DIR"/davinci[0-9]*; do
        [[ ! -e "$file" ]] || count=$((count + 1))
    done
    printf '%d\n' "$count"
}

# ---- preflight: every finding at once -------------------------------------------------------------------

findings=()

find_fault() { findings+=("$1"$'\n'"      -> $2"); }

check_devices() {
    local file found=0
    for file in "$DEVICE_DIR"/davinci[0-9]*; do
        [[ ! -e "$file" ]] || found=1
    done
    if ((!found)); then
        find_fault "NPU devices: no $DEVICE_DIR/davinci<N>" \
            "install the Ascend driver and firmware; in a container, pass each device: --device /dev/davinci0 ..."
    elif ((NPUS_PER_NODE == 0)); then
        find_fault "NPU devices: NPUS_PER_NODE=0" "leave NPUS_PER_NODE unset, or set it to 1 or more"
    fi
    if ! command -v npu-smi >/dev/null; then
        find_fault "npu-smi: not on PATH" \
            "it comes with the Ascend driver; in a container, mount /usr/local/bin/npu-smi and /usr/local/dcmi"
    elif ! timeout 60 npu-smi info >/dev/null 2>&1; then
        find_fault "npu-smi: 'npu-smi info' failed" \
            "run it by hand: the driver is not loaded, or this user may not open the devices"
    fi
}

# CANN's own scripts read unset variables and fail in parts that do not matter here.
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
        find_fault "CANN: ASCEND_HOME_PATH=${ASCEND_HOME_PATH:-} is no folder, and no set_env.sh under $ASCEND_INSTALL_DIR" \
            "install the CANN 9.1.0 toolkit, kernels and NNAL, or source its set_env.sh first"
        return
    fi
    script="$ASCEND_INSTALL_DIR/nnal/atb/set_env.sh"
    if [[ -z "${ATB_HOME_PATH:-}" && -f "$script" ]]; then
        source_loosely "$script"
    fi
}

# What the npu extra or the dependencies pin of package $1, as pip takes it.
pinned() { sed -nE "s/^ *\"($1==[^\"]*)\",?\$/\1/p" "$ROOT/pyproject.toml" | head -n 1; }

# find_spec looks for a package without running it: importing one of these without its driver would fail.
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
                    "$PYTHON -m pip install $(pinned vllm-ascend), and vLLM of its version built with VLLM_TARGET_DEVICE=empty"
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

# ---- does the run have the devices that it takes? -------------------------------------------------------

# Sets RUN_NPUS and RUN_NPUS_PER_NODE to what the configuration says, with overrides; RUN_NPUS_ON_NODE
# to what a run of less than a node takes of one.
read_run_size() {
    local size
    size="$("$PYTHON" scripts/lib/count_devices.py "$@")" || exit "$EXIT_USAGE"
    read -r RUN_NPUS RUN_NPUS_PER_NODE <<<"$size"
    RUN_NPUS_ON_NODE=$((RUN_NPUS < RUN_NPUS_PER_NODE ? RUN_NPUS : RUN_NPUS_PER_NODE))
}

check_run_size() {
    local there=$((NNODES * NPUS_PER_NODE)) fixes
    fixes="rl_config.actor_resource.num_npus=$there with layouts of so many"
    if ((there != RUN_NPUS)); then
        if ((NPUS_PER_NODE > 0 && RUN_NPUS % NPUS_PER_NODE == 0)); then
            fixes="NNODES=$((RUN_NPUS / NPUS_PER_NODE)), or $fixes"
        elif ((NNODES == 1 && there > RUN_NPUS)); then
            fixes="NPUS_PER_NODE=$RUN_NPUS, or $fixes"
        fi
        fail "$EXIT_USAGE" "the run takes $RUN_NPUS NPU(s) (rl_config.actor_resource.num_npus), and" \
            "NNODES=$NNODES x NPUS_PER_NODE=$NPUS_PER_NODE is $there; set $fixes"
    fi
    if ((NPUS_PER_NODE != RUN_NPUS_ON_NODE)); then
        fail "$EXIT_USAGE" "rl_config.actor_resource.npus_per_node=$RUN_NPUS_PER_NODE, and NPUS_PER_NODE=$NPUS_PER_NODE;" \
            "set rl_config.actor_resource.npus_per_node=$NPUS_PER_NODE"
    fi
}

# A dry run may be made anywhere: the settings count only where there are any.
say_run_size() {
    local nodes=$(((RUN_NPUS + RUN_NPUS_PER_NODE - 1) / RUN_NPUS_PER_NODE))
    if [[ -n "${NNODES:-}${NPUS_PER_NODE:-}" ]]; then
        NNODES="${NNODES:-1}" NPUS_PER_NODE="${NPUS_PER_NODE:-$RUN_NPUS_ON_NODE}"
        require_number NNODES 1
        require_number NPUS_PER_NODE 1
        check_run_size
    fi
    say "the run takes $RUN_NPUS NPU(s) on $nodes node(s) of $RUN_NPUS_PER_NODE: NNODES=$nodes"
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
        has_packages "$PYTHON" || fail "$EXIT_USAGE" "PYTHON=$PYTHON has not the packages of mindrl;" \
            "run scripts/install.sh, activate an environment that has them, or set PYTHON to its python"
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
