"""The generated page of the configuration is the one that the dataclasses give."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "config.md"


@pytest.mark.parametrize(
    "row",
    [
        "| `train_iters` | whole number >= 1 | required | ",
        "| `logprob_chunk_tokens` | whole number >= 1 and <= 16777216 | `1024` | ",
        "| `clip_ratio` | number > 0 and < 1 | `0.2` | ",
        "| `device` | one of `auto`, `npu`, `gpu`, `cpu` | `auto` | ",
        "| `router` | only `vllm-router`, or `null` | `null` | ",
        "| `kv_cache_mib` | whole number >= 1 and <= 16777216, or `null` | `null` | ",
        "| `verifier_weight` | list, each entry a number >= -1000000 and <= 1000000 | `[1.0, ",
        "| `seed` | whole number >= 0 and < 4294967296 | `1234` | ",
        "| `num_npus` | whole number >= 1 and <= 65536 | `1` | ",
    ],
)
def test_a_row_tells_type_range_and_default(row: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(row)]) == 1


def test_a_key_that_two_sections_share_is_explained_in_the_first_and_named_in_the_second() -> None:
    sections = {text.partition("\n")[0]: text for text in PAGE.read_text("utf-8").split("## ")}
    assert (
        "| `lr` | number > 0 and <= 10 | `1e-6` | Peak learning rate. |" in sections["actor_config"]
    )
    assert "| `lr` |" not in sections["critic_config"]
    (line,) = [
        line
        for line in sections["critic_config"].splitlines()
        if line.startswith("As in [actor_config](#actor_config): ")
    ]
    assert "`lr`" in line
    # A key with a meaning of its own has its row in both.
    assert all("| `load` |" in sections[name] for name in ("actor_config", "critic_config"))
