"""Scripts that start verl: their overrides are those that a shell would give, without one."""

import re
import subprocess
from pathlib import Path

import pytest

from mindrl.errors import ConfigError
from mindrl.migrate.script import read_script

START = "python3 -m verl.trainer.main_ppo"
SCRIPT = """\
#!/usr/bin/env bash
# A comment with a quote: don't read it.
set -x
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
train_files="['$HOME/data/a.parquet', '$HOME/data/b.parquet']"
prompt=$((1024 * 2))
response=$((1024 * 8)); export lr="1e-6" offload=True
total=$(( (prompt + response) * 3 / 2 - 7 % 4 ))
empty=
name='a "b" $HOME'"_${lr}"\\
'_more',\\
"$lr"
DATA=(
    data.train_files="$train_files"   # of both sets
    data.train_batch_size=${BATCH:-256}
    'data.truncation=error'
)
DATA+=(data.max_prompt_length=${prompt})
MORE="trainer.nnodes=1 trainer.save_freq=5"
MORE+=" trainer.test_freq=$((2*3))"
cat <<EOF > /dev/null
it's no command: data.seed=1
EOF
"""
COMMAND = (
    START
    + """ --config-name='ppo_trainer.yaml' \\
    algorithm.adv_estimator=grpo "${DATA[@]}" $MORE $empty \\
    +data.max_response_length=$response \\
    actor_rollout_ref.model.path=$MODEL_PATH/"x y"\\ z \\
    actor_rollout_ref.actor.optim.lr="$lr" \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${total} \\
    trainer.logger='["console","wandb"]' \\
    trainer.project_name="$name" trainer.experiment_name=${empty:-"of $lr"} \\
    trainer.default_local_dir=$(pwd)/out $@ 2>&1 | tee log.txt
"""
)


def test_a_script_gives_the_overrides_that_bash_gives(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", f"python3() {{ printf '%s\\0' \"$@\"; }}\n{SCRIPT}{COMMAND}"],
        cwd=tmp_path,
        env={"HOME": "/home/me", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = [word for word in ended.stdout.split("\0") if re.match(r"\+*[\w.]+=", word)]
    found = read_script(SCRIPT + COMMAND, {"HOME": "/home/me", "PWD": str(tmp_path)})
    assert [*found.overrides] == [word.lstrip("+") for word in words]
    assert len(words) == 16
    assert (found.unresolved, found.config_name) == ({}, "")


def test_what_the_script_does_not_state_is_named_and_the_rest_is_read() -> None:
    text = f"""
    if [ "$FAST" = 1 ]; then size=8; else size=16; fi
    [ -n "$FAST" ] && steps=3
    where=${{DATA_ROOT}}/x
    started=$(date +%Y
      -u)
    known=$(ls) known=7
    {START} data.train_batch_size=$size data.train_files=$where/train.parquet data.seed=$known \\
      trainer.experiment_name=run_$started trainer.total_epochs=$1 trainer.nnodes=${{2:-4}} \\
      trainer.project_name=${{NAME%.*}} trainer.total_training_steps=$((steps * 2))
    """
    found = read_script(text, {})
    assert found.overrides == ("data.seed=7", "trainer.nnodes=4")
    assert found.unresolved == {
        "data.train_batch_size": "$size, which a condition sets",
        "data.train_files": "$DATA_ROOT",
        "trainer.experiment_name": "$(date +%Y -u)",
        "trainer.total_epochs": "$1",
        "trainer.project_name": "${NAME%.*}",
        "trainer.total_training_steps": "$steps, which a condition sets",
    }


def test_elements_of_an_array_stay_words_of_their_own_like_in_bash(tmp_path: Path) -> None:
    text = f"""\
two='data.seed=1 data.shuffle=True'
EXTRA=(model_engine=megatron rollout=4 name=$two data.max_prompt_length=8)
export kept=$two
{START} "${{EXTRA[@]}}" size=$two data.train_files="$kept" data.train_batch_size=2
"""
    ended = subprocess.run(
        ["bash", "-c", f"python3() {{ printf '%s\\0' \"$@\"; }}\n{text}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    words = [word for word in ended.stdout.split("\0")[2:] if word]
    last = {word.partition("=")[0]: word for word in words}
    assert sorted(read_script(text, {}).overrides) == sorted(last.values())
    assert last["data.train_files"] == "data.train_files=data.seed=1 data.shuffle=True"
    assert "data.max_prompt_length=8" in words


def test_a_condition_hides_only_the_elements_of_an_array_that_it_changes() -> None:
    text = f"""
    ALL=(data.seed=7 trainer.nnodes=4 $MORE)
    if [ "$DEVICE" = npu ]; then
      ALL+=(trainer.device=npu $FLAGS)
      SIZE=(data.train_batch_size=8 trainer.save_freq=5)
    else
      SIZE=(data.train_batch_size=16 trainer.save_freq=5)
    fi
    [ -n "$FAST" ] && ALL=(data.seed=7)
    {START} "${{ALL[@]}}" "${{SIZE[@]}}" --config-path=$HERE $EXTRA_ARGS \\
      actor@place=file data.shuffle=True
    """
    found = read_script(text, {})
    assert found.overrides == ("data.seed=7", "data.shuffle=True")
    unknown = {"ALL": ("trainer.nnodes", "trainer.device")}
    unknown |= {"SIZE": ("data.train_batch_size", "trainer.save_freq")}
    assert found.unresolved == {
        key: f"${name}, which a condition sets" for name, keys in unknown.items() for key in keys
    }
    assert found.unread == ("$ALL, which a condition sets", "$EXTRA_ARGS", "actor@place=file")


def test_overrides_in_one_text_lose_only_the_values_that_are_missing() -> None:
    text = f"""
    ALL="data.seed=7 trainer.nnodes=$NODES trainer.save_freq=5 actor.$PART.x=1"
    if [ "$ENGINE" = fsdp ]; then
      ALL="$ALL trainer.device=npu"
    fi
    {START} $ALL "${{@:2}}"
    """
    found = read_script(text, {})
    assert found.overrides == ("data.seed=7", "trainer.save_freq=5")
    assert found.unresolved == {
        "trainer.nnodes": "$NODES",
        "trainer.device": "$ALL, which a condition sets",
    }
    assert found.unread == ("$PART",)


def test_deleted_keys_are_named_and_values_before_the_deletion_do_not_count() -> None:
    found = read_script(
        f"""{START} data.seed=1 data.seed_more=2 data.train_files=$1 ~data.seed ~trainer=null \\
        ~data.train_files ~reward/model@reward trainer.nnodes=4 --config-dir ~/conf ~data.seed""",
        {},
    )
    assert found.overrides == ("data.seed_more=2", "trainer.nnodes=4")
    assert found.unresolved == {}
    assert found.deleted == ("data.seed", "trainer", "data.train_files", "reward/model@reward")


def test_a_script_is_never_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"A=$(touch {made})\nB=`touch {made}`\ntouch {made}\n{START} data.seed=$A data.x=$B\n"
    assert read_script(text, {}).overrides == ()
    assert not made.exists()


def test_a_configuration_of_its_own_is_named() -> None:
    for option in ("--config-name=multiturn.yaml", "--config-name multiturn"):
        assert read_script(f"{START} {option} data.seed=1", {}).config_name == "multiturn"


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("echo hello", "no commands with verl overrides, such as algorithm.adv_estimator=grpo"),
        (f"{START} data.seed=1\n{START} data.seed=2", "2 commands with verl overrides"),
        (f"{START} data.seed=1\n  data.x=2", "data.x=2 is a separate command; end the line"),
        ("torchrun -m verl.trainer.sft_trainer data.seed=1", "it starts verl.trainer.sft_trainer;"),
        ("a=1\nb='x\ny", "line 2: ' has no end"),
        ('a=1\n\nb="x', 'line 3: " has no end'),
        ("a=$((1 + 2", "line 1: ( has no end"),
        ("a=12345678\n" + "a=$a$a\n" * 40, "letters is too long to be read"),
        ("a=(1234)\n" + 'a+=("${a[@]}")\n' * 40, "letters is too long to be read"),
    ],
)
def test_a_script_that_starts_no_single_run_is_refused_in_words(text: str, need: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(need)):
        read_script(text, {})
