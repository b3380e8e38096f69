"""Readable messages for the errors of Hydra, OmegaConf and YAML about a configuration."""

import re

import yaml

_HOLDS = "a value must be text, a number, true, false, null, a list or a section"
_WORDS = {
    r"Could not append to config\. An item is already at '([^']+)'": (
        "+{0}: the key exists already; remove the +"
    ),
    r"Could not override '([^']+)'": "{0} is not in the configuration; write +{0}=VALUE",
    r"The value of '([^']+)' is (.*) and not (.*)\.": (
        "~{0}={2}: its value is {1}; write ~{0} alone"
    ),
    r"Could not delete (?:from config\. )?'([^']+)'": "~{0}: no such key; remove it",
    r"Override (\S+) looks like a config group": (
        "{0}: @ is for config groups, but this is a key; write KEY=VALUE, such as "
        "actor_config.lr=1e-6"
    ),
    r"force-add of config groups is not supported: '\++([^']+)'": "++{0}: write +{0}",
    r"Multiple values for (\S+)\. To override": "{0} is given twice; give it once",
    r"(\S+) appears more than once in the final defaults list": (
        "{0} is twice in the defaults list; name it once"
    ),
    r"Config group override must be a string or a list": (
        "a config group needs a name or a list of names, such as +recipe=gspo"
    ),
    r"Error merging override (\S+)": "{0} does not match the type of the existing value",
    r"Environment variable '([^']+)' not found": (
        "the environment variable {0} is not set; set it, or give a default: ${{oc.env:{0},VALUE}}"
    ),
    r"Interpolation key '([^']+)' not found": (
        "${{{0}}} is not a key; write a full key, such as ${{actor_config.lr}}"
    ),
    r"Unsupported interpolation type (\S+)": (
        "${{{0}:..}} is an unknown resolver; use a known one, such as ${{oc.env:HOME}}"
    ),
    r"Recursive interpolation": "it refers to itself; write a value",
    r"viable alternative|GrammarParseError|mismatched input|extraneous input|token recog": (
        "a reference cannot be read; write it like ${{actor_config.lr}}, or \\${{ as text"
    ),
    r"\w+ raised while resolving interpolation: (.*)": "a reference cannot be resolved: {0}",
    r"Incompatible key type 'NoneType'": "a key is null; a key must be text, such as lr or 'null'",
    r"Incompatible key type '(\w+)'": "a key has the type {0}; a key must be text, such as lr",
    r"Value '(\w+)' is not a supported primitive type": "it has the type {0}; " + _HOLDS,
    r"Invalid loaded object type": (
        "the file must contain sections with keys, such as actor_config: {{lr: 1e-6}}"
    ),
    r"Merge error: .*HydraConf": "hydra must be a section with keys, such as hydra.run.dir",
}
"""By pattern of their message, our message; the first match counts."""


def in_our_words(error: Exception) -> str:
    """Return a one-line message for an error, starting with its key if known."""
    # After `full_key:` OmegaConf names its classes.
    said = " ".join(str(error).partition("full_key:")[0].split())
    text = said or type(error).__name__
    for pattern, words in _WORDS.items():
        if match := re.search(pattern, said):
            text = words.format(*match.groups())
            break
    key = getattr(error, "full_key", None)
    return f"{key}: {text}" if key else text


def why_unreadable(error: Exception) -> str:
    """Return the text that follows the path of an unreadable file: line and reason."""
    match error:
        case UnicodeDecodeError():
            line = error.object[: error.start].count(b"\n") + 1
            return f", line {line}: the byte {error.object[error.start]:#x} is not UTF-8"
        case RecursionError():
            return " is nested too deeply"
        case yaml.MarkedYAMLError() if error.problem_mark is not None:
            text = " ".join(filter(None, [error.context, error.problem]))
            return f", line {error.problem_mark.line + 1}: {text}"
        case OSError() if error.strerror:
            return f": {error.strerror}"
    return f": {in_our_words(error)}"
