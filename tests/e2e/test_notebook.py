"""The notebook of the documents, executed as its reader would."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from program import CHECKOUT

pytestmark = pytest.mark.e2e
NOTEBOOK = CHECKOUT / "docs/tutorials/train-from-python.ipynb"


def printed(cell: Any) -> str:
    """Return what a cell has printed."""
    return "".join(each.text for each in cell.outputs if each.output_type == "stream")


@pytest.mark.nightly
def test_the_notebook_trains_to_where_its_callback_stops_it_and_shows_what_it_got(
    tmp_path: Path,
) -> None:
    (tmp_path / ".cache").symlink_to(CHECKOUT / ".cache")
    # Jupyter starts the kernel in the notebook's folder.
    (start := tmp_path / "docs/tutorials").mkdir(parents=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without answers"
    where = {"metadata": {"path": str(start)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()

    assert not [*start.iterdir()]
    (folder,) = (tmp_path / "outputs").glob("*/*")
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert (summary["status"], summary["steps"]) == ("stopped", 4)
    assert summary["model"].endswith("model")
    last = printed(notebook.cells[-1])
    assert last.splitlines()[0] == "stopped after step 4"
    assert len(last.splitlines()) == 5
    rows = (folder / "data/train_dataset.jsonl").read_text("utf-8").splitlines()
    assert len(rows) == 268
    assert (folder / ".hydra/config.yaml").is_file()
