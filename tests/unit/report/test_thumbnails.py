"""Pictures of samples in a report: from the run's own folder, as addresses with their content."""

import base64
from io import BytesIO
from pathlib import Path

import pytest
from made_run import make_run, sample
from PIL import Image

from mindrl.report.page import page_data
from mindrl.report.run_state import RunState
from mindrl.report.sample_search import SampleSearch
from mindrl.report.thumbnails import picture_names, prompt_key, thumbnails_of

RED, BLUE, GONE = f"{1:016x}", f"{2:016x}", f"{3:016x}"
QUERY = dict.fromkeys(
    ("run", "kind", "source", "ended", "words", "from", "to", "least", "most"), ""
)


def png(colour: str) -> bytes:
    file = BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    samples = [
        sample(1, prompt="What?", pictures=[RED]),
        sample(1, prompt="What?", pictures=[BLUE, GONE]),
    ]
    folder = make_run(tmp_path / "run", samples=samples)
    (folder / "pictures").mkdir()
    (folder / f"pictures/{RED}.png").write_bytes(png("red"))
    (folder / f"pictures/{BLUE}.png").write_bytes(png("blue"))
    return folder


def test_a_page_holds_the_thumbnails_that_exist(run: Path) -> None:
    (found,) = page_data([RunState(run)])["runs"]
    begin = "data:image/png;base64,"
    assert {*found["thumbnails"]} == {RED, BLUE}
    address = found["thumbnails"][RED]
    assert address.startswith(begin)
    assert base64.b64decode(address.removeprefix(begin)) == png("red")


def test_equal_texts_about_other_pictures_are_two_groups(run: Path) -> None:
    state = RunState(run)
    state.update()
    answer = SampleSearch([state], QUERY | {"prompt": None, "at": None}).answer()
    assert sorted(len(group) for group in answer["groups"]) == [1, 1]
    assert {*answer["thumbnails"]} == {RED, BLUE}
    one = SampleSearch([state], QUERY | {"prompt": f"What? {RED}", "at": None}).answer()
    ((row,),) = one["groups"]
    assert row["pictures"] == [RED]


def test_names_that_are_no_numbers_and_files_that_are_no_png_are_omitted(run: Path) -> None:
    (run / "secret.png").write_bytes(png("green"))
    (run / f"pictures/{RED}.png").write_bytes(b"<svg onload=alert(1)>")
    (run / f"pictures/{BLUE}.png").write_bytes(png("blue") + bytes(1 << 20))
    row = sample(1, pictures=["../secret", "https://a.b/c", RED, BLUE, 7, f"{RED}\n"])
    assert picture_names(row) == [RED, BLUE]
    assert thumbnails_of(run, [row]) == {}
    assert picture_names(sample(1, pictures="text")) == []
    assert prompt_key(sample(1)) == "1+1=?"
