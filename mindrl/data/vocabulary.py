"""Check whether a folder has a tokenizer, and which, without loading it."""

import json
from pathlib import Path

from mindrl.models.config_file import VOCABULARY_FILES


def has_vocabulary(path: str, *, trust_remote_code: bool = False) -> bool:
    """Return whether a tokenizer folder has the files that `load_tokenizer` needs."""
    folder = Path(path)
    # Code in the folder may use a vocabulary file of any name.
    return folder.is_dir() and (
        trust_remote_code or any(any(folder.glob(name)) for name in VOCABULARY_FILES)
    )


def other_token(path: str, of_policy: str, model: str = "teacher") -> str:
    """Return how the tokenizer of a model differs for a token of the policy's; empty if never.

    The model may have more tokens. Without a tokenizer.json on both sides, other files are
    compared.
    """
    files = [Path(folder, "tokenizer.json") for folder in (path, of_policy)]
    if not all(file.is_file() for file in files):
        has = _contents(path)
        return (
            ""
            if has and has == _contents(of_policy)
            else "its files differ from those of the policy"
        )
    try:
        own, theirs = map(_token_ids, files)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"tokenizer.json cannot be read ({type(error).__name__}: {error})"
    for token, number in sorted(theirs.items(), key=lambda each: each[1]):
        if own.get(token) != number:
            return f"{token!r} is token {number} of the policy, and {own.get(token)} of the {model}"
    return ""


def _token_ids(file: Path) -> dict[str, int]:
    read = json.loads(file.read_text("utf-8"))
    vocabulary = read["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {token: at for at, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{each["content"]: each["id"] for each in read["added_tokens"]}}


def _contents(path: str) -> dict[str, bytes]:
    names = (file for name in VOCABULARY_FILES for file in Path(path).glob(name))
    return {file.name: file.read_bytes() for file in names}
