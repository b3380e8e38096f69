"""The seed of each sequence."""

import subprocess
import sys

from mindrl.batch.prompts import sequence_seed


def test_a_seed_is_the_same_number_today_and_tomorrow() -> None:
    # sha256("1234/1/0/0"), its first 8 bytes, halved.
    assert sequence_seed(1234, step=1, uid=0, sample=0) == 3_437_158_643_240_408_222
    assert sequence_seed(1234, step=1, uid=0, sample=1) == 1_294_064_293_326_781_616


def test_a_seed_does_not_depend_on_the_process() -> None:
    code = (
        "from mindrl.batch.prompts import sequence_seed\n"
        "print(sequence_seed(7, step=2, uid=3, sample=4))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) == sequence_seed(7, step=2, uid=3, sample=4)


def test_ten_thousand_neighbours_have_ten_thousand_seeds_that_fit_63_bits() -> None:
    seeds = {
        sequence_seed(run, step=step, uid=uid, sample=sample)
        for run in range(10)
        for step in range(10)
        for uid in range(10)
        for sample in range(10)
    }
    assert len(seeds) == 10_000
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    # Half of 10 000 fair bits are 5000, give or take 50 each: 250 is five deviations.
    assert abs(sum(seed & 1 for seed in seeds) - 5000) < 250
    assert abs(sum(seed >> 62 for seed in seeds) - 5000) < 250


def test_arguments_that_look_alike_side_by_side_are_told_apart() -> None:
    assert sequence_seed(1, step=12, uid=3, sample=4) != sequence_seed(11, step=2, uid=3, sample=4)
    assert sequence_seed(1, step=2, uid=34, sample=5) != sequence_seed(1, step=23, uid=4, sample=5)
