"""One half of each step alone: what is rolled out is kept, and what is kept is trained on."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from memory_roles import MemoryRoles, config, data, lines, rewards, run_log

from mindrl.config.finding import Finding
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.observability.metrics import computed
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.rollout_files import RolloutFiles


def trained(root: Path, **changes: object) -> MemoryRoles:
    roles, chosen = MemoryRoles(gap=0.01), config(train_iters=3, **changes)
    log = run_log(root, 3)
    PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1).run()
    log.close()
    return roles


def found(**changes: object) -> list[Finding]:
    names = ("debug", "train_only")
    return [each for each in findings(config(**changes)) if any(n in str(each) for n in names)]


def test_rollout_only_answers_rates_and_keeps_and_nothing_learns(tmp_path: Path) -> None:
    roles = trained(tmp_path, debug="rollout_only", keep_rollouts=3)
    assert set(roles.calls) == {"generate", "score", "flush"}
    assert [step for _, _, step in roles.asked] == [1, 2, 3]
    files = RolloutFiles(tmp_path / "rollouts")
    assert files.steps() == [1, 2, 3]
    assert files.read(3).rewarded.responses == ["20 30", "20 31"] * 2
    assert [line["reward/mean"] for line in lines(tmp_path / "metrics.jsonl")] == [0.5] * 3


def test_train_only_asks_no_engine_and_computes_what_the_whole_run_did(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", keep_rollouts=3)
    stored = str(tmp_path / "whole")
    alone = trained(tmp_path / "alone", debug="train_only", debug_rollouts=stored)
    assert alone.calls == [each for each in whole.calls if each not in ("generate", "score")]
    ours, theirs = (
        [computed(line) for line in lines(tmp_path / name / "metrics.jsonl")]
        for name in ("alone", "whole")
    )
    assert len(ours) == 3
    assert ours == theirs


def test_train_only_reads_what_rollout_only_kept(tmp_path: Path) -> None:
    trained(tmp_path / "kept", debug="rollout_only", keep_rollouts=3)
    roles = trained(tmp_path / "alone", debug="train_only", debug_rollouts=str(tmp_path / "kept"))
    assert len(roles.minibatches) == 6
    assert "generate" not in roles.calls


def test_a_folder_without_each_step_or_with_other_sizes_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "kept", keep_rollouts=2)
    asked = {"debug": "train_only", "debug_rollouts": str(tmp_path / "kept")}
    with pytest.raises(ConfigError, match=r"has no file of step 1, and of 1 of the 3 of"):
        trained(tmp_path / "alone", **asked)
    files = RolloutFiles(tmp_path / "kept/rollouts")
    table = pq.read_table(files.path(2)).slice(0, 2)
    known = {b"mindrl.scores": table.schema.metadata[b"mindrl.scores"]}
    pq.write_table(table.replace_schema_metadata(known), files.path(1))
    with pytest.raises(ConfigError, match=r"step-00000001.parquet has 2 responses, .* run 4:"):
        trained(tmp_path / "alone", **asked)
    damaged = bytearray(files.path(2).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    files.path(1).write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"cannot read .*step-00000001.parquet: .* is damaged"):
        trained(tmp_path / "alone", **asked)
    files.path(1).write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"cannot read .*step-00000001.parquet"):
        trained(tmp_path / "alone", **asked)


def test_what_one_half_lacks_or_has_no_use_for_is_named() -> None:
    (one,) = found(debug="train_only")
    assert str(one).startswith("rl_config.debug_rollouts is missing")
    (one,) = found(debug_rollouts="somewhere")
    assert str(one).startswith("rl_config.debug_rollouts=somewhere has an effect only with")
    (one,) = found(debug="train_only", debug_rollouts="there", adv_estimator="remax")
    said = "rl_config.adv_estimator=remax: rl_config.debug=train_only has no engine"
    assert str(one).startswith(said)
    keeps, saves = found(debug="rollout_only", train_iters=3, save_interval=1)
    assert str(keeps).startswith("megatron_training.keep_rollouts=0 keeps fewer than the 3 steps")
    assert keeps.legal == (3,)
    assert str(saves).startswith("megatron_training.save_interval=1 must be 0")
    assert found(debug="rollout_only", train_iters=3, keep_rollouts=3) == []
