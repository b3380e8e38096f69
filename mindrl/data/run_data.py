"""Tokenizer and data of a run, read before workers start."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress

from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import Demonstration
from mindrl.config.data import DataPath, EvalSet, TrainSet
from mindrl.config.finding import Finding, broken, did_you_mean
from mindrl.config.reward_columns import own_rewards, reads_turns, reward_columns
from mindrl.config.reward_signature import RewardSignature
from mindrl.config.run import RunConfig
from mindrl.data.decoding import ResponseDecoder
from mindrl.data.demonstrations import load_demonstrations
from mindrl.data.held_out import hold_out, without_tests
from mindrl.data.preferences import load_preferences
from mindrl.data.prompts import PromptSet, joined, load_prompts
from mindrl.data.reading import Reading
from mindrl.data.row_images import RowImages, image_notes
from mindrl.data.rows import shown
from mindrl.data.tokenizer import load_tokenizer, stop_token_ids
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.row_tools import RowTools
from mindrl.environments.tools import tools_of_rows
from mindrl.errors import ConfigError, DataError, ModelError
from mindrl.models.vision import image_token


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Tokenizer and prompts of a run, as token ids."""

    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    """Tokens that end a response."""
    train: PromptSet
    """All training prompts, set by set."""
    test: PromptSet | None
    """The held-out file; None without one."""
    eval_sets: Mapping[str, PromptSet] = field(default_factory=dict)
    """Prompts of `data_config.eval_sets`, by name."""
    parts: Sequence[PromptSet] = ()
    """Parts of `train`, if there are several."""
    stop_texts: Sequence[str] = ()
    """Strings that also end a response."""
    images: RowImages | None = None
    """Keeps the pictures of rows. None for a model of text."""
    turns: TurnTemplate | None = None
    """How an environment's messages follow a turn. None without environments."""

    @property
    def all_sets(self) -> tuple[PromptSet, ...]:
        """All sets, file by file."""
        held_out = [self.test] if self.test else []
        return (*self.train_sets, *held_out, *self.eval_sets.values())

    @property
    def train_sets(self) -> Sequence[PromptSet]:
        """Training sets, file by file."""
        return self.parts or (self.train,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the rows of all files."""
        return tuple(dict.fromkeys(name for each in self.all_sets for name in each.columns))

    @cached_property
    def decode(self) -> ResponseDecoder:
        """Returns a response as text, for rewards and for people."""
        return ResponseDecoder(self.tokenizer)


def read_data(config: RunConfig) -> RunData:
    """Read the tokenizer and all rows, and render every prompt.

    Raises:
        ConfigError: The tokenizer or the data do not suit the run.
    """
    training, data = config.megatron_training, config.data_config
    try:
        rewards = reward_columns(config)
        tokenizer = load_tokenizer(
            config.tokenizer_path,
            chat_template=training.chat_template,
            trust_remote_code=config.generate_config.trust_remote_code,
        )
        sampling = config.generate_config.sampling_config
        stops = stop_token_ids(tokenizer, config.actor_config.load, sampling.stop_token_ids)
        tools, images = row_tools(config), row_images(config)

        def load(paths: DataPath, reading: Reading) -> PromptSet:
            reading = replace(reading, images=images)
            if config.preference_config is not None:
                return load_preferences(paths, config, tokenizer, stops, reading)
            if config.sft_config is not None:
                return load_demonstrations(paths, config, tokenizer, stops, reading)
            chosen = replace(reading, rewards=rewards)
            return load_prompts(paths, training, config.rl_config, tokenizer, chosen, tools)

        train_sets, test = _train_sets(config, load), None
        if data.held_out_fraction:
            train_sets, test = hold_out(train_sets, data.held_out_fraction, data.held_out_seed)
        elif training.test_data_path is not None:
            test = load(training.test_data_path, Reading(source_column=data.source_column))
        eval_sets = {
            each.name: load(each.data_path, _source(config, each)) for each in data.eval_sets
        }
        train_sets = without_tests(data, train_sets, _tests(test, eval_sets))
        found = RunData(
            tokenizer=tokenizer,
            stop_token_ids=stops,
            stop_texts=sampling.stop,
            train=joined(train_sets),
            test=test,
            eval_sets=eval_sets,
            parts=train_sets,
            images=images,
        )
        if tools is not None:
            found = replace(found, turns=turn_template(config, found))
    except (DataError, ModelError) as error:
        raise ConfigError(str(error)) from error
    _check_sources(config, found)
    _check_teachers(config, found)
    _check_columns(config, found)
    return found


def row_images(config: RunConfig) -> RowImages | None:
    """Return the keeper of the rows' pictures; None for a model of text."""
    model = config.actor_config.load
    token = image_token(model)
    if token is None:
        return None
    return RowImages(model=model, config=config.data_config.images, token=token)


def row_tools(config: RunConfig) -> RowTools | None:
    """Return the tools that rows may have; None without environments.

    Raises:
        ConfigError: The user's tools cannot be imported, or are not documented.
    """
    section = config.environment_config
    return tools_of_rows(section) if section is not None and reads_turns(config) else None


def turn_template(config: RunConfig, data: RunData) -> TurnTemplate:
    """Return how an environment's messages follow a turn.

    Raises:
        ModelError: The chat template cannot have such messages, or writes them differently for
            another row's tools.
    """
    section = config.environment_config
    assert section is not None, "the run has environments"
    # Messages of an agent are rendered for every template.
    is_kept = section.history == "kept" and section.agent is None
    rows = (prompt.row for each in data.all_sets for prompt in each.prompts)
    tools = {tuple(map(id, row.tools)): row.tools for row in rows if row is not None}
    found = [
        TurnTemplate.of(
            data.tokenizer,
            data.stop_token_ids,
            each,
            is_kept=is_kept,
            image_token=None if data.images is None else data.images.token,
        )
        for each in tools.values()
    ]
    folder, first = f"tokenizer folder {config.tokenizer_path}", found[0]
    if any(tools.values()) and not first.has_role("tool"):
        raise ModelError(
            f"{folder}: the chat template has no messages of role tool; set "
            "megatron_training.chat_template to one that has"
        )
    if any((each.end, each.pieces) != (first.end, first.pieces) for each in found):
        raise ModelError(
            f"{folder}: the chat template writes messages of the environment by the tools that it "
            "shows; give all rows the same environment and the same tools"
        )
    return first


def _train_sets(
    config: RunConfig, load: Callable[[DataPath, Reading], PromptSet]
) -> tuple[PromptSet, ...]:
    """Read the training sets; row numbers continue from one set to the next."""
    training, data = config.megatron_training, config.data_config
    alone = Reading(source_column=data.source_column)
    readings: list[tuple[DataPath, Reading]] = []
    if training.data_path is not None:
        readings.append((training.data_path, alone))
    readings += [(each.data_path, _source(config, each)) for each in data.train_sets]
    found: list[PromptSet] = []
    for path, reading in readings:
        chosen = replace(
            reading,
            first_uid=sum(each.rows for each in found),
            order_column=data.order_column,
            pass_rate_column=data.pass_rate_column,
            pass_rates=(data.pass_rate_low, data.pass_rate_high),
        )
        found.append(load(path, chosen))
    return tuple(found)


def _tests(test: PromptSet | None, eval_sets: Mapping[str, PromptSet]) -> dict[str, PromptSet]:
    return {**({"test": test} if test else {}), **eval_sets}


def _source(config: RunConfig, chosen: TrainSet | EvalSet) -> Reading:
    """Return where the rows of a set have their `data_source`."""
    if chosen.data_source is not None:
        return Reading(source=chosen.data_source)
    return Reading(source=chosen.name, source_column=config.data_config.source_column)


def _check_sources(config: RunConfig, data: RunData) -> None:
    """Refuse rows without a reward.

    Raises:
        ConfigError: A `data_source` has no entry.
    """
    rewarded = [each.data_source for each in config.data_config.rewards]
    for found in data.all_sets if rewarded else ():
        _has_entries(found, rewarded, "data_config.rewards")


def _check_teachers(config: RunConfig, data: RunData) -> None:
    """Refuse training rows without a teacher.

    Raises:
        ConfigError: A `data_source` has no entry.
    """
    teacher = config.teacher_config
    taught = [] if teacher is None else [each.data_source for each in teacher.models]
    for found in data.train_sets if taught else ():
        _has_entries(found, taught, "teacher_config.models")


def _has_entries(found: PromptSet, sources: list[str], key: str) -> None:
    counts = Counter(prompt.source for prompt in found.prompts)
    # Rows of a file without a name or a source column use the default.
    for source in counts.keys() - {*sources, ""}:
        raise ConfigError(
            f"{found.path}: {counts[source]} of {len(found.prompts)} prompts have "
            f"data_source={source!r}, which has no entry in {key} "
            f"({', '.join(sources)}){did_you_mean(source, sources)}"
        )


def _check_columns(config: RunConfig, data: RunData) -> None:
    """Refuse rows without the columns that their reward needs.

    Raises:
        ConfigError: Lists the existing columns.
    """
    if not config.rolls_out:
        return
    weights = config.reward_weights
    for source, name, signature in own_rewards(config):
        key = f"{config.reward_key(source)}={name!r}"
        for found in data.all_sets:
            rated = {each.source if each.source in weights else "" for each in found.prompts}
            if source in rated:
                _check_bound(key, signature, found, config.megatron_training.answer_column or "")


def _check_bound(
    key: str, signature: RewardSignature, found: PromptSet, answer_column: str
) -> None:
    try:
        signature.bound(found.columns, answer_column)
    except ValueError as error:
        raise ConfigError(
            f"{key} {error}; {found.path} has the columns {', '.join(found.columns)}"
        ) from error


def data_lines(data: RunData) -> Iterator[str]:
    """Yield lines about the rows read, the overlap of tests and training, and the stop tokens."""
    for found in data.all_sets:
        yield f"{found.path}: {_described(found)}"
    trained_on = {prompt.identity for prompt in data.train.prompts}
    for name, test in _tests(data.test, data.eval_sets).items():
        prompts = test.prompts
        if again := sum(prompt.identity in trained_on for prompt in prompts):
            yield (
                f"{again} of the {len(prompts)} {name} prompts are also training prompts, "
                "which raises the accuracy"
            )
    tokens = data.tokenizer.convert_ids_to_tokens(list(data.stop_token_ids))
    stops = [f"{token} ({id_})" for token, id_ in zip(tokens, data.stop_token_ids, strict=True)]
    stops += map(repr, data.stop_texts)
    yield f"a response ends with {' or '.join(stops)}"
    yield from image_notes(data.images, data.tokenizer)
    yield from _target_notes(data)


def few_prompts(config: RunConfig, data: RunData) -> Iterator[Finding]:
    """Yield a warning if there are fewer prompts than one step uses."""
    field, batch = "megatron_training.global_batch_size", config.megatron_training.global_batch_size
    prompts = len(data.train.prompts)
    if prompts < batch:
        need = f"exceeds the {prompts} prompts of the data: a step uses some more than once"
        yield broken(field, batch, need, prompts)


def _target_notes(data: RunData) -> Iterator[str]:
    """Yield how many tokens of demonstrations are targets, and those of the first one."""
    found = [each for each in data.train.prompts if isinstance(each, Demonstration)]
    for first in found[:1]:
        all_tokens = sum(len(each.token_ids) for each in found)
        learned = sum(sum(each.targets) for each in found)
        text = data.tokenizer.decode([*compress(first.token_ids, first.targets)])
        yield f"{learned:,} of {all_tokens:,} tokens are targets; in the first row: {shown(text)}"


def _described(found: PromptSet) -> str:
    """Return the number of rows and prompts of a set, and why the other rows were left out."""
    longest = max(len(prompt.token_ids) for prompt in found.prompts)
    what = "conversations" if isinstance(found.prompts[0], Demonstration) else "prompts"
    repeated = len(found.prompts) - len({prompt.identity for prompt in found.prompts})
    counts = {
        "longer ones dropped": found.dropped,
        "dropped by pass rate": found.filtered,
        "dropped as test prompts": found.tests,
        "duplicate prompts": repeated,
    }
    note = "".join(f", {count} {what}" for what, count in counts.items() if count)
    return f"{found.rows} rows, {what} of up to {longest} tokens{note}{found.note}"
