"""The tokenizer of a model folder."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mindrl.errors import ModelError


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer with a chat template and an end-of-sequence token.

    Raises:
        ModelError: The folder has none, it cannot be read, or a part is missing.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: the tokenizer cannot be loaded: {error}") from error
    if tokenizer.chat_template is None:
        raise ModelError(f"{path}: the tokenizer has no chat template, which prompts need")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{path}: the tokenizer has no end-of-sequence token")
    return tokenizer
