"""Files besides weights and sizes that a reader of a model folder needs. Imports no torch."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.errors import ModelError
from mindrl.models.config_file import VOCABULARY_FILES

_TEMPLATE_FILE, _PROCESSOR_TEMPLATE_FILE = "chat_template.jinja", "chat_template.json"
_MODEL_FILES = (
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    # Code of the model's author, which config.json names.
    "*.py",
)
_TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    _TEMPLATE_FILE,
    _PROCESSOR_TEMPLATE_FILE,
    # Code of the tokenizer's author, which tokenizer_config.json names.
    "tokenization_*.py",
)


@dataclass(frozen=True, kw_only=True)
class RunTokenizer:
    """The tokenizer that a run trains with, as far as it differs from the model folder's."""

    folder: str | None = None
    """Folder of the tokenizer; None for the model folder."""
    chat_template: str | None = None
    """File of the chat template; None for the tokenizer's own."""

    @classmethod
    def of(cls, training: MegatronTrainingConfig) -> "RunTokenizer":
        """Return the configured tokenizer; `plain` leaves the template as it is."""
        template = None if training.takes_plain_text else training.chat_template
        return cls(folder=training.tokenizer_name_or_path, chat_template=template)

    def check(self) -> None:
        """Check that the files are on this node.

        Raises:
            ModelError: The folder or the file of the template is missing.
        """
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ModelError(
                f"megatron_training.tokenizer_name_or_path={self.folder}: no such folder on the "
                "node that exports the model"
            )
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise ModelError(
                f"megatron_training.chat_template={self.chat_template}: no such file on the node "
                "that exports the model"
            )


SAME_TOKENIZER = RunTokenizer()
"""The tokenizer of the model folder."""


def carry_files(source: Path, building: Path, tokenizer: RunTokenizer) -> None:
    """Copy the tokenizer's files, and those of the model folder `source`, into a new folder.

    Raises:
        ModelError: As for `RunTokenizer.check`.
        OSError: A file cannot be copied.
    """
    tokenizer.check()
    vocabulary = source if tokenizer.folder is None else Path(tokenizer.folder)
    for folder, patterns in ((source, _MODEL_FILES), (vocabulary, _TOKENIZER_FILES)):
        for file in (file for pattern in patterns for file in folder.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, building / file.name)
    if tokenizer.chat_template is not None:
        shutil.copyfile(tokenizer.chat_template, building / _TEMPLATE_FILE)
        # Image processors read it before the other file.
        (building / _PROCESSOR_TEMPLATE_FILE).unlink(missing_ok=True)
