"""The tokenizer of a model folder."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mindrl.errors import ModelError

# Without one of these some families answer with an empty vocabulary instead of an error.
_VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer with a chat template from a local Hugging Face folder.

    Raises:
        ModelError: The folder is missing or unreadable, or has no vocabulary or chat template.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"tokenizer folder {path}: no such folder")
    # Code from the folder may bring a vocabulary file of any name.
    if not trust_remote_code and not any(any(folder.glob(name)) for name in _VOCABULARY_FILES):
        raise ModelError(
            f"tokenizer folder {path}: no vocabulary; needed one of {', '.join(_VOCABULARY_FILES)}"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, LookupError, TypeError, ImportError) as error:
        raise ModelError(
            f"tokenizer folder {path}: cannot be read ({type(error).__name__}: {error})"
        ) from error
    if not tokenizer.chat_template:
        raise ModelError(
            f"tokenizer folder {path}: no chat template; needed chat_template.jinja, or "
            "chat_template in tokenizer_config.json"
        )
    return tokenizer
