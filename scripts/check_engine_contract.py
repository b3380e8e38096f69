"""Compare the interfaces of engine servers that mindrl uses with their published packages.

tests/unit/rollout/engine_contract.json records SGLang's endpoints, their fields and the creation of
its link, and the options and routes of vllm-router. The tests check our requests against it. This
program compares it with the packages, which are read and not imported.

    python scripts/check_engine_contract.py
    python scripts/check_engine_contract.py --source sglang==0.5.23=FILE.whl
    python scripts/check_engine_contract.py --write     record the interfaces of the packages

Exit codes: 0 no difference; 1 a difference; 2 wrong options; 3 a package cannot be read, and the
others have no difference.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from npu_contract.package_index import published_file
from npu_contract.published_python import parsed
from npu_contract.published_source import (
    PublishedSource,
    SourceUnavailableError,
    open_source,
)

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "unit" / "rollout" / "engine_contract.json"
DIFFERS, NOT_READ = 1, 3

Facts = dict[str, Any]

_SERVER = "sglang/srt/entrypoints/http_server.py"
_REQUESTS = "sglang/srt/managers/io_struct.py"
_SAMPLING = "sglang/srt/sampling/sampling_params.py"
_PATHS = (
    "/health",
    "/generate",
    "/abort_request",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/init_weights_update_group",
    "/update_weights_from_distributed",
    "/destroy_weights_update_group",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)
_LINES = {
    "the group's store has its name before all keys": "PrefixStore(group_name, store)",
    "the group is made as torch makes its own": "_new_process_group_helper(",
    "a server's ranks come behind the others": "rank = rank_offset + self.tp_rank",
    "rank 0 broadcasts": "src=0,",
    "the engine loads tensors by their names": ".load_weights(",
    "log-probs of drawn tokens": 'meta_info["output_token_logprobs"]',
    "the version of the weights": '"weight_version":',
}
_OPTIONS = (
    "--host",
    "--port",
    "--worker-urls",
    "policy",
    "prometheus-port",
    "health-check-interval-secs",
    "health-failure-threshold",
    "request-timeout-secs",
    "prometheus-host",
)
_ROUTES = ("/add_worker", "/remove_worker", "/liveness", "/inference/v1/generate")


def sglang_facts(source: PublishedSource) -> Facts:
    """Read the interface of SGLang's server."""
    requests = {
        node.name: node
        for node in parsed(source.text(_REQUESTS)).body
        if isinstance(node, ast.ClassDef)
    }
    endpoints: Facts = {}
    for path, methods, takes in _endpoints(parsed(source.text(_SERVER))):
        if path in _PATHS:
            fields = dict(_fields(requests, takes)) if takes else {}
            endpoints[path] = {"methods": methods, "fields": fields}
    everything = [source.text(name) for name in source.with_suffix(".py", below="sglang/srt/")]
    return {
        "endpoints": endpoints,
        "sampling_params": _sampling(parsed(source.text(_SAMPLING))),
        "lines": {said: any(line in text for text in everything) for said, line in _LINES.items()},
    }


def router_facts(source: PublishedSource) -> Facts:
    """Read the options and the routes of vllm-router."""
    words = {
        node.value
        for node in ast.walk(parsed(source.text("vllm_router/router_args.py")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    (program,) = source.with_suffix(".so", below="vllm_router_rs")
    data = source.data(program)
    return {
        "options": {name: any(name in word for word in words) for name in _OPTIONS},
        "routes": {route: route.encode() in data for route in _ROUTES},
    }


READERS: dict[str, Callable[[PublishedSource], Facts]] = {
    "sglang": sglang_facts,
    "vllm-router": router_facts,
}
PINS = ("sglang==0.5.6.post2", "sglang==0.5.23", "vllm-router==0.1.17")


def _endpoints(tree: ast.Module) -> Iterator[tuple[str, list[str], str]]:
    """Yield path, methods, and the class of the body of each endpoint."""
    for node in tree.body:
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        notes = [ast.unparse(each.annotation) for each in node.args.args if each.annotation]
        takes = next((note for note in notes if note != "Request"), "")
        takes = takes.removeprefix("Annotated[").split(",")[0].removeprefix("Optional[").strip("[]")
        for call in node.decorator_list:
            match call:
                case ast.Call(
                    func=ast.Attribute(attr=how), args=[ast.Constant(value=str(path)), *_]
                ):
                    found = [key.value for key in call.keywords if key.arg == "methods"]
                    methods = ast.literal_eval(found[0]) if found else [how.upper()]
                    yield path, methods, takes


def _fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str | None]]:
    """Yield the fields of a class with their defaults; None for a required field."""
    node = classes.get(name)
    if node is None:
        return
    for base in node.bases:
        yield from _fields(classes, ast.unparse(base))
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            default = None if member.value is None else ast.unparse(member.value)
            yield ast.unparse(member.target), default


def _sampling(tree: ast.Module) -> list[str]:
    """Return the sampling parameters of a request."""
    (node,) = [
        each
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name == "SamplingParams"
    ]
    made = [
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    if made:
        return sorted(each.arg for each in made[0].args.args if each.arg != "self")
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return sorted(ast.unparse(each.target) for each in fields)


def differences(recorded: Any, found: Any, at: str) -> Iterator[str]:
    """Yield the differences between two sets of facts."""
    if not (isinstance(recorded, dict) and isinstance(found, dict)):
        if recorded != found:
            yield f"{at}: {found}, but {recorded} is recorded"
        return
    for key in sorted(recorded.keys() | found.keys()):
        here = recorded.get(key, "nothing"), found.get(key, "nothing")
        yield from differences(*here, f"{at} {key}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare or record, and return the exit code."""
    add = (parser := argparse.ArgumentParser(description=__doc__)).add_argument
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add("--source", action="append", default=[], metavar="NAME==VERSION=FILE")
    add("--cache", type=Path, default=ROOT / ".cache" / "engine-contract")
    add("--write", action="store_true")
    options = parser.parse_args(arguments)
    given = dict(each.rsplit("=", 1) for each in options.source)
    if unknown := given.keys() - set(PINS):
        parser.error(f"{', '.join(unknown)} is unknown; known: {', '.join(PINS)}")
    recorded = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    found, code = dict(recorded), 0
    for pin in PINS:
        name, version = pin.split("==")
        try:
            path = Path(given.get(pin) or published_file(name, version, folder=options.cache))
            found[pin] = READERS[name](open_source(path))
        except SourceUnavailableError as error:
            code = code or NOT_READ
            print(f"error: cannot read {pin}: {error}", file=sys.stderr)
    for line in [] if options.write else differences(recorded, found, "error:"):
        code = DIFFERS
        print(line, file=sys.stderr)
    if options.write:
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(PINS)} packages, {'recorded' if options.write else 'compared'}: exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
