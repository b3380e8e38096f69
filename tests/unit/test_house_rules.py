"""The rules of the house that no tool knows.

Each rule is a function from a source text to its findings. The planted sources at the end prove
that each rule finds what it is for.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
VENDOR_WORDS = frozenset({"npu", "npus", "cuda", "ascend", "hccl", "nccl"})
VENDOR_HOMES = ("mindrl/platform/", "mindrl/config/", "mindrl/migrate/")
# Names that are not ours to choose: a key that MindSpeed-RL users know, a function of Megatron.
GIVEN_NAMES = re.compile(
    r"\b(num_npus|npus_per_node|model_parallel_cuda_manual_seed|get_cuda_rng_tracker)\b"
)
FORBIDDEN_CALLS = {
    "eval": "executes text",
    "exec": "executes text",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "pickle.load": "executes what the file says",
    "pickle.loads": "executes what the bytes say",
    "pickle.Unpickler": "executes what the file says",
    "cloudpickle.load": "executes what the file says",
    "cloudpickle.loads": "executes what the bytes say",
    "dill.load": "executes what the file says",
    "dill.loads": "executes what the bytes say",
    "joblib.load": "executes what the file says",
    "torch.load": "unpickles; read safetensors",
    "yaml.load": "builds objects; use yaml.safe_load",
    "yaml.unsafe_load": "builds objects; use yaml.safe_load",
    "yaml.full_load": "builds objects; use yaml.safe_load",
}
FORBIDDEN_ARGUMENTS = frozenset({"allow_pickle", "shell", "trust_remote_code"})
ENVIRONMENT = ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv")
# Written in two parts, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
TEXT_SUFFIXES = frozenset({".py", ".sh", ".yaml", ".yml", ".md", ".toml", ".cfg"})
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

Rule = Callable[[str], list[str]]


def sources(*folders: str) -> list[str]:
    """List the Python files under `folders`, as paths from the root of the checkout."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def words(text: str) -> Iterator[str]:
    """Split names and sentences: NPUPlatform is npu and platform, torch_npu is torch and npu."""
    for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text):
        yield word.lower()


def docstrings(source: str) -> set[ast.AST]:
    """Find the string nodes that stand alone, as docstrings do."""
    statements = (node for node in nodes_of(source) if isinstance(node, ast.Expr))
    return {node.value for node in statements if isinstance(node.value, ast.Constant)}


def texts(node: ast.AST) -> list[str]:
    """List the identifiers or the string that `node` itself carries."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
            return [name]
        case ast.alias(name=name, asname=alias):
            return [name, alias or ""]
    return []


def vendor_words(source: str) -> list[str]:
    skipped = docstrings(source)
    return [
        f"line {getattr(node, 'lineno', '?')}: {text!r} names a vendor"
        for node in nodes_of(source)
        if node not in skipped
        for text in texts(node)
        if VENDOR_WORDS & set(words(GIVEN_NAMES.sub("", text)))
    ]


def long_functions(source: str) -> list[str]:
    # Short sources need not be parsed.
    if source.count("\n") < MAX_FUNCTION_LINES:
        return []
    functions = (
        node
        for node in nodes_of(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = ((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions)
    return [f"{name} has {lines} lines" for name, lines in lengths if lines > MAX_FUNCTION_LINES]


def long_file(source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{lines} lines"] if lines > MAX_FILE_LINES else []


def imported_names(source: str) -> dict[str, str]:
    """Map each local name that an import binds to the full name of what it is."""
    names: dict[str, str] = {}
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            module = node.module
            names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str:
    """Spell `node` as a dotted name, imports resolved; empty where it is no name."""
    match node:
        case ast.Name(id=name):
            return names.get(name, name).removeprefix("builtins.")
        case ast.Attribute(value=value, attr=attribute):
            owner = full_name(value, names)
            return f"{owner}.{attribute}".removeprefix("builtins.") if owner else ""
    return ""


def dangerous_calls(source: str) -> list[str]:
    names = imported_names(source)
    findings = []
    for call in (node for node in nodes_of(source) if isinstance(node, ast.Call)):
        name = full_name(call.func, names)
        if name in FORBIDDEN_CALLS:
            findings.append(f"line {call.lineno}: {name} {FORBIDDEN_CALLS[name]}")
        findings += [
            f"line {call.lineno}: {keyword.arg}=True"
            for keyword in call.keywords
            if keyword.arg in FORBIDDEN_ARGUMENTS
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is True
        ]
    return findings


def environment_uses(source: str) -> list[str]:
    # Most sources need not be parsed.
    if not any(name.removeprefix("os.") in source for name in ENVIRONMENT):
        return []
    names = imported_names(source)
    found = (
        (node.lineno, full_name(node, names))
        for node in nodes_of(source)
        if isinstance(node, ast.Attribute | ast.Name)
    )
    return [f"line {line}: {name}" for line, name in found if name in ENVIRONMENT]


def relative_imports(source: str) -> list[str]:
    # Most sources need not be parsed.
    if not re.search(r"\bfrom\s*\\?\s*\.", source):
        return []
    imports = (node for node in nodes_of(source) if isinstance(node, ast.ImportFrom))
    return [f"line {node.lineno}: relative import" for node in imports if node.level]


def code_beside_the_docstring(source: str) -> list[str]:
    tree = tree_of(source)
    rest = tree.body[1:] if ast.get_docstring(tree) else tree.body
    missing = [] if ast.get_docstring(tree) else ["no docstring"]
    return missing + [f"line {node.lineno}: code in __init__.py" for node in rest]


def unfinished(text: str) -> list[str]:
    lines = enumerate(text.splitlines(), start=1)
    return [f"line {number}: {line.strip()}" for number, line in lines if UNFINISHED.search(line)]


def findings_in(files: list[str], rule: Rule) -> list[str]:
    return [
        f"{file}: {finding}"
        for file in files
        for finding in rule((ROOT / file).read_text(encoding="utf-8"))
    ]


def refuse(findings: list[str]) -> None:
    """Fail with one finding per line, all of them."""
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def written_texts() -> list[str]:
    """List every text file that people of this project write."""
    folders = ("mindrl", "cli", "configs", "docker", "examples", "scripts", "tests", "docs")
    nested = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    found = (path for path in [*nested, *ROOT.glob("*")] if path.suffix in TEXT_SUFFIXES)
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_file())


def test_only_platform_and_config_name_a_vendor() -> None:
    files = [file for file in sources("mindrl") if not file.startswith(VENDOR_HOMES)]
    refuse(findings_in(files, vendor_words))


def test_no_python_file_is_longer_than_400_lines() -> None:
    refuse(findings_in(sources("mindrl", "cli", "scripts", "tests"), long_file))


def test_no_shell_file_is_longer_than_400_lines() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "scripts").rglob("*.sh")]
    assert len(files) >= 3
    refuse(findings_in(files, long_file))


def test_no_function_is_longer_than_60_lines() -> None:
    refuse(findings_in(sources("mindrl", "cli", "scripts", "tests"), long_functions))


def test_nothing_executes_text_or_unpickles_files() -> None:
    refuse(findings_in(sources("mindrl", "cli", "examples", "scripts"), dangerous_calls))


def test_only_platform_reads_the_environment() -> None:
    files = [file for file in sources("mindrl", "cli") if not file.startswith("mindrl/platform/")]
    refuse(findings_in(files, environment_uses))


def test_every_import_is_absolute() -> None:
    files = sources("mindrl", "cli", "scripts", "tests")
    refuse(findings_in(files, relative_imports))


def test_an_init_file_holds_a_docstring_and_nothing_else() -> None:
    files = [file for file in sources("mindrl") if file.endswith("/__init__.py")]
    assert len(files) >= 17  # mindrl, its 15 packages, and platform/patches
    # The one name that programs of users import from the package itself, when they ask for it.
    files.remove("mindrl/__init__.py")
    refuse(findings_in(files, code_beside_the_docstring))


def test_every_package_folder_of_mindrl_has_an_init_file() -> None:
    folders = {(ROOT / file).parent for file in sources("mindrl")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_nothing_is_marked_as_unfinished() -> None:
    refuse(findings_in(written_texts(), unfinished))


def missing_link_targets(file: str) -> list[str]:
    links = MARKDOWN_LINK.findall((ROOT / file).read_text(encoding="utf-8"))
    local = (link.split("#")[0] for link in links if "://" not in link)
    return [link for link in local if not (ROOT / file).parent.joinpath(link).exists()]


def test_every_relative_markdown_link_leads_to_a_file() -> None:
    files = [file for file in written_texts() if file.endswith(".md")]
    missing = {file: missing_link_targets(file) for file in files}
    assert {file: links for file, links in missing.items() if links} == {}


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (vendor_words, "class NPUPlatform: pass"),
        (vendor_words, "def to_cuda(): pass"),
        (vendor_words, "x.cuda()"),
        (vendor_words, "import torch_npu"),
        (vendor_words, "from vllm_ascend import worker"),
        (vendor_words, "backend = 'HCCL'"),
        (vendor_words, "f(npus_in_use=8)"),
        (vendor_words, "def f(nccl): pass"),
        (long_functions, "def f():\n" + "    x = 1\n" * 60),
        (long_file, "x = 1\n" * 401),
        (dangerous_calls, "eval('1')"),
        (dangerous_calls, "import builtins\nbuiltins.exec('1')"),
        (dangerous_calls, "import pickle as p\np.load(f)"),
        (dangerous_calls, "from torch import load\nload(f)"),
        (dangerous_calls, "import yaml\nyaml.load(f, yaml.SafeLoader)"),
        (dangerous_calls, "import subprocess\nsubprocess.run('ls', shell=True)"),
        (dangerous_calls, "AutoModel.from_pretrained(path, trust_remote_code=True)"),
        (environment_uses, "import os\nos.environ['A'] = '1'"),
        (environment_uses, "from os import getenv as g\ng('A')"),
        (relative_imports, "from . import layout"),
        (code_beside_the_docstring, '"""A package."""\nfrom mindrl.errors import DataError'),
        (code_beside_the_docstring, ""),
        (unfinished, "x = 1  # " + "TO" + "DO later"),
    ],
)
def test_a_planted_breach_is_found_exactly_once(rule: Rule, source: str) -> None:
    assert len(rule(source)) == 1


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (vendor_words, '"""Runs on an NPU, over HCCL."""  # or on CUDA'),
        (vendor_words, "input_ids = sorted(ids, key=ascending)"),
        (vendor_words, "config.actor_resource.num_npus"),
        (vendor_words, "from megatron.core import model_parallel_cuda_manual_seed"),
        (long_functions, "def f():\n" + "    x = 1\n" * 59),
        (long_file, "x = 1\n" * 400),
        (dangerous_calls, "model.eval()\nyaml.safe_load(f)\nsafetensors.torch.load_file(f)"),
        (dangerous_calls, "subprocess.run(['ls'], shell=False, cwd=None)"),
        (environment_uses, "import os\nos.path.join(os.sep)"),
        (relative_imports, "from mindrl.layouts.layout import Layout"),
        (code_beside_the_docstring, '"""A package."""'),
        (unfinished, "to do it once is enough"),
    ],
)
def test_what_is_allowed_is_not_reported(rule: Rule, source: str) -> None:
    assert rule(source) == []
