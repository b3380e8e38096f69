"""Figures of the prose in the code, of mode questions, and of the documents.

The prose of a source file is its docstrings, its attribute docstrings and its comments. Its texts
are its other strings of more than three words: errors, notes and help that users read.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from house_text import Figure, Sources
from syntax_trees import nodes_of

DIALECT: Mapping[str, str] = {
    "says, tells": r"says?|said|tells?|told",
    "behind": r"behind",
    "beside": r"besides?",
    "nobody, nothing, none of": r"nobody|nothing|nowhere|none of",
    "None where, empty where": r"(?:none|empty|nan) where",
    "whoever, whose": r"whoever|whomever|whatever|whose",
    "goes on": r"go(?:es)? on|going on|went on",
}
"""Phrases of the dialect that STYLE.md rejects, as regular expressions between word boundaries."""
DIALECT_IN_TEXTS: Mapping[str, str] = {
    **DIALECT,
    "draws, learns, lies, asked": r"draws?|drawn|drew|learns?|learned|lies?|asks?|asked",
}
"""The same for texts, with verbs that have a plainer word: generate, train, is in, need."""
FEWEST_WORDS = 4
"""Words of a text; shorter strings are names and parts."""
MODES = (
    "is_apart",
    "is_spread",
    "rolls_out",
    "starts_engines",
    "sft_config",
    "train_only",
    "rollout_only",
    "partial_rollout",
    "max_staleness",
    "filter_groups_enable",
    "step_order",
)
"""Names by which code asks which mode a run has."""
DOCUMENTS = ("README.md", "docs/**/*.md")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def prose_of(source: str) -> str:
    """Return the docstrings and comments of a source text, one per line.

    Bare strings after an assignment count: they document an attribute.
    """
    texts = [
        node.value.value
        for node in nodes_of(source)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(texts)


def texts_of(source: str) -> str:
    """Return the strings of at least `FEWEST_WORDS` words that are not prose, one per line.

    An f-string counts without its expressions.
    """
    nodes = nodes_of(source)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    prose |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = (_text(node) for node in nodes if id(node) not in prose)
    return "\n".join(text for text in texts if words_in([text]) >= FEWEST_WORDS)


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or " " for part in parts)
    return ""


def dialect_counts(text: str, dialect: Mapping[str, str] = DIALECT) -> Counter[str]:
    """Count the phrases of a dialect in a text."""
    flat = " ".join(text.split())
    return Counter(
        {
            name: len(re.findall(rf"\b(?:{pattern})\b", flat, flags=re.IGNORECASE))
            for name, pattern in dialect.items()
        }
    )


def mode_lines(sources: Sources) -> list[str]:
    """List the lines of code, as `path:line`, that ask for a mode."""
    return [line for path, text in sources.items() for line in _mode_lines_of(path, text)]


def _mode_lines_of(path: str, source: str) -> list[str]:
    name = re.compile(rf"\b({'|'.join(MODES)})\b")
    lines = enumerate(_code_of(source), start=1)
    return [f"{path}:{number}" for number, line in lines if name.search(line)]


def _code_of(source: str) -> list[str]:
    """Return the lines of a source text with its prose blanked out."""
    lines = source.splitlines()
    for node in nodes_of(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
    return [line.partition("  #")[0] if not line.lstrip().startswith("#") else "" for line in lines]


def words_in(texts: Iterable[str]) -> int:
    """Count words: runs of letters."""
    return sum(len(WORD.findall(text)) for text in texts)


def prose_figures(sources: Sources, code: Path) -> Iterator[Figure]:
    """Yield the figures of the prose in `sources`, and of the documents of the checkout `code`."""
    prose, texts, found = dict[str, str](), dict[str, str](), list[str]()
    for path, text in sources.items():
        prose[path], texts[path] = prose_of(text), texts_of(text)
        found += _mode_lines_of(path, text)
    yield from _dialect_figures("dialect", prose, DIALECT)
    yield from _dialect_figures("dialect in texts", texts, DIALECT_IN_TEXTS)
    rooms = Counter(line.split("/")[1] for line in found)
    yield Figure(
        group="modes",
        name="lines that ask for a mode",
        value=len(found),
        target="60",
        details=tuple(f"{room} {count}" for room, count in rooms.most_common()),
    )
    pages = [page for pattern in DOCUMENTS for page in sorted(code.glob(pattern))]
    words = words_in(page.read_text(encoding="utf-8") for page in pages)
    yield Figure(group="documents", name="words of documents", value=words, target="70000")


def _dialect_figures(title: str, texts: Sources, dialect: Mapping[str, str]) -> Iterator[Figure]:
    words = words_in(texts.values())
    by_file = {path: dialect_counts(text, dialect) for path, text in texts.items()}
    for name in dialect:
        counts = Counter({path: counts[name] for path, counts in by_file.items()})
        yield Figure(
            group="prose",
            name=f"{title} per 10,000 words: {name}",
            value=round(1e4 * counts.total() / max(words, 1), 1),
            target="5",
            details=tuple(f"{path} {count}" for path, count in counts.most_common(5) if count),
        )
