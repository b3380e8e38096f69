"""Print a script that completes the command in a shell: `mindrl completion bash`."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from shlex import quote

from mindrl.preflight.shipped import config_folder
from mindrl.programs.arguments import Program
from mindrl.programs.command_line import FLAGS, VALUE_OPTIONS
from mindrl.programs.config_files import RECIPE, SUFFIX, run_names
from mindrl.programs.entry import OTHER_NAMES, PROGRAMS
from mindrl.programs.schema import REFERENCE, Schema, configuration_schema

_EXAMPLES = """\
examples:
  mindrl completion bash > ~/.local/share/bash-completion/completions/mindrl
  mindrl completion zsh > ~/.zfunc/_mindrl
  mindrl completion fish > ~/.config/fish/completions/mindrl.fish
"""
_CHOICE = r"""
# Print what may stand here. Arguments: the words after mindrl; the last one is incomplete.
_mindrl_candidates() {
    local program='' previous='' value
    if [ $# -gt 1 ]; then
        program=$1
        shift
        if [ $# -gt 1 ] && _mindrl_words "$program $1" '' >/dev/null; then
            program="$program $1"
            shift
        fi
    fi
    while [ $# -gt 1 ]; do
        previous=$1
        shift
    done
    case $1 in
    *=*)
        for value in $(_mindrl_values "$program" "${1%%=*}"); do
            printf '%s\n' "${1%%=*}=$value"
        done
        return
        ;;
    esac
    case $previous in
    -*) _mindrl_values "$program" "$previous" && return ;;
    esac
    _mindrl_words "$program" "$1"
}
"""
_BASH = r"""
_mindrl_bash() {
    local line="${COMP_LINE:0:COMP_POINT}" current
    local -a words
    read -r -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]} - 1]}"
    mapfile -t COMPREPLY < <(compgen -W "$(_mindrl_candidates "${words[@]:1}")" -- "$current")
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
    # Of key=value, bash replaces only the value.
    if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
}
complete -o default -F _mindrl_bash mindrl
"""
_ZSH = r"""
_mindrl() {
    local -a found
    found=(${(f)"$(_mindrl_candidates "${(@)words[2,CURRENT-1]}" "$PREFIX")"})
    compadd -S '' -- ${(M)found:#*[=.]}
    compadd -- ${found:#*[=.]}
    if ((! $#found)); then
        compset -P '*='
        _files
    fi
}
if [ "$funcstack[1]" = _mindrl ]; then
    _mindrl "$@"
else
    compdef _mindrl mindrl
fi
"""
_FISH = r"""
# Print what may stand here. Arguments: the words after mindrl; the last one is incomplete.
function _mindrl_candidates
    set -l program ''
    set -l previous ''
    if test (count $argv) -gt 1
        set program $argv[1]
        set -e argv[1]
        if test (count $argv) -gt 1; and _mindrl_words "$program $argv[1]" '' >/dev/null
            set program "$program $argv[1]"
            set -e argv[1]
        end
    end
    test (count $argv) -gt 1; and set previous $argv[-2]
    if string match -q -- '*=*' $argv[-1]
        set -l key (string replace -r '=.*' '' -- $argv[-1])
        for value in (_mindrl_values "$program" $key)
            printf '%s\n' $key=$value
        end
        return
    end
    string match -q -- '-*' $previous; and _mindrl_values "$program" $previous; and return
    _mindrl_words "$program" $argv[-1]
end
function _mindrl_fish
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    string match -- "$current*" (_mindrl_candidates $words[2..-1] "$current")
end
# Where nothing is known, fish completes files.
complete -c mindrl -n 'count (_mindrl_fish) >/dev/null' -f -a '(_mindrl_fish)'
"""
_SHELLS = {
    "bash": ("", _CHOICE + _BASH),
    "zsh": ("#compdef mindrl\n", _CHOICE + _ZSH),
    "fish": ("", _FISH),
}
_Words = tuple[str, ...]
_LITERALS: Mapping[str, _Words] = {"boolean": ("true", "false"), "null": ("null",)}


def script(shell: str) -> str:
    """Return the script of a shell. It starts no Python: it contains the words of this version."""
    schema = configuration_schema()
    keys = dict(_keys(schema, schema))
    sections = dict.fromkeys(f"{key.partition('.')[0]}." for key in keys)
    programs, options = _programs()
    values = options | {f"* {key}": words for key, words in keys.items()}
    arms: dict[str, dict[_Words, str]] = {
        "keys": {
            ("-*",): ":",
            ("*.*",): _printed([f"{key}=" for key in keys]),
            ("*",): _printed(sections),
        },
        "words": {**{(name,): call for name, call in programs.items()}, ("*",): "return 1"},
        "values": _grouped(values) | {("*",): "return 1"},
    }
    head, tail = _SHELLS[shell]
    function = _fish_function if shell == "fish" else _function
    return "".join([head, *(function(name, each) for name, each in arms.items()), tail])


def _function(name: str, arms: Mapping[_Words, str]) -> str:
    """Return a function of bash and zsh that selects by its arguments."""

    def spelled(pattern: str) -> str:
        return "*".join(quote(part) if part else "" for part in pattern.split("*")) or "''"

    lines = [f"    {'|'.join(map(spelled, those))}) {call} ;;\n" for those, call in arms.items()]
    subject = '"$1 $2"' if name == "values" else '"$1"'
    return f"_mindrl_{name}() {{\n    case {subject} in\n{''.join(lines)}    esac\n}}\n"


def _fish_function(name: str, arms: Mapping[_Words, str]) -> str:
    """Return the same function of fish, which numbers arguments otherwise."""
    lines = []
    for those, call in arms.items():
        patterns = " ".join(f"'{pattern}'" for pattern in those)
        lines += [f"        case {patterns}", f"            {call.replace('$2', '$argv[2]')}"]
    subject = '"$argv[1] $argv[2]"' if name == "values" else '"$argv[1]"'
    begin = [f"function _mindrl_{name}", f"    switch {subject}"]
    return "\n".join([*begin, *lines, "    end", "end", ""])


def _grouped(values: Mapping[str, _Words]) -> dict[_Words, str]:
    """Return the calls that print values by patterns; equal values have one call."""
    patterns: dict[_Words, list[str]] = defaultdict(list)
    for pattern, words in values.items():
        patterns[words].append(pattern)
    return {tuple(those): _printed(words) for words, those in patterns.items()}


def _printed(words: Iterable[str]) -> str:
    """Return the call that prints words, one per line."""
    shown = " ".join(map(quote, words))
    return f"printf '%s\\n' {shown}" if shown else ":"


def _programs() -> tuple[dict[str, str], dict[str, _Words]]:
    """Return by program the call that prints its words, and by option its values."""
    names = (*PROGRAMS, *OTHER_NAMES)
    first = dict.fromkeys(name.partition(" ")[0] for name in names)
    calls = {"": _printed([*first, "--help", "--version"])}
    for group in (name for name in first if name not in names):
        own = [name.partition(" ")[2] for name in names if name.startswith(f"{group} ")]
        calls[group] = _printed([*own, "--help"])
    values: dict[str, _Words] = {}
    for name in names:
        module, _ = PROGRAMS[OTHER_NAMES.get(name, name).partition(" --")[0]]
        options, takes_keys = _options(import_module(f"mindrl.programs.{module}").PROGRAM)
        calls[name] = _printed(options) + ('; _mindrl_keys "$2"' if takes_keys else "")
        values |= {
            f"{name} {option.rstrip('=')}": words
            for option, words in options.items()
            if words is not None
        }
    return calls, values


def _options(program: object) -> tuple[dict[str, _Words | None], bool]:
    """Return the words of a program, each with its values, and whether keys may follow.

    A word without values, such as a flag, has None; a value that only the user knows is empty.
    """
    configs = {"--config-name": tuple(run_names(config_folder()))}
    if not isinstance(program, Program):
        recipes = sorted(path.stem for path in (config_folder() / RECIPE).glob(f"*{SUFFIX}"))
        own = dict.fromkeys(VALUE_OPTIONS, ()) | {"--cfg": ("job",)} | configs
        return {**own, f"+{RECIPE}=": tuple(recipes), **dict.fromkeys(FLAGS)}, True
    found: dict[str, _Words | None] = {}
    actions = program.parser("")._actions
    for action in actions:
        choices = tuple(map(str, action.choices or ()))
        if not action.option_strings:
            found |= dict.fromkeys(choices)
        option = (action.option_strings or [""])[-1]
        if option:
            found[option] = None if action.nargs == 0 else choices or configs.get(option, ())
    return found, any(action.dest == "overrides" for action in actions)


def _keys(whole: Schema, section: Schema, path: str = "") -> Iterator[tuple[str, _Words]]:
    """Yield each key of a configuration with its values; empty if they are not enumerated."""
    for name, schema in section["properties"].items():
        kinds = [*_kinds(schema)]
        named = [kind["$ref"].rpartition("/")[2] for kind in kinds if "$ref" in kind]
        inner = next((whole["$defs"][each] for each in named if each != REFERENCE), None)
        if inner is not None:
            yield from _keys(whole, inner, f"{path}{name}.")
        elif path:
            words = tuple(dict.fromkeys(word for kind in kinds for word in _literals(kind)))
            yield f"{path}{name}", () if words == ("null",) else words


def _kinds(schema: Schema) -> Iterator[Schema]:
    """Yield the alternatives of a schema."""
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _kinds(each)
    else:
        yield schema


def _literals(kind: Schema) -> Iterable[str]:
    """Return the values that a schema enumerates."""
    if "const" in kind:
        return [str(kind["const"])]
    return map(str, kind.get("enum", _LITERALS.get(str(kind.get("type")), ())))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell")


def _print(options: argparse.Namespace) -> int:
    sys.stdout.write(script(options.shell))
    return 0


PROGRAM = Program(
    about="Print a script that completes programs, options, names of configurations, keys and "
    "their values. Print it again after an update of mindrl.",
    examples=_EXAMPLES,
    add_options=_add_options,
    run=_print,
)
