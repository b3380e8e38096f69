"""What a page shows of runs: curves, samples, differences, and what is left out by rule."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from made_run import HOSTILE, conversation, make_run, metrics_of, sample, write_lines

from mindrl.errors import OutputError
from mindrl.report.curves import MOST_POINTS
from mindrl.report.page import page, page_data, write_page
from mindrl.report.run_state import RunState
from mindrl.report.sample_index import SampleIndex
from mindrl.report.shown_samples import MOST_BYTES, MOST_SAMPLES, shown_samples
from mindrl.report.stored_rows import MOST_CHARACTERS
from mindrl.report.tables import write_tables


def curves_of(folder: Path) -> dict[str, Any]:
    return dict(page_data([RunState(folder)])["runs"][0]["curves"])


def samples_of(folder: Path) -> list[dict[str, Any]]:
    index = SampleIndex(folder)
    index.update()
    return shown_samples(index)


def test_each_metric_is_a_curve_over_the_steps_that_have_it(tmp_path: Path) -> None:
    curves = curves_of(make_run(tmp_path / "run"))
    assert (curves["update/entropy"]["steps"], curves["update/entropy"]["values"]) == (
        [1, 2, 3, 4],
        [1, 0.5, 0.333333, 0.25],
    )
    assert curves["evaluation/accuracy_low"]["steps"] == [0, 4]
    assert "nonfinite/worker_0/actor_loss" in curves
    assert "nonfinite/worker_99/actor_loss" not in curves


def test_the_timelines_of_a_run_are_named_in_the_order_of_their_steps(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert page_data([RunState(folder)])["runs"][0]["traces"] == (
        "trace/step-2.json",
        "trace/step-10.json",
    )


def test_a_long_run_keeps_every_fourth_step_and_its_last(tmp_path: Path) -> None:
    steps = 2 * MOST_POINTS + 4
    write_lines(tmp_path / "metrics.jsonl", map(metrics_of, range(1, steps + 1)))
    kept = curves_of(tmp_path)["reward/mean"]["steps"]
    assert [*kept[:3], *kept[-2:]] == [1, 5, 9, steps - 3, steps]
    assert len(kept) <= MOST_POINTS


def test_what_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 5, "reward/mean": 0.')
    data = page_data([RunState(folder)])["runs"][0]
    assert (data["step"], data["steps"], data["status"]) == (4, 14, "no recorded end")
    assert len(data["samples"]) == 2


def test_a_folder_of_no_run_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"is not a run folder: it has no metrics\.jsonl"):
        write_page(tmp_path / "page.html", [RunState(tmp_path)])
    assert not (tmp_path / "page.html").exists()


def test_too_many_samples_leave_whole_steps_out_evenly(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run", samples=(sample(step) for step in range(1, 1001) for _ in range(9))
    )
    found = samples_of(folder)
    steps = sorted({row["step"] for row in found})
    assert len(found) == 9 * len(steps)
    assert MOST_SAMPLES * 0.7 < len(found) <= MOST_SAMPLES
    assert {later - step for step, later in pairwise(steps)} == {3}
    assert steps[-1] == 1000


def test_a_long_text_keeps_both_ends_and_all_texts_stay_below_a_bound(tmp_path: Path) -> None:
    text = "a" * 500_000 + "b" * 500_000
    samples = (sample(step, response=text) for step in range(1, 4))
    found = samples_of(make_run(tmp_path / "run", samples=samples))
    response = found[0]["response"]
    assert len(response) < MOST_CHARACTERS + 100
    assert response.startswith("aaa")
    assert response.endswith("bbb")
    assert "992,000 characters omitted" in response
    many = (sample(step, response="c" * MOST_CHARACTERS) for step in range(1, MOST_SAMPLES + 1))
    kept = samples_of(make_run(tmp_path / "many", samples=many))
    assert 0.3 * MOST_BYTES < sum(len(row["response"]) for row in kept) <= MOST_BYTES


@pytest.mark.nightly
def test_long_texts_of_a_conversation_share_a_bound(tmp_path: Path) -> None:
    talk = conversation("a" * 500_000 + "b" * 500_000)
    (row,) = samples_of(make_run(tmp_path / "run", samples=[sample(1, conversation=talk)]))
    pieces = row["conversation"]["pieces"]
    assert pieces[2]["text"].startswith("aaa")
    assert pieces[2]["text"].endswith("bbb")
    assert [each for each in pieces if each != pieces[2]] == [
        *talk["pieces"][:2],
        talk["pieces"][3],
    ]
    talk = conversation(10_000 * "ab")
    talk["pieces"] *= 100
    (row,) = samples_of(make_run(tmp_path / "many", samples=[sample(1, conversation=talk)]))
    sizes = [len(each["text"]) for each in row["conversation"]["pieces"]]
    assert len(sizes) == 400
    assert max(sizes) < 500
    # Texts of conversations count for the size of a page.
    texts = 2 * MOST_CHARACTERS * "c"
    talk["pieces"] = talk["pieces"][:4] + [{**talk["pieces"][2], "text": texts}] * 4
    many = (sample(step, conversation=talk) for step in range(1, MOST_SAMPLES + 1))
    kept = samples_of(make_run(tmp_path / "large", samples=many))
    total = sum(len(each["text"]) for row in kept for each in row["conversation"]["pieces"])
    assert 0.3 * MOST_BYTES < total <= MOST_BYTES


def test_runs_differ_where_their_configuration_does(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    data = page_data([*map(RunState, runs)])
    assert data["differences"] == [{"key": "megatron_training.seed", "values": ["1", "2"]}]
    assert [run["overrides"] for run in data["runs"]] == [
        ("megatron_training.seed=1",),
        ("megatron_training.seed=2",),
    ]


def test_no_text_of_a_run_ends_the_script_that_holds_it(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / HOSTILE[:40].replace("/", "_"), samples=[sample(1, prompt=HOSTILE)]
    )
    text = page(page_data([RunState(folder)]))
    held = text.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(held)["runs"][0]["samples"][0]["prompt"] == HOSTILE
    assert "<script>document.title" not in text


def test_tables_hold_every_number_and_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers, samples = write_tables(Path("tables"), [make_run(Path("run"))])
    with numbers.open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "update/entropy"]
    # Both tables name a run by its whole path, so that they can be joined.
    runs = {row["run"] for row in rows} | {*pq.read_table(samples)["run"].to_pylist()}
    assert runs == {str(tmp_path / "run")}
    assert [float(row["value"]) for row in rows] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert pq.read_table(samples)["step"].to_pylist() == [1, 2]


def test_what_the_plan_predicted_stands_beside_what_the_steps_measured(tmp_path: Path) -> None:
    folder, mib = make_run(tmp_path / "run"), 1 << 20
    measured = (
        {
            "bytes/to_host_actor_weights": 3.0 * step,
            "bytes/to_host_actor_optimizer": 1.0,
            "memory/rollout_device_peak_bytes_max": 9.0 * mib,
        }
        for step in (1, 2, 3)
    )
    rows = ({**metrics_of(at), **each} for at, each in enumerate(measured, start=1))
    write_lines(folder / "metrics.jsonl", rows)
    predicted = {"memory/device_peak_bytes_max": 2 * mib, "bytes/to_host_*": 7, "idle/*": 1}
    plan = {"numbers": {"steps": "14"}, "predicted": predicted}
    (folder / "plan.json").write_text(json.dumps(plan))
    run = page_data([RunState(folder)])["runs"][0]
    assert run["numbers"] == {"steps": "14"}
    # The plan is that of the ranks that train; nothing measures what is idle here.
    assert run["planned"] == [
        {
            "name": "memory/device_peak_bytes_max",
            "planned": 2 * mib,
            "median": mib,
            "most": mib,
        },
        {"name": "bytes/to_host_*", "planned": 7, "median": 7.0, "most": 10.0},
    ]
