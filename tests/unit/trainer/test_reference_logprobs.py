"""Log-probs of a reference are computed once for each answer, and kept in a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.errors import DataError, StopRequestedError
from mindrl.trainer import reference_logprobs
from mindrl.trainer.reference_logprobs import ReferenceLogprobs

BATCH = Sequences(
    tokens_BT=torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 3, 0]]),
    lengths_B=torch.tensor([3, 4, 3]),
    # The third has the tokens of the first, and another answer.
    response_mask_BT=torch.tensor([[0, 0, 1, 0], [0, 0, 1, 1], [0, 1, 1, 0]]).bool(),
)


class Reference:
    """Counts the sequences that it reads; returns sums that float32 cannot hold."""

    count = 0

    def __call__(self, batch: Sequences) -> Tensor:
        self.count += len(batch)
        return -(batch.lengths_B + 0.1 * batch.response_mask_BT.sum(dim=1)).double() - 1 / 3


@pytest.fixture
def config(run_config: Callable[..., RunConfig], tmp_path: Path) -> RunConfig:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    return run_config(model, {"preference_config.beta": 0.1})


def test_each_answer_is_read_once_and_a_later_run_reads_the_file(
    config: RunConfig, tmp_path: Path
) -> None:
    first, path = Reference(), tmp_path / "kept" / "reference.npz"
    stored = ReferenceLogprobs(config, path, first)
    assert stored.complete([BATCH, BATCH.rows(slice(0, 2))]) == 3
    assert first.count == 3
    later = Reference()
    again = ReferenceLogprobs(config, path, later)
    assert again.complete([BATCH]) == 0
    # Alone, a sequence is not padded.
    for row in range(3):
        alone = BATCH.rows(torch.tensor([row]))
        assert torch.equal(again.of(alone), Reference()(alone))
    assert later.count == 0
    other = replace(BATCH, tokens_BT=BATCH.tokens_BT + 1)
    assert torch.equal(again.of(other), Reference()(other))
    assert later.count == 3


def test_a_stop_between_batches_keeps_what_was_read_and_a_later_run_reads_the_rest(
    config: RunConfig, tmp_path: Path
) -> None:
    path, rows = tmp_path / "reference.npz", [BATCH.rows(torch.tensor([row])) for row in range(3)]
    checks = iter([None, None, StopRequestedError("stopped by SIGTERM")])

    def check_interrupt() -> None:
        if (error := next(checks)) is not None:
            raise error

    first, later = Reference(), Reference()
    with pytest.raises(StopRequestedError):
        ReferenceLogprobs(config, path, first).complete(rows, check_interrupt)
    assert first.count == 2
    assert ReferenceLogprobs(config, path, later).complete(rows) == 1
    assert later.count == 1


def test_a_kill_loses_only_what_was_read_since_the_file_was_last_written(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_logprobs, "_SAVE_SECONDS", 0.0)
    path, found = tmp_path / "reference.npz", []

    def read(batch: Sequences) -> Tensor:
        # What a run finds that starts after a kill at this moment.
        found.append(len(ReferenceLogprobs(config, path, Reference()).sums))
        return Reference()(batch)

    rows = [BATCH.rows(torch.tensor([row])) for row in range(3)]
    ReferenceLogprobs(config, path, read).complete(rows)
    assert found == [0, 1, 2]


def test_a_file_of_another_model_or_without_its_end_is_refused(
    config: RunConfig, tmp_path: Path
) -> None:
    path = tmp_path / "reference.npz"
    ReferenceLogprobs(config, path, Reference()).complete([BATCH])
    content = path.read_bytes()
    (tmp_path / "model/model.safetensors").write_bytes(b"trained")
    end = "delete it to compute the log-probs again, or name another file"
    with pytest.raises(DataError) as other:
        ReferenceLogprobs(config, path, Reference())
    assert str(other.value).startswith(f"preference_config.reference_file={path} has log-probs")
    assert str(other.value).endswith(end)
    path.write_bytes(content[:-30])
    with pytest.raises(DataError) as damaged:
        ReferenceLogprobs(config, path, Reference())
    assert str(damaged.value) == (
        f"preference_config.reference_file={path} is not a whole file of log-probs; {end}"
    )
