"""Parse the overrides that a shell script passes to verl; the script is not executed. Pure."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mindrl.errors import ConfigError
from mindrl.migrate.shell_words import CLOSING, OPENING, Scanner, ShellWord, unknown_word

_OVERRIDE = re.compile(r"\+*([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_DELETION = re.compile(r"~([A-Za-z_][^=]*)(?:=.*)?", re.DOTALL)
_OF_VERL = re.compile(r"\+*(actor_rollout_ref|algorithm|data|trainer|critic)\.\w[\w.]*=")
_OTHER_PROGRAM = re.compile(r"sft|generation|eval")
_OWN_FILES = ("", "ppo_trainer", "ppo_megatron_trainer")


@dataclass(frozen=True, kw_only=True)
class Script:
    """Overrides that a script passes to verl."""

    overrides: tuple[str, ...]
    """Such as `data.train_batch_size=256`."""
    unresolved: Mapping[str, str]
    """Keys whose value cannot be read from the script alone, with the missing part, such as
    `$1`."""
    unread: tuple[str, ...] = ()
    """Arguments that may set further keys, such as `$EXTRA_ARGS` or `actor@GROUP=FILE`."""
    deleted: tuple[str, ...] = ()
    """Keys and sections that the script deletes from verl's own configuration, as `~data.seed`."""
    config_name: str = ""
    """Configuration file of the run; empty if it is one of verl's own."""


def read_script(text: str, variables: Mapping[str, str]) -> Script:
    """Return the overrides of the only verl command in a script.

    Args:
        text: The script.
        variables: Variables that are set before the script starts, such as HOME.

    Raises:
        ConfigError: It starts no run of verl or more than one, or a quotation mark is not closed.
    """
    reader = _Reader(variables={name: (ShellWord(value),) for name, value in variables.items()})
    reader.read(text)
    arguments = _the_one(reader.starts)
    overrides: dict[str, str] = {}
    unresolved: dict[str, str] = {}
    unread: list[str] = []
    deleted: list[str] = []
    for word in arguments:
        if (deletion := _DELETION.fullmatch(word.text)) is not None:
            deleted.append(deletion[1])
            for key in [each for each in (*overrides, *unresolved) if _is_in(each, deletion[1])]:
                overrides.pop(key, None)
                unresolved.pop(key, None)
        found = _OVERRIDE.fullmatch(word.spelled)
        if found is None:
            unread += _other_overrides(word)
            continue
        key, value = found.groups()
        overrides.pop(key, None)
        unresolved.pop(key, None)
        if word.unknown:
            unresolved[key] = ", ".join(dict.fromkeys(word.unknown))
        else:
            overrides[key] = f"{key}={value}"
    return Script(
        overrides=tuple(overrides.values()),
        unresolved=unresolved,
        unread=tuple(dict.fromkeys(unread)),
        deleted=tuple(dict.fromkeys(deleted)),
        config_name=_config_name([each.text for each in arguments]),
    )


def _other_overrides(word: ShellWord) -> tuple[str, ...]:
    """Return what an argument that is no override of a key may set keys with."""
    if word.text.startswith(("-", "~")):
        return ()
    return word.unknown or ((word.text,) if "=" in word.text else ())


def _is_in(key: str, section: str) -> bool:
    """Return whether a key is in a section, or is that key."""
    return f"{key}.".startswith(f"{section}.")


def _the_one(starts: list[tuple[str, list[ShellWord]]]) -> list[ShellWord]:
    """Return the arguments of the only verl command."""
    other = next((program for program, _ in starts if _OTHER_PROGRAM.search(program)), None)
    if other is not None:
        raise ConfigError(f"it starts {other}; only PPO, GRPO and DAPO runs can be imported")
    loose = [arguments[0].text for program, arguments in starts if not program]
    if loose and len(starts) > 1:
        raise ConfigError(
            f"{loose[0]} is a separate command; end the line before it with a backslash"
        )
    if len(starts) != 1:
        raise ConfigError(
            f"{len(starts) or 'no'} commands with verl overrides, such as "
            "algorithm.adv_estimator=grpo; exactly one is required"
        )
    return starts[0][1]


def _config_name(arguments: list[str]) -> str:
    """Return the configuration file that the arguments name; empty if it is one of verl's own."""
    names = [each.partition("=")[2] for each in arguments if each.startswith("--config-name=")]
    names += [
        name for option, name in itertools.pairwise(arguments) if option in ("--config-name", "-cn")
    ]
    name = names[-1].removesuffix(".yaml") if names else ""
    return "" if name in _OWN_FILES else name


@dataclass
class _Reader:
    """Processes a script command by command."""

    variables: dict[str, tuple[ShellWord, ...]]
    starts: list[tuple[str, list[ShellWord]]] = field(default_factory=list)
    """Program and arguments of each command with verl overrides; the program may be empty."""
    depth: int = 0
    """Nesting depth of conditions, loops and functions around the command."""

    def read(self, text: str) -> None:
        for separator, words in Scanner(text, self.variables).commands():
            self._command(words, is_conditional=separator in ("&&", "||"))

    def _command(self, words: Iterator[ShellWord], *, is_conditional: bool) -> None:
        """Store the variables that a command assigns, or the arguments that it passes to verl."""
        others: list[ShellWord] = []
        for word in words:
            if others or not word.precedes:
                others.append(word)
            elif word.assigns:
                self._assign(word, is_conditional=is_conditional or self.depth > 0)
            else:
                self.depth += (word.text in OPENING) - (word.text in CLOSING)
        if any(_OF_VERL.match(each.text) for each in others):
            self.starts.append(_divided(others))

    def _assign(self, word: ShellWord, *, is_conditional: bool) -> None:
        name, _, value = word.spelled.partition("=")
        name, adds = name.removesuffix("+"), name.endswith("+")
        items = word.items if word.items is not None else (ShellWord(value, word.unknown),)
        before = self.variables.get(name, ())
        if adds and word.items is None:
            first = before[0] if before else ShellWord("")
            items = (first + items[0], *before[1:])
        elif adds:
            items = (*before, *items)
        if is_conditional and items != before:
            items = _either(before, items, f"${name}, which a condition sets", word.items is None)
        self.variables[name] = items


def _either(
    before: tuple[ShellWord, ...], after: tuple[ShellWord, ...], missing: str, is_text: bool
) -> tuple[ShellWord, ...]:
    """Return what is certain of two values of a variable; only a shell can decide between them."""
    if not is_text:
        return _merged(before, after, missing)
    first, second = (
        tuple(part for each in value for part in each.split() if part.spelled)
        for value in (before, after)
    )
    if not any(_OVERRIDE.match(part.spelled) for part in (*first, *second)):
        return (unknown_word(missing),)
    merged = _merged(first, second, missing)
    return (sum((ShellWord(" ") + part for part in merged), ShellWord("")),)


def _merged(
    before: tuple[ShellWord, ...], after: tuple[ShellWord, ...], missing: str
) -> tuple[ShellWord, ...]:
    """Return the elements that an array may have; those of only one state lose their value."""
    kept = [each if each in after else _without_value(each, missing) for each in before]
    return (*kept, *(_without_value(each, missing) for each in after if each not in before))


def _without_value(word: ShellWord, missing: str) -> ShellWord:
    """Return a word of which only the key of an override is known."""
    found = _OVERRIDE.fullmatch(word.spelled)
    return unknown_word(missing, f"{found[1]}=" if found else "")


def _divided(words: list[ShellWord]) -> tuple[str, list[ShellWord]]:
    """Split a command into the program that it starts and that program's arguments."""
    if _OVERRIDE.match(words[0].text):
        return "", words
    texts = [each.text for each in words]
    if "-m" in texts[:-1]:
        at = texts.index("-m") + 1
    else:
        at = next((at for at, text in enumerate(texts) if text.endswith(".py")), 0)
    return texts[at], words[at + 1 :]
