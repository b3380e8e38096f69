"""Model families of a user: specs, where they are found, and how they describe a model folder.

Only two parts of a spec are used here, the sizes of a model and the table of its tensors. The
module and its parallelise function are only named; they are loaded when the network is built.
Imports no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from mindrl.config.own_functions import named_object
from mindrl.errors import ConfigError, ModelError
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config
from mindrl.models.decoder import layer_of
from mindrl.models.description import ModelDescription, is_known
from mindrl.models.other_family import OwnFamily
from mindrl.models.placement import Shape
from mindrl.observability.units import quoted

FIELD = "megatron_training.own_models"
GROUP = "mindrl.archon_models"
"""Group of entry points: a name is a `model_type`, its value the location of a spec."""
_SIZES = "dtpc"


class OwnTensor(NamedTuple):
    """A tensor of the weight files."""

    shape: Shape
    cut: int | None = None
    """Dimension that tensor-parallel ranks cut equally; None: each has it whole. Ignored for
    embedding and head: they are cut by the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A user's model family."""

    model_type: str
    """`model_type` in config.json."""
    args: Callable[[Mapping[str, Any]], Any]
    """Maps the values of config.json to the argument of `module` and `table`."""
    table: Callable[[Any], Mapping[str, OwnTensor]]
    """Returns the tensors of the weight files by name, in the order in which a token passes them:
    those before the layers are on the first pipeline stage, those after them on the last."""
    module: str
    """`package.module:Class`, called with the result of `args` and the part that a stage holds."""
    parallelise: str = ""
    """`package.module:function`, called with the module and a function that takes each of its
    submodules that tensor-parallel ranks share. Required for t."""
    embedding: str
    head: str
    """Names of embedding and head; a head that the table lacks is tied to the embedding."""
    sizes: str = "dc"
    """Letters of allocation strings that the network supports: d, t, p, c."""


def own_description(folder: str, specs: Sequence[str]) -> ModelDescription | None:
    """Describe a model by a user's spec of its family; None if there is none.

    Uses the named `specs` first, and installed ones only for families that mindrl does not know.

    Raises:
        ConfigError: A spec cannot be loaded or is invalid.
        ModelError: The folder has no config.json, or the spec's parts do not fit it.
    """
    path, values = read_config(folder)
    family = values.get("model_type")
    named = (each for each in specs if spec_at(each).model_type == family)
    place = next(named, None)
    if place is None and not is_known(values):
        place = _installed(str(family))
    return None if place is None else _described(path, values, place)


@cache
def spec_at(place: str) -> ModelSpec:
    """Load and check a spec.

    Raises:
        ConfigError: It is missing, cannot be imported, or is incomplete.
    """
    found = named_object(FIELD, place)
    if not isinstance(found, ModelSpec):
        kind = type(found).__name__
        raise ConfigError(f"{FIELD}={place!r} is {quoted(found)} of type {kind}; need a ModelSpec")
    for fault in _faults(found):
        raise ConfigError(f"{FIELD}={place!r}: {fault}")
    return found


def args_of(path: Path, values: Mapping[str, Any], place: str) -> Any:
    """Return the result of a spec's `args` for a config.json.

    Raises:
        ModelError: `args` raised an error.
    """
    try:
        return spec_at(place).args(values)
    except Exception as error:
        raise ModelError(f"{path}: args of {place} {raised(error)}") from error


def raised(error: Exception) -> str:
    """Return the text that follows a user function's name when it raised an error."""
    return f"raised {type(error).__name__}: {error}"


def _installed(family: str) -> str | None:
    """Return the location of the spec that an installed package has for a family.

    Raises:
        ConfigError: Several packages have one, or the spec is of another family.
    """
    places = sorted({each.value for each in entry_points(group=GROUP, name=family)})
    if len(places) > 1:
        several = ", ".join(places)
        raise ConfigError(f"model_type={family!r}: {several} are installed; name one in {FIELD}")
    for place in places:
        if (other := spec_at(place).model_type) != family:
            raise ConfigError(f"entry point {family} of {GROUP}: {place} is of {other!r}")
    return places[0] if places else None


def _faults(spec: ModelSpec) -> Iterator[str]:
    """Yield faults of a spec that are visible without a model."""
    for name in ("model_type", "module", "embedding", "head", "parallelise", "sizes"):
        value = getattr(spec, name)
        if not isinstance(value, str) or not (value or name == "parallelise"):
            yield f"{name}={value!r} must be a non-empty string"
    for name in ("args", "table"):
        if not callable(value := getattr(spec, name)):
            yield f"{name}={value!r} must be a function"
    if not set(spec.sizes) <= set(_SIZES) or "d" not in spec.sizes:
        yield f"sizes={spec.sizes!r} must be d and some of t, p, c"
    if "t" in spec.sizes and not spec.parallelise:
        yield f"sizes={spec.sizes!r} has t, which needs parallelise"


def _described(path: Path, values: Mapping[str, Any], place: str) -> ModelDescription:
    spec, args = spec_at(place), args_of(path, values, place)
    try:
        table = dict(spec.table(args))
    except Exception as error:
        raise ModelError(f"{path}: table of {place} {raised(error)}") from error
    for fault in _bad_rows(table):
        raise ModelError(f"{path}: table of {place}: {fault}")
    head = spec.head if spec.head in table else spec.embedding
    shapes = {name: row.shape for name, row in table.items()}
    model = any_description(path, values, shapes, (spec.embedding, head))
    for fault in _misfits(spec, model, table):
        raise ModelError(f"{path}: table of {place}: {fault}")
    assert model.other is not None
    cuts = tuple(row.cut for row in table.values())
    own = OwnFamily(spec=place, sizes=spec.sizes)
    return replace(model, other=replace(model.other, cuts=cuts, styles=(), own=own))


def _bad_rows(table: Mapping[Any, Any]) -> Iterator[str]:
    for name, row in table.items():
        if not isinstance(name, str) or not isinstance(row, OwnTensor):
            yield f"{name!r}: {row!r} must be a name and an OwnTensor"
        elif not all(type(size) is int and size > 0 for size in row.shape):
            yield f"{name}: shape={row.shape!r} must be sizes of 1 or more"
        elif row.cut is not None and row.cut not in range(len(row.shape)):
            yield f"{name}: cut={row.cut!r} is not a dimension of shape={row.shape!r}"


def _misfits(
    spec: ModelSpec, model: ModelDescription, table: Mapping[str, OwnTensor]
) -> Iterator[str]:
    """Yield where a table does not match a decoder with the sizes of config.json."""
    matrix = (model.vocab_size, model.hidden_size)
    if spec.embedding not in table:
        yield f"no tensor {spec.embedding}, the embedding of the spec"
    for name in {spec.embedding, spec.head} & table.keys():
        if table[name].shape != matrix:
            yield f"{name}: shape={table[name].shape} must be vocab_size and hidden_size, {matrix}"
    count, layers = model.num_hidden_layers, [layer_of(name) for name in table]
    if sorted({layer for layer in layers if layer is not None}) != [*range(count)]:
        yield (
            f"num_hidden_layers={count}, so the layer numbers in tensor names must be 0 "
            f"to {count - 1}"
        )
        return
    before = [*table][: next(at for at, layer in enumerate(layers) if layer is not None)]
    if spec.embedding not in before or spec.head in before:
        yield f"{spec.embedding} must come before the layers, and {spec.head} after them"
