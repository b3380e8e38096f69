"""Any value of any key is accepted or refused with a message, also with backend strings."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from nightly import at_night_but

from mindrl.config.hydra_defaults import plain_values
from mindrl.config.load import sections
from mindrl.config.run import RunConfig
from mindrl.config.section import documented_fields
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.programs.compose import composed, configured

STRINGS = ["actor_config.backend=megatron:d2", "generate_config.backend=vllm:d2"]
BASES = {
    "one string": ["actor_config.backend=megatron:d2"],
    "two strings": [*STRINGS, "rl_config.actor_resource.num_npus=null"],
}
LISTS = {("data_config", name) for name in ("train_sets", "rewards", "eval_sets")}
VALUES: dict[str, Any] = {
    "a text": "abc",
    "lists": [[1]],
    "sections": {"a": {"b": 1}},
    "a negative number": -1,
    "no number": float("nan"),
    "endless": float("inf"),
    "a huge number": 10**30,
    "nothing": None,
}


def keys() -> Iterator[tuple[str, ...]]:
    for path, section in sections(RunConfig).items():
        if path not in LISTS:
            yield from ((*path, name) for name in documented_fields(section))


@pytest.mark.parametrize("kind", at_night_but(["a text"], VALUES))
@pytest.mark.parametrize("base", at_night_but(["two strings"], BASES))
def test_no_value_of_any_key_ends_in_a_traceback(base: str, kind: str) -> None:
    values, refused = plain_values(composed("ppo_tiny_cpu", BASES[base])), 0
    for *path, name in keys():
        changed = deepcopy(values)
        section = changed
        for part in path:
            section = section.setdefault(part, {}) or {}
        section[name] = VALUES[kind]
        try:
            findings(configured(changed))
        except ConfigError:
            refused += 1
    assert refused > 20
