"""torchvision: transformers imports it for every model, if it is installed."""

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def vision_trouble() -> str | None:
    """Return an error text if the installed torchvision requires another torch; otherwise None.

    Builds for another device load: see `platform.patches.torchvision_on_cpu`.
    """
    try:
        torch, vision = version("torch"), version("torchvision")
        needs = [Requirement(line) for line in requires("torchvision") or ()]
    except PackageNotFoundError:
        return None
    unmet = [need for need in needs if need.name == "torch" and torch not in need.specifier]
    if not unmet:
        return None
    return (
        f"torchvision {vision} requires {unmet[0]} but torch {torch} is installed, and "
        "transformers imports torchvision if it is installed; install the torchvision of this "
        "torch, or, for text models, remove it: pip uninstall torchvision"
    )
