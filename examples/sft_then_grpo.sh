#!/usr/bin/env bash
# Start with supervised fine-tuning on a few worked answers, then train from the result with GRPO.
#
#   bash examples/sft_then_grpo.sh [FOLDER]
#
# Shows: a warm start of five steps on 256 demonstrations (demonstrations.py), and its exported model as the start of a
# second run. The tiny model mostly forgets the carry; the demonstrations have it. Takes about three minutes of CPU time.
# First, once: mindrl tiny --output .cache/tiny
set -euo pipefail

here="$(dirname "${BASH_SOURCE[0]}")"
folder="${1:-outputs/sft_then_grpo/$(date +%Y-%m-%d_%H-%M-%S)}"

mkdir -p "$folder"
python "$here/demonstrations.py" "$folder/demonstrations.jsonl"
mindrl train --config-name sft_tiny_cpu "hydra.run.dir=$folder/sft" megatron_training.train_iters=5 \
    "megatron_training.data_path=$folder/demonstrations.jsonl" megatron_training.test_data_path=null \
    rl_config.test_freq=0
mindrl train --config-name grpo_tiny_cpu "hydra.run.dir=$folder/grpo" megatron_training.train_iters=10 \
    "actor_config.load=$folder/sft/model"
