"""Files that a user's source file imports from its own folder."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def imported_files(source: Path) -> list[Path]:
    """Return the files below the folder of `source` that its import statements name.

    The imports of those files count too. Absolute names are looked up in that folder, and if it is
    a package, in the folder of the outermost package. Excludes mindrl and folders of installed
    packages.
    """
    folder = outer = source.parent
    while (outer / "__init__.py").is_file():
        outer = outer.parent
    queue = [source]
    for file in queue:
        if folder.name not in _INSTALLED:
            found = dict.fromkeys(_named_files(file, (folder, outer)))
            queue += [each for each in found if folder in each.parents and each not in queue]
    return queue[1:]


def _named_files(file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that the import statements of a file name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        # An extension module, or a file that no import can read.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _module_files(roots, each.name)
        elif isinstance(node, ast.ImportFrom):
            # Level 1 is the folder of the file.
            folders = [*file.parents][node.level - 1 : node.level] if node.level else roots
            for each in node.names:
                yield from _module_files(folders, f"{node.module or ''}.{each.name}".lstrip("."))


def _module_files(folders: Sequence[Path], name: str) -> Iterator[Path]:
    """Yield the existing files of a module and of the packages that contain it."""
    parts = name.split(".")
    if parts[0] == "mindrl":
        return
    for folder in folders:
        stems = [folder.joinpath(*parts[:length]) for length in range(len(parts) + 1)]
        files = [stem / "__init__.py" for stem in stems]
        files += [stem.with_name(f"{stem.name}.py") for stem in stems[1:]]
        yield from (each for each in files if each.is_file())
