# shellcheck shell=bash
# Common part of the batch files: a command on each node, and a checkpoint and a requeue before the time limit.
# A batch file sources this file in the checkout and calls: run_on_nodes COMMAND [ARGUMENT ...]
#
# The command gets NNODES, NODE_RANK, MASTER_ADDR, RAY_AUTH_TOKEN_PATH and RUN_FOLDER. The folder stays the same after a
# requeue, so the run resumes from its newest checkpoint.

export RUN_FOLDER="${RUN_FOLDER:-$PWD/outputs/slurm-$SLURM_JOB_ID}"
# Overrides of the user come later and win. The batch file's --signal comes 300 seconds before the end.
export GRACE_SECONDS=280
# shellcheck disable=SC2034
OVERRIDES=("hydra.run.dir=$RUN_FOLDER" "rl_config.grace_seconds=$GRACE_SECONDS" megatron_training.save_interval=10)
TIME_IS_UP=0 SRUN_PID=""

# Stop the program of the first node, which runs on the host of this script. Slurm would signal every process of
# all nodes, also Ray's, and the workers would be gone before the checkpoint.
on_time_limit() {
    TIME_IS_UP=1
    echo "[slurm] the time limit is near: stopping with a checkpoint" >&2
    kill -TERM "$(cat "$RUN_FOLDER/.head" 2>/dev/null || echo "$SRUN_PID")"
}

make_token() {
    export RAY_AUTH_TOKEN_PATH="$RUN_FOLDER/.ray_token"
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
}

# Return the exit code of srun, also if signals interrupt the wait.
wait_for_srun() {
    local code=0
    while kill -0 "$SRUN_PID" 2>/dev/null; do
        code=0
        wait "$SRUN_PID" || code=$?
    done
    return "$code"
}

run_on_nodes() {
    local code=0
    mkdir -p "$RUN_FOLDER"
    rm -f "$RUN_FOLDER/.head"
    make_token
    export NNODES="$SLURM_JOB_NUM_NODES" MASTER_ADDR
    # srun does not inherit --cpus-per-task, and would bind each task to one CPU.
    export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}"
    MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
    trap on_time_limit USR1
    # scancel and a preemption are Slurm's decisions: it requeues the job, or not. Without this trap the script would
    # end before its steps.
    trap : TERM
    # The other nodes end at most a minute after the first one; a failure of one must not kill the first one's report.
    # shellcheck disable=SC2016
    srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=300 bash -c '
        export NODE_RANK="$SLURM_NODEID"
        ((NODE_RANK)) || echo "$$" >"$RUN_FOLDER/.head"
        exec "$@"' task "$@" &
    SRUN_PID=$!
    wait_for_srun || code=$?
    rm -f "$RUN_FOLDER/.head" "$RAY_AUTH_TOKEN_PATH"
    # 130: stopped with a checkpoint; 143: stopped before the program started.
    if ((TIME_IS_UP)) && ((code == 130 || code == 143)); then
        echo "[slurm] requeue: the run resumes in $RUN_FOLDER" >&2
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$code"
}
