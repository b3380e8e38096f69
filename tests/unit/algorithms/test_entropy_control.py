"""A weight of the entropy bonus that follows a target."""

import pytest

from mindrl.algorithms.entropy_control import EntropyControl


def test_the_weight_rises_below_the_target_falls_above_it_and_rests_at_0() -> None:
    control = EntropyControl(target=0.5, delta=0.01, weight=0.005)
    seen = []
    for entropy in (0.4, 0.3, 0.6, 0.7, 0.9, 0.5, 0.2):
        seen.append(control.coef)
        control.observe(entropy)
    # Above the target there is no bonus, whatever the weight.
    assert seen == pytest.approx([0.005, 0.015, 0.025, 0, 0, 0, 0])
    assert control.coef == pytest.approx(0.01)
