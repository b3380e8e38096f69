"""Generated run folders of any length."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HOSTILE = (
    '<script>document.title="taken"</script><img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u202e'
)


def metrics_of(step: int) -> dict[str, float]:
    return {
        "step": step,
        "rollout/response_tokens": 1000.0,
        "reward/mean": 0.5 + step / 100,
        "reward/std": 0.25,
        "reward/math_verify": 0.5,
        "update/entropy": 1 / step,
        "update/grad_norm": 0.5,
        "logprob_gap/mean": 1e-7,
        "logprob_gap/max": 1e-6,
        "seconds/rollout": 0.5,
        "seconds/update": 0.25,
        "seconds/step": 1.0,
        "memory/device_peak_bytes_max": 1 << 20,
        "nonfinite/worker_0/actor_loss": 1.0,
        "nonfinite/worker_99/actor_loss": 1.0,
    }


def sample(step: int, **changes: Any) -> dict[str, Any]:
    row = {
        "step": step,
        "prompt": "1+1=?",
        "response": "2",
        "reference": "2",
        "reward": 1.0,
        "parts": {"math_verify": 1.0},
        "finished": True,
        "response_tokens": 1,
    }
    return row | changes


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def make_run(
    folder: Path,
    *,
    steps: int = 4,
    samples: Iterable[Mapping[str, Any]] = (),
    seed: int = 1,
    cut: float = 0.0,
) -> Path:
    """Write a run folder that went on for `steps` of ten steps more.

    A `cut` of 0.2 or more in five steps is what the rule `truncation` looks for.
    """
    accuracy = {"evaluation/accuracy": 0.5, "evaluation/accuracy_low": 0.4}
    evaluations = [{"step": at, **accuracy, "evaluation/accuracy_high": 0.6} for at in (0, steps)]
    shares = {"rollout/cut_fraction": cut} if cut else {}
    rows = [*(metrics_of(step) | shares for step in range(1, steps + 1)), *evaluations]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "samples.jsonl", samples or [sample(1), sample(2)])
    fault = {"time": 0.0, "step": 2, "resumed_behind": 1, "kind": "lost", "error": HOSTILE}
    write_lines(folder / "faults.jsonl", [fault])
    moment = {
        "worker": "worker 0, step 1",
        "index": 0,
        "label": "train",
        "phase": "train",
        "region_bytes": {"actor_weights": 1 << 20},
        "predicted_bytes": 1 << 20,
        "allocated_bytes": None,
        "total_bytes": 1 << 20,
    }
    write_lines(folder / "memory.jsonl", [moment])
    predicted = {"memory/device_peak_bytes_max": 2 << 20}
    plan = {"numbers": {"steps": f"{steps + 10}"}, "predicted": predicted}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "trace").mkdir()
    for step in (10, 2):
        (folder / "trace" / f"step-{step}.json").write_text("{}")
    (folder / ".hydra").mkdir()
    config = f"megatron_training: {{train_iters: {steps + 10}, seed: {seed}}}\n"
    (folder / ".hydra" / "config.yaml").write_text(config)
    (folder / ".hydra" / "overrides.yaml").write_text(f"- megatron_training.seed={seed}\n")
    return folder


def conversation(text: str = "5", **changes: Any) -> dict[str, Any]:
    """Return a conversation of two turns with a tool, as samples.jsonl has it."""
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    numbers = {"calls": 1, "reward": 0.25, "seconds": 0.0125}
    pieces = [
        {"by": "user", "text": "You may use tools.", "tokens": 5, "masked": True},
        {"by": "policy", "text": call, "tokens": 14, "masked": False, **numbers},
        {"by": "tool", "text": text, "tokens": 9, "masked": True},
        {"by": "policy", "text": "It is 5.", "tokens": 4, "masked": False}
        | {"calls": 0, "reward": 1.0, "seconds": 0.5},
    ]
    return {"ending": "done", "pieces": pieces} | changes
