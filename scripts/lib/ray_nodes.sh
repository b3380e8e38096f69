# shellcheck shell=bash
# The Ray node of one machine: find its address, start or join the cluster, wait, and stop the started processes.
# Sourced by ascend.sh, which defines the settings in capitals, say, fail and find_fault.
#
# `ray stop` ends all Ray processes of the user, also other jobs on a shared account. Here each child runs in its own
# session (setsid), and only that session is ended.

STATE_DIR=""
RAY_PID=""
DRIVER_PID=""
WAITED_PID=""
SIGNALLED=0
FORWARDED=0

# ---- network --------------------------------------------------------------------------------------------

# Print the address that this node uses to reach $1, from the routing table.
source_address() {
    ip -o route get "$1" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p'
}

# Print the interface with address $1. On the head the route contains `lo` instead.
interface_of() {
    ip -o addr show | awk -v address="$1" '{ split($4, part, "/"); if (part[1] == address) { print $2; exit } }'
}

resolve() { getent ahostsv4 "$1" | awk '{ print $1; exit }' | grep .; }

has_token() {
    [[ -n "${RAY_AUTH_TOKEN:-}" || -s "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" ]]
}

# Set HEAD_IP, NODE_IP and SOCKET_IFNAME; a single node needs only the first.
check_network() {
    HEAD_IP=127.0.0.1
    ((NNODES > 1)) || return 0
    if [[ "${RAY_AUTH_MODE:-token}" == token ]] && ! has_token; then
        find_fault "Ray token: missing, required for $NNODES nodes" \
            "run 'ray get-auth-token --generate' once, copy ~/.ray/auth_token to every node (or set RAY_AUTH_TOKEN_PATH)"
    fi
    if [[ -z "${MASTER_ADDR:-}" ]]; then
        find_fault "MASTER_ADDR: not set, NNODES=$NNODES" "set it to the address of node 0 on every node"
        return
    fi
    if ! HEAD_IP="$(resolve "$MASTER_ADDR")"; then
        find_fault "MASTER_ADDR=$MASTER_ADDR: no IPv4 address" "use the IPv4 address of node 0, or fix the name"
        return
    fi
    if [[ "$HEAD_IP" == 127.* ]]; then
        find_fault "MASTER_ADDR=$MASTER_ADDR: is $HEAD_IP here, which other nodes cannot reach" \
            "use the address of node 0 in the nodes' network, not a name that /etc/hosts maps to loopback"
        return
    fi
    if [[ -n "${NODE_IP:-}" && -n "${SOCKET_IFNAME:-}" ]]; then
        return
    fi
    if ! command -v ip >/dev/null; then
        find_fault "ip: not on PATH, so the interface is unknown" "install iproute2, or set both NODE_IP and SOCKET_IFNAME"
        return
    fi
    find_own_address
}

find_own_address() {
    if [[ -n "${SOCKET_IFNAME:-}" ]]; then
        NODE_IP="$(ip -o -4 addr show dev "$SOCKET_IFNAME" 2>/dev/null | awk '{ split($4, part, "/"); print part[1]; exit }')"
        [[ -n "$NODE_IP" ]] || find_fault "SOCKET_IFNAME=$SOCKET_IFNAME: no address" "choose one that 'ip -o addr' lists"
        return
    fi
    NODE_IP="${NODE_IP:-$(source_address "$HEAD_IP")}"
    SOCKET_IFNAME="$(interface_of "$NODE_IP")"
    if [[ -z "$NODE_IP" || -z "$SOCKET_IFNAME" ]]; then
        find_fault "network: no interface of this node reaches MASTER_ADDR=$MASTER_ADDR" \
            "check 'ip route get $HEAD_IP', or set both NODE_IP and SOCKET_IFNAME"
    fi
}

is_open() {
    timeout 5 bash -c ": </dev/tcp/$1/$2" 2>/dev/null
}

# Print a port that all nodes of a run derive equally, and other runs almost never.
derived_port() {
    local secret="${RAY_AUTH_TOKEN:-}" sum
    [[ -n "$secret" ]] || secret="$(cat "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" 2>/dev/null || true)"
    sum="$(printf '%s %s' "$HEAD_IP" "$secret" | cksum)"
    printf '%d\n' $((20000 + ${sum%% *} % 10000))
}

free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

# ---- processes ------------------------------------------------------------------------------------------

# Print the living processes of session $1. A session keeps its number as long as one of them lives.
session_pids() {
    local file line state session
    for file in /proc/[0-9]*/stat; do
        { read -r line <"$file"; } 2>/dev/null || continue
        # After the name, which may contain spaces: state, parent, group, session.
        read -r state _ _ session _ <<<"${line##*) }"
        [[ "$session" != "$1" || "$state" == Z ]] || printf '%s\n' "${file//[^0-9]/}"
    done
}

# Kill the processes of session $1 and wait until they have ended.
end_session() {
    local pids deadline=$((SECONDS + 10))
    while mapfile -t pids < <(session_pids "$1") && ((${#pids[@]})); do
        if ((SECONDS >= deadline)); then
            say "cannot end process(es) ${pids[*]}"
            return
        fi
        kill -KILL "${pids[@]}" 2>/dev/null || true
        sleep 0.1
    done
}

# Return whether process $1 is a living child of this script; its id may have been reused.
is_child() {
    local line state parent
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -r state parent _ <<<"${line##*) }"
    [[ "$state" != Z && "$parent" == "$$" ]]
}

# Ask the leader $1 of a session to stop, wait $2 seconds, then end the session. A second signal to this script ends
# the wait.
stop_session() {
    local deadline=$((SECONDS + $2))
    if is_child "$1"; then
        kill -TERM "$1" 2>/dev/null || true
    fi
    while is_child "$1" && ((SECONDS < deadline && SIGNALLED < 2)); do
        sleep 0.2
    done
    if is_child "$1"; then
        say "process $1 is still running; ending it"
    fi
    end_session "$1"
}

# Forward signals to the child that the script waits for. FORWARDED counts the forwarded signals.
on_signal() {
    SIGNALLED=$((SIGNALLED + 1))
    say "stopping"
    forward_signals
}

forward_signals() {
    if [[ -n "$WAITED_PID" ]] && ((FORWARDED < SIGNALLED)); then
        FORWARDED="$SIGNALLED"
        kill -TERM "$WAITED_PID" 2>/dev/null || true
    fi
}

# Return the exit code of child $1, also if signals interrupt the wait.
wait_for() {
    local code seen
    WAITED_PID="$1"
    forward_signals
    while :; do
        seen="$SIGNALLED" code=0
        wait "$1" || code=$?
        [[ "$SIGNALLED" != "$seen" ]] || break
    done
    WAITED_PID=""
    return "$code"
}

on_exit() {
    local code=$?
    trap - EXIT
    [[ -z "$DRIVER_PID" ]] || stop_session "$DRIVER_PID" "$STOP_SECONDS"
    if [[ -n "$RAY_PID" ]]; then
        say "stopping the Ray node of this script"
        stop_session "$RAY_PID" 30
    fi
    if ((code == 0)); then
        rm -rf "$STATE_DIR"
    else
        # Keep the logs, but not the token.
        rm -f "$STATE_DIR/auth_token"
        say "exit code $code; see Ray's logs in $STATE_DIR"
    fi
    exit "$code"
}

# ---- Ray ------------------------------------------------------------------------------------------------

prepare_environment() {
    # Not in TMPDIR, because the paths of Unix sockets in this folder have at most 107 characters.
    STATE_DIR="$(mktemp -d /tmp/mindrl-ray.XXXXXX)"
    trap on_exit EXIT
    trap on_signal INT TERM HUP
    export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}" RAY_USAGE_STATS_ENABLED=0
    # Ray is stopped after the program has ended, so it has no work to drain.
    export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
    if [[ "$RAY_AUTH_MODE" == token ]] && ! has_token; then
        (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$STATE_DIR/auth_token")
        export RAY_AUTH_TOKEN_PATH="$STATE_DIR/auth_token"
    fi
    if [[ -n "${SOCKET_IFNAME:-}" ]]; then
        export HCCL_SOCKET_IFNAME="$SOCKET_IFNAME" GLOO_SOCKET_IFNAME="$SOCKET_IFNAME" TP_SOCKET_IFNAME="$SOCKET_IFNAME"
    fi
    if ((NNODES == 1)); then
        RAY_PORT="${RAY_PORT:-$(free_port)}"
    fi
    RAY_PORT="${RAY_PORT:-$(derived_port)}"
    export RAY_ADDRESS="$HEAD_IP:$RAY_PORT"
}

# Start `ray start --block "$@"` as the leader of its own session.
start_ray() {
    local options=(--block --temp-dir "$STATE_DIR" --resources "{\"NPU\": $NPUS_PER_NODE}")
    # With the fixed port 52365 of the agent a second Ray on this machine could not start.
    options+=(--dashboard-agent-listen-port 0)
    [[ -z "${NODE_IP:-}" ]] || options+=(--node-ip-address "$NODE_IP")
    setsid ray start "$@" "${options[@]}" </dev/null >"$STATE_DIR/ray_start.log" 2>&1 &
    RAY_PID=$!
}

show_ray_log() { tail -n 20 "$STATE_DIR/ray_start.log" >&2 || true; }

start_head() {
    if is_open "$HEAD_IP" "$RAY_PORT"; then
        fail "$EXIT_USAGE" "RAY_PORT=$RAY_PORT is in use on this node; set another one, on every node"
    fi
    say "starting the Ray head at $RAY_ADDRESS"
    # With the client server's fixed port 10001 the head would end if another Ray uses it.
    start_ray --head --port "$RAY_PORT" --include-dashboard=false --ray-client-server-port "$(free_port)"
}

wait_for_devices() {
    local waiter code=0
    say "waiting for $((NNODES * NPUS_PER_NODE)) NPU(s) on $NNODES node(s), at most $WAIT_SECONDS s"
    setsid "$PYTHON" scripts/lib/wait_for_devices.py --resource NPU --count $((NNODES * NPUS_PER_NODE)) \
        --seconds "$WAIT_SECONDS" --ray-pid "$RAY_PID" </dev/null &
    waiter=$!
    wait_for "$waiter" || code=$?
    ((SIGNALLED == 0)) || exit 143
    if ((code)); then
        show_ray_log
        fail "$EXIT_TIMEOUT" "the cluster is incomplete; see above"
    fi
}

run_driver() {
    local code=0
    say "starting: $PYTHON $*"
    setsid "$PYTHON" "$@" </dev/null &
    DRIVER_PID=$!
    wait_for "$DRIVER_PID" || code=$?
    exit "$code"
}

join_head() {
    local deadline=$((SECONDS + WAIT_SECONDS)) code=0
    say "waiting for the head at $RAY_ADDRESS, at most $WAIT_SECONDS s"
    until is_open "$HEAD_IP" "$RAY_PORT"; do
        ((SIGNALLED == 0)) || exit 143
        ((SECONDS < deadline)) || fail "$EXIT_TIMEOUT" "no head at $RAY_ADDRESS; is node 0 running, with the same RAY_PORT?"
        sleep 1
    done
    start_ray --address "$RAY_ADDRESS"
    say "joined as node $NODE_RANK; this script ends at most a minute after the head"
    wait_for "$RAY_PID" || code=$?
    ((SIGNALLED == 0)) || exit 143
    if is_open "$HEAD_IP" "$RAY_PORT"; then
        show_ray_log
        fail "$((code ? code : 1))" "Ray on this node ended, but the head is still running"
    fi
    say "the head has ended"
}

run_on_this_node() {
    prepare_environment
    if ((NODE_RANK > 0)); then
        join_head
        return
    fi
    start_head
    wait_for_devices
    run_driver "$@"
}
