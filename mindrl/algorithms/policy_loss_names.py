"""Names of the policy losses. Imports no torch."""

from pathlib import Path


def policy_loss_names() -> tuple[str, ...]:
    """Return the names of the files in `mindrl/algorithms/policy_losses/`."""
    folder = Path(__file__).with_name("policy_losses")
    return tuple(sorted(file.stem for file in folder.glob("[a-z]*.py")))
