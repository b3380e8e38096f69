"""Text of each token of a response, from the run's tokenizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mindrl.report.run_record import Line


def token_texts(folder: Path, config: Line) -> Callable[[Sequence[int]], list[str]] | None:
    """Return a function from token ids to texts; None without the tokenizer on this machine."""
    path = next((path for path in _places(folder, config) if path.is_file()), None)
    if path is None:
        return None
    tokenizer = Tokenizer.from_file(str(path))

    def texts(token_ids: Sequence[int]) -> list[str]:
        # A character's bytes may span several tokens: it is shown with the last of them.
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token_id) or "" for token_id in token_ids]

    return texts


def _places(run: Path, config: Line) -> list[Path]:
    training, actor = (config.get(name) or {} for name in ("megatron_training", "actor_config"))
    named = (training.get("tokenizer_name_or_path"), actor.get("load"))
    folders = [Path(name) for name in named if name]
    return [folder / "tokenizer.json" for folder in (run / "model", *folders)]
