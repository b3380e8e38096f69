"""Whether a folder has a tokenizer, asked without loading one."""

from pathlib import Path

# Without one of these some families answer with an empty vocabulary instead of an error.
VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def has_vocabulary(path: str, *, trust_remote_code: bool = False) -> bool:
    """Say whether a tokenizer folder has what `load_tokenizer` loads."""
    folder = Path(path)
    # Code from the folder may bring a vocabulary file of any name.
    return folder.is_dir() and (
        trust_remote_code or any(any(folder.glob(name)) for name in VOCABULARY_FILES)
    )
