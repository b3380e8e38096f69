"""Figures of the prose in the code, of mode questions, and of the documents.

The prose of a source file is its docstrings, its attribute docstrings and its comments.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from house_text import Figure, Sources

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
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(texts)


def dialect_counts(prose: str) -> Counter[str]:
    """Count the phrases of the dialect in a text."""
    flat = " ".join(prose.split())
    return Counter(
        {
            name: len(re.findall(rf"\b(?:{pattern})\b", flat, flags=re.IGNORECASE))
            for name, pattern in DIALECT.items()
        }
    )


def mode_lines(sources: Sources) -> list[str]:
    """List the lines of code, as `path:line`, that ask for a mode."""
    name = re.compile(rf"\b({'|'.join(MODES)})\b")
    return [
        f"{path}:{number}"
        for path, text in sources.items()
        for number, line in enumerate(_code_of(text), start=1)
        if name.search(line)
    ]


def _code_of(source: str) -> list[str]:
    """Return the lines of a source text with its prose blanked out."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
    return [line.partition("  #")[0] if not line.lstrip().startswith("#") else "" for line in lines]


def words_in(texts: Iterable[str]) -> int:
    """Count words: runs of letters."""
    return sum(len(WORD.findall(text)) for text in texts)


def prose_figures(sources: Sources, code: Path) -> Iterator[Figure]:
    """Yield the figures of the prose in `sources`, and of the documents of the checkout `code`."""
    prose = {path: prose_of(text) for path, text in sources.items()}
    words = words_in(prose.values())
    by_file = {path: dialect_counts(text) for path, text in prose.items()}
    for name in DIALECT:
        counts = Counter({path: counts[name] for path, counts in by_file.items()})
        yield Figure(
            group="prose",
            name=f"dialect per 10,000 words: {name}",
            value=round(1e4 * counts.total() / max(words, 1), 1),
            target="5",
            details=tuple(f"{path} {count}" for path, count in counts.most_common(5) if count),
        )
    found = mode_lines(sources)
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
