#!/usr/bin/env bash
# Train and generate as two programs that share a folder, then measure the model.
#
#   bash examples/two_jobs.sh [FOLDER]
#
# Shows: a scheduler that starts, watches and restarts both jobs, and an evaluation before and after, because neither job
# evaluates. End either job with kill: it continues. Takes about three minutes of CPU time.
# First, once: mindrl tiny --output .cache/tiny
set -euo pipefail

folder="${1:-outputs/two_jobs/$(date +%Y-%m-%d_%H-%M-%S)}"

measure() { mindrl evaluate "$1" --data .cache/tiny/data/test.jsonl --output "$folder/$2"; }

measure .cache/tiny/model before
mindrl job schedule "$folder" --config-name grpo_tiny_cpu \
    megatron_training.train_iters=10 megatron_training.save_interval=5 megatron_training.test_data_path=null \
    rl_config.test_freq=0 rl_config.max_staleness=1 rl_config.actor_resource.num_npus=1
measure "$folder/train/model" after
