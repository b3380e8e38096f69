"""Check whether a folder has a tokenizer, without loading it."""

from pathlib import Path

# Without one of these files some families return an empty vocabulary instead of an error.
VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def has_vocabulary(path: str, *, trust_remote_code: bool = False) -> bool:
    """Return whether a tokenizer folder has the files that `load_tokenizer` needs."""
    folder = Path(path)
    # Code in the folder may use a vocabulary file of any name.
    return folder.is_dir() and (
        trust_remote_code or any(any(folder.glob(name)) for name in VOCABULARY_FILES)
    )
