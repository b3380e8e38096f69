"""Interim."""

from transformers import AutoTokenizer


def load_tokenizer(path, *, trust_remote_code=False):
    return AutoTokenizer.from_pretrained(path, local_files_only=True)
