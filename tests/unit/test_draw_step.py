"""The picture of a step has the driver's stages and each worker's phases."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EVENTS: list[dict[str, Any]] = [
    *(
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in enumerate(("driver", "worker-0"))
    ),
    *(
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for pid, tid, name in ((0, 0, "main"), (1, 0, "main"), (1, 1, "phase"))
    ),
    *(
        {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        for pid, tid, name, ts, dur in (
            (0, 0, "step", 0, 9e6),
            (0, 0, "rollout", 1e5, 4e6),
            (0, 0, "wait for generate_sequences", 2e5, 3e6),
            (0, 0, "update", 41e5, 39e5),
            (1, 0, "generate", 2e5, 3e6),
            (1, 1, "swap to rollout", 1e5, 1e5),
            (1, 1, "rollout", 2e5, 4e6),
            (1, 1, "train", 42e5, 9e6),
        )
    ),
]


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return import_module("draw_step")


def drawn(drawing: Any, folder: Path, events: list[Any], patch: pytest.MonkeyPatch) -> int:
    (folder / "step-2.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    patch.setattr("sys.argv", ["", str(folder / "step-2.json"), str(folder / "step.png")])
    code: int = drawing.main()
    return code


def test_stages_and_phases_are_drawn_and_what_happens_in_them_is_not(
    drawing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = [(each.row, each.name) for each in drawing._bars(EVENTS)]
    assert bars == [
        ("driver", "rollout"),
        ("driver", "update"),
        ("worker-0", "swap to rollout"),
        ("worker-0", "rollout"),
        ("worker-0", "train"),
    ]
    (axes,) = drawing._draw([*drawing._bars(EVENTS)]).axes
    # The last phase is cut where the step ends.
    assert axes.get_xlim() == (0.0, 8.0)
    assert max(patch.get_x() + patch.get_width() for patch in axes.patches) == pytest.approx(8.0)
    assert drawn(drawing, tmp_path, EVENTS, monkeypatch) == 0
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_a_timeline_without_stages_is_refused(
    drawing: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert drawn(drawing, tmp_path, EVENTS[:5], monkeypatch) == 1
    assert capsys.readouterr().err.endswith("step-2.json has no stages\n")
