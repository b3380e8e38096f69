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
        "| `infer_pipeline_parallel_size` | only `1` | `1` | ",
        "| `kv_cache_mib` | whole number >= 1 and <= 16777216, or `null` | `null` | ",
        "| `verifier_weight` | list, each entry a number >= -1000000 and <= 1000000 | `[1.0, ",
        "| `seed` | whole number >= 0 and < 4294967296 | `1234` | ",
        "| `num_npus` | whole number >= 1 and <= 65536 | `1` | ",
    ],
)
def test_a_row_tells_type_range_and_default(row: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(row)]) == 1


def test_what_actor_and_critic_share_stands_under_both_behind_what_is_their_own() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("## ")
    for heading in ("actor_config\n", "critic_config\n"):
        (section,) = [section for section in sections if section.startswith(heading)]
        row = section.index("| `lr` | number > 0 and <= 10 | `1e-6` | Peak learning rate. |")
        assert section.index("| `load` |") < section.index("| `micro_batch_size` |") < row
