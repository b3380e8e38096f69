"""What a run reads before anything is started, and in which order it visits the prompts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet, load_prompts
from mindrl.data.tokenizer import load_tokenizer, stop_token_ids
from mindrl.errors import ConfigError, DataError, ModelError


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The prompts of a run as token ids."""

    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    """A response ends behind the first of these."""
    train: PromptSet
    test: PromptSet | None
    """The held-out file; None without one."""
    eval_sets: Mapping[str, PromptSet] = field(default_factory=dict)
    """Of `data_config.eval_sets`, by name."""

    def decode(self, token_ids: list[int]) -> str:
        """Return a response as text, for rewards and for people."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


@dataclass(frozen=True)
class PromptOrder:
    """Visits every prompt once per epoch, each epoch in an order of its own.

    A pure function of the seed and the place: a resumed run needs no more than that to go on
    where it was. The last prompts of an epoch may share a step with the first of the next.
    """

    count: int
    """Prompts, at least 1."""
    seed: int
    """0 or more."""
    shuffle: bool
    """False visits them in the order of the file."""

    def indices(self, place: int, count: int) -> list[int]:
        """Return the `count` prompts from a place on; places count from 0, over all epochs."""
        places = [divmod(each, self.count) for each in range(place, place + count)]
        orders = {epoch: self._epoch(epoch) for epoch in {epoch for epoch, _ in places}}
        return [orders[epoch][position] for epoch, position in places]

    def _epoch(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.count))
        generator = np.random.default_rng([self.seed, epoch])
        order: list[int] = generator.permutation(self.count).tolist()
        return order


def read_data(config: RunConfig) -> RunData:
    """Read the tokenizer and all rows, and render every prompt.

    Raises:
        ConfigError: The tokenizer or the data cannot serve the run.
    """
    training, rl = config.megatron_training, config.rl_config
    try:
        tokenizer = load_tokenizer(
            config.tokenizer_path, trust_remote_code=config.generate_config.trust_remote_code
        )
        stops = stop_token_ids(tokenizer, config.actor_config.load)
        train = load_prompts(training.data_path, training, rl, tokenizer)
        test = None
        if training.test_data_path is not None:
            test = load_prompts(training.test_data_path, training, rl, tokenizer)
        eval_sets = {
            each.name: load_prompts(each.data_path, training, rl, tokenizer)
            for each in config.data_config.eval_sets
        }
    except (DataError, ModelError) as error:
        raise ConfigError(str(error)) from error
    return RunData(
        tokenizer=tokenizer, stop_token_ids=stops, train=train, test=test, eval_sets=eval_sets
    )


def data_lines(data: RunData) -> Iterator[str]:
    """Say how much was read, what a test would find again, and what ends a response."""
    for found in filter(None, (data.train, data.test, *data.eval_sets.values())):
        longest = max(len(prompt.token_ids) for prompt in found.prompts)
        dropped = f", {found.dropped} longer ones dropped" if found.dropped else ""
        rows = len(found.prompts) + found.dropped
        yield f"{found.path}: {rows} rows, prompts of up to {longest} tokens{dropped}"
    trained_on = {prompt.text for prompt in data.train.prompts}
    tests = {"test": data.test} if data.test else {}
    for name, test in {**tests, **data.eval_sets}.items():
        prompts = test.prompts
        if again := sum(prompt.text in trained_on for prompt in prompts):
            yield (
                f"{again} of the {len(prompts)} {name} prompts are training prompts too: "
                "the accuracy counts what is trained on"
            )
    tokens = data.tokenizer.convert_ids_to_tokens(list(data.stop_token_ids))
    stops = (f"{token} ({id_})" for token, id_ in zip(tokens, data.stop_token_ids, strict=True))
    yield f"a response ends with {' or '.join(stops)}"
