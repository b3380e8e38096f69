"""What the tests of the round trip call in forked ranks: import, and export as workers do."""

from pathlib import Path

from reshard_messages import Way
from reshard_probe import OPTIMIZER, export_of
from training_messages import Case
from training_probe import build


def exported(ways: list[Way], targets: list[str]) -> None:
    """Read each folder into its training layout, and write what the ranks hold to a new folder."""
    for way, target in zip(ways, targets, strict=True):
        model = build(Case(folder=way.folder, layout=way.train), OPTIMIZER)
        export_of(way, model, target).write(Path(target))
