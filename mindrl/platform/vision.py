"""torchvision: text models do not need it, but transformers imports it if it is installed."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

_UNNEEDED = "pip uninstall torchvision torchaudio torchcodec"


def vision_trouble() -> str | None:
    """Return why the installed torchvision cannot be imported, with a remedy; None if it can."""
    try:
        torch, vision = version("torch"), version("torchvision")
    except PackageNotFoundError:
        return None
    # Builds for one device name it alike, after the plus. Only others are worth a try of seconds.
    if torch.partition("+")[2] == vision.partition("+")[2]:
        return None
    tried = [sys.executable, "-c", "import torchvision"]
    if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
        return None
    return (
        f"torchvision {vision} does not load with torch {torch}, and transformers imports it if it "
        f"is installed; remove what text models do not need: {_UNNEEDED}"
    )
