"""Inputs of a reward function, derived from the names of its parameters."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from mindrl.config.finding import did_you_mean

RESPONSE, REFERENCE, COMPLETION = "response", "reference", "completion"
COLUMN = "column."
"""Prefix of the name of a column of the row."""
_FIELDS = ("prompt", "messages", "data_source", "token_ids", "prompt_token_ids", "group_responses")
_ONE = {
    **{name: name for name in (RESPONSE, REFERENCE, *_FIELDS)},
    "solution_str": RESPONSE,
    "completion": RESPONSE,
    "ground_truth": REFERENCE,
}
_MANY = {
    "responses": RESPONSE,
    "solution_strs": RESPONSE,
    "references": REFERENCE,
    "ground_truths": REFERENCE,
    "prompts": "prompt",
    "data_sources": "data_source",
    "prompt_ids": "prompt_token_ids",
}
_AS_TRL = {"prompts": "asked", "completions": COMPLETION, "completion_ids": "token_ids"}
"""For a function with a parameter `completions` or `completion_ids`."""
_BATCH = ("responses", "solution_strs", "completions", "completion_ids")
_ANSWERS = {RESPONSE, COMPLETION, "token_ids", "group_responses"}
_NEED = (
    "(response: str, reference: str) -> float, or parameters by name: "
    f"{', '.join((RESPONSE, REFERENCE, *_FIELDS))}, and columns of the row"
)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, kw_only=True)
class RewardSignature:
    """The parameters of a reward function."""

    text: str
    """The signature as Python prints it."""
    parameters: tuple[inspect.Parameter, ...]
    """Without the parameters that the configuration sets."""
    is_async: bool

    @property
    def is_batch(self) -> bool:
        """Whether it takes and returns lists."""
        return any(name in self._names for name in _BATCH)

    @property
    def columns(self) -> frozenset[str] | None:
        """Parameters that may be columns of the row; None: all existing columns."""
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in self.parameters):
            return None
        known = self._known.keys() - {"ground_truth"}
        names = {name for name in self._names if name not in known}
        return frozenset(names | {name.removesuffix("s") for name in names if self.is_batch})

    @property
    def takes_chat(self) -> bool:
        """Whether it takes the messages of the prompt."""
        return self._is_trl or "messages" in self._names

    def bound(
        self, columns: Collection[str] | None, answer_column: str = ""
    ) -> tuple[tuple[str, str], ...]:
        """Return the input of each parameter; an empty name stands for a positional parameter.

        Args:
            columns: Columns of the rows; None if unknown, then missing columns are no error.
            answer_column: Parameter name that also stands for the reference text, except in a list.

        Raises:
            ValueError: It takes no response, or an input that does not exist.
        """
        if not self._names and any(each.kind in _BY_PLACE for each in self.parameters):
            return (("", RESPONSE), ("", REFERENCE))
        there = {*(columns or ())}
        found, unknown = self._found(there, answer_column)
        if not _ANSWERS & {*found.values()}:
            raise ValueError(f"has the signature {self.text}; need {_NEED}")
        if unknown and columns is not None:
            hint = did_you_mean(unknown[0], [*self._known, *there])
            raise ValueError(
                f"has the parameter {unknown[0]!r}, which is not a column of the "
                f"rows{hint}; need {_NEED}"
            )
        places = {each.name for each in self.parameters if each.kind in _BY_PLACE}
        order = [name for name in self._names if name in found]
        named = [("" if name in places else name, found[name]) for name in order]
        return (*named, *self._rest(self._names, there))

    def _found(
        self, columns: Collection[str], answer_column: str
    ) -> tuple[dict[str, str], list[str]]:
        """Return the parameters with known inputs, and the required ones without."""
        fields = {name: self._field(name, columns, answer_column) for name in self._names}
        found = {name: field for name, field in fields.items() if field}
        required = [each.name for each in self._plain if each.default is each.empty]
        unknown = [name for name in required if name not in found]
        for need, kinds in ((RESPONSE, _ANSWERS), (REFERENCE, {REFERENCE})):
            # With several required parameters, unknown names stand for response and reference.
            if unknown and len(required) > 1 and not kinds & {*found.values()}:
                found[unknown.pop(0)] = need
        return found, unknown

    @property
    def _names(self) -> list[str]:
        return [each.name for each in self._plain]

    @property
    def _plain(self) -> list[inspect.Parameter]:
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [each for each in self.parameters if each.kind not in kinds]

    @property
    def _is_trl(self) -> bool:
        return "completions" in self._names or "completion_ids" in self._names

    @property
    def _known(self) -> Mapping[str, str]:
        if not self.is_batch:
            return _ONE
        return _ONE | _MANY | (_AS_TRL if self._is_trl else {})

    def _field(self, name: str, columns: Collection[str], answer_column: str) -> str | None:
        # `ground_truth` is verl's name of the reference; if it is a column, TRL passes that.
        if name in self._known and not (name == "ground_truth" and name in columns):
            return self._known[name]
        if name == answer_column and not self.is_batch:
            return REFERENCE
        plural_of = name.removesuffix("s") if self.is_batch else name
        column = name if name in columns else plural_of
        return f"{COLUMN}{column}" if column in columns else None

    def _rest(self, named: Collection[str], columns: Iterable[str]) -> list[tuple[str, str]]:
        """Return the inputs of `**kwargs`: all columns, and the inputs that TRL always passes."""
        if self.columns is not None:
            return []
        rest = {name: f"{COLUMN}{name}" for name in sorted(columns)}
        rest |= _AS_TRL if self._is_trl else {}
        return [(name, field) for name, field in rest.items() if name not in named]


def made_by(
    target: Callable[..., object], arguments: Mapping[str, object]
) -> Callable[..., object] | None:
    """Return the reward that a factory returns for its arguments, as in TRL.

    Returns None if the function is a reward itself or returns no callable. It is called only if its
    parameters are no inputs of a reward.
    """
    if not inspect.isfunction(target):
        return None
    try:
        signature_of(target, arguments).bound(None)
    except ValueError:
        try:
            inspect.signature(target).bind(**arguments)
        except TypeError:
            return None
        made = target(**arguments)
        return made if callable(made) else None
    return None


def signature_of(target: Callable[..., object], given: Collection[str] = ()) -> RewardSignature:
    """Return the signature of a function, a callable object or a class with `__call__`.

    `given` are the parameters that the configuration sets.

    Raises:
        ValueError: It is not a valid reward function.
    """
    called = target
    if inspect.isclass(target):
        if all("__call__" not in vars(each) for each in target.__mro__):
            raise ValueError("is a class without __call__; add one")
        called = target.__call__
    elif not inspect.isroutine(target) and not isinstance(target, partial):
        called = type(target).__call__
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise ValueError("is a generator; need a function that returns the score")
    keywords = target.keywords if isinstance(target, partial) else {}
    try:
        signature = inspect.signature(called if inspect.isclass(target) else target)
    except ValueError:  # a function written in C may have none; its calls are checked all the same
        nothing = inspect.Parameter("response", inspect.Parameter.VAR_POSITIONAL)
        return RewardSignature(text="(...)", parameters=(nothing,), is_async=False)
    parameters = [*signature.parameters.values()][inspect.isclass(target) :]
    return RewardSignature(
        text=str(signature),
        parameters=tuple(each for each in parameters if each.name not in {*keywords, *given}),
        # Check the function itself: a decorator may await the wrapped one.
        is_async=inspect.iscoroutinefunction(called),
    )
