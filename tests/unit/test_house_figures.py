"""What scripts/house_figures.py measures, and the figures that the house keeps from now on."""

import ast
from importlib import import_module
from inspect import iscode
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
SMALL = {
    "mindrl/__init__.py": '"""The package."""\n',
    "mindrl/errors.py": "class ConfigError(Exception):\n    pass\n",
    "mindrl/upper/__init__.py": '"""Above."""\n',
    "mindrl/upper/start.py": "from mindrl.lower import parts\nimport mindrl.errors\n",
    "mindrl/lower/__init__.py": '"""Below."""\n',
    "mindrl/lower/parts.py": "from mindrl.errors import ConfigError\n\nMOST = 3\n",
}


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("house_text")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("house_run")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS / "house_entries"))
    return import_module("entered_functions")


def test_no_modules_import_one_another(text: Any) -> None:
    assert text.import_cycles(text.read_sources(ROOT)) == []


def test_a_type_has_a_name_of_its_own(text: Any) -> None:
    assert text.types_in_two_rooms(text.read_sources(ROOT)) == {}


def test_lines_are_counted_as_wc_does_and_files_outside_a_room_belong_to_none(
    text: Any, tmp_path: Path
) -> None:
    for path, source in SMALL.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")
    (tmp_path / "mindrl/lower/notes.txt").write_text("no code\n", encoding="utf-8")
    sources = text.read_sources(tmp_path)
    assert sources == SMALL
    assert text.lines_by_room(sources) == {"": 3, "upper": 3, "lower": 4}
    figures = {figure.name: figure for figure in text.text_figures(sources)}
    assert figures["shipped lines"].value == 10
    assert figures["biggest room"].shown == "40.0 % lower"


def test_a_tree_without_cycles_has_none(text: Any) -> None:
    assert text.import_cycles(SMALL) == []


@pytest.mark.parametrize(
    "back",
    [
        "from mindrl.upper.start import run\n",
        "from mindrl.upper import start\n",
        "import mindrl.upper.start\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mindrl.upper.start\n",
        "def late() -> None:\n    from mindrl.upper import start\n",
    ],
)
def test_an_import_back_closes_a_cycle(text: Any, back: str) -> None:
    sources = SMALL | {"mindrl/errors.py": back}
    assert text.import_cycles(sources) == [
        ["mindrl.errors", "mindrl.lower.parts", "mindrl.upper.start"]
    ]


def test_types_of_one_name_are_found_in_two_rooms_and_not_in_one(text: Any) -> None:
    sources = {
        "mindrl/upper/a.py": "class Row: ...\nclass _Own: ...\nRule = list[int]\nKIND = (1,)\n",
        "mindrl/upper/b.py": "class Step: ...\nRoot = find()\n",
        "mindrl/lower/a.py": "class Rule: ...\nclass _Own: ...\nclass Row: ...\nKIND = (1,)\n",
        "mindrl/lower/b.py": "Root = find()\n\ndef f():\n    class Step: ...\n",
    }
    assert text.types_in_two_rooms(sources) == {
        "Row": ["lower", "upper"],
        "Rule": ["lower", "upper"],
    }


def test_an_engine_is_named_by_code_and_prose_and_not_by_a_users_string(text: Any) -> None:
    sources = {
        "mindrl/training/engine.py": "import megatron\n",
        "mindrl/upper/prose.py": '"""As Megatron does."""\n',
        "mindrl/upper/code.py": 'NEEDED = ("megatron",)\n',
        "mindrl/upper/string.py": "# such as megatron:d4t2 or megatron[actor]:d4\n",
        "mindrl/upper/key.py": "megatron_training = 1\n",
        "mindrl/platform/patches/log.py": "import megatron\n",
        "mindrl/config/mindspeed_rl_keys.py": "# in Megatron's format\n",
    }
    found = text.files_that_name(sources, "megatron", "mindrl/training/")
    assert found == ["mindrl/upper/prose.py", "mindrl/upper/code.py"]


def test_files_of_a_key_leave_out_those_that_read_the_files_of_others(text: Any) -> None:
    sources = {
        "mindrl/config/generate.py": "min_p: float = 0.0\n",
        "mindrl/rollout/engine.py": "f(top_k=1)\n",
        "mindrl/rollout/weights.py": "min_pages = 1\n",
        "mindrl/migrate/keys.py": "KEYS = ('min_p',)\n",
        "mindrl/config/mindspeed_rl_keys.py": "KEYS = ('min_p',)\n",
    }
    found = text.files_with(sources, ("min_p", "top_k"))
    assert found == ["mindrl/config/generate.py", "mindrl/rollout/engine.py"]


def test_the_advantage_formula_is_in_one_file_and_the_measure_finds_it(text: Any) -> None:
    files = [path for path, source in text.read_sources(ROOT).items() if _has_formula(text, source)]
    assert len(files) == 1
    assert _has_formula(text, "a = centred_B / (std_P[index_B] + epsilon)\n")
    assert not _has_formula(text, '"""Return (reward - mean) / (group std + epsilon)."""\n')


def _has_formula(text: Any, source: str) -> bool:
    return text.OVER_DEVIATION.search(source) is not None


WATCHED = '''\
"""A module."""


@property
def first():
    """Say one."""

    def inner():
        return 1

    return inner()


class Room:
    def area(self):
        return 2

    def unused(self):
        return 3


def plan(size, *, of):
    yield size
    yield of
'''


def test_outermost_functions_are_measured_from_def_to_the_last_line(run: Any) -> None:
    assert run.definitions({"mindrl/a.py": WATCHED}) == {
        ("mindrl/a.py", 5): 7,
        ("mindrl/a.py", 15): 2,
        ("mindrl/a.py", 18): 2,
        ("mindrl/a.py", 22): 3,
    }


def test_a_process_writes_down_what_it_enters_once_and_every_call_of_a_planner(
    run: Any, entries: Any, tmp_path: Path
) -> None:
    reports = entries.Reports(tmp_path)
    tree = entries.watched(ast.parse(WATCHED), str(tmp_path / "code/mindrl/a.py"), {"plan"})
    names = {"house_entered": reports.house_entered, "house_called": reports.house_called}
    exec(compile(tree, "a.py", "exec"), names)
    assert names["first"].fget() == 1
    assert names["first"].fget.__doc__ == "Say one."
    assert names["first"].fget.__code__.co_firstlineno == 4
    assert [names["Room"]().area() for _ in range(3)] == [2, 2, 2]
    for size in (5, 5, 6):
        assert [*names["plan"](size, of="x")] == [size, "x"]
    (process,) = run.read_processes(tmp_path, tmp_path / "code")
    assert process.entered == {("mindrl/a.py", 5), ("mindrl/a.py", 15), ("mindrl/a.py", 22)}
    assert [name for name, *_ in process.calls] == ["plan"] * 3
    digests = [digest for _, digest, _ in process.calls]
    assert digests[0] == digests[1] != digests[2]
    figure = run.executed_figure(
        run.definitions({"mindrl/a.py": WATCHED}), [process], "executed", "lines", "65"
    )
    assert figure.value == round(100 * 12 / 14, 1)


def test_processes_are_read_in_the_order_in_which_they_began(run: Any, tmp_path: Path) -> None:
    """Process ids start again at 1 when they run out."""
    (tmp_path / "32767").write_text("process\t1\tpython\tcli/train_grpo.py\n", encoding="utf-8")
    (tmp_path / "211").write_text("process\t3\tpython\tdefault_worker.py\n", encoding="utf-8")
    (tmp_path / "30").write_text("process\t20\tpython\treward.py\n", encoding="utf-8")
    processes = run.read_processes(tmp_path, tmp_path)
    assert [process.name for process in processes] == ["driver", "worker 1", "rewards 1"]


def test_calls_are_the_most_of_a_process_and_equal_arguments_are_repeats(run: Any) -> None:
    calls = [("assign_rounds", "a", "main"), ("assign_rounds", "b", "main")]
    processes = [
        run.Process(name="driver", calls=calls[:1]),
        run.Process(name="worker 1", calls=calls),
        run.Process(name="worker 2", calls=[*calls, calls[0]]),
    ]
    sources = {"mindrl/a.py": "def assign_rounds(): ...\n\ndef plan_sides(): ...\n"}
    figures = {figure.name: figure for figure in run.call_figures(sources, processes)}
    assert figures["calls of assign_rounds"].value == 3
    assert figures["calls of assign_rounds"].shown == "driver 1, worker 2 3"
    assert figures["calls of plan_sides"].value == 0
    assert figures["calls of choose_orders"].value is None
    assert figures["of these, repeated with equal arguments"].value == 1


def test_modules_of_mindrl_are_imported_with_their_reports_and_others_as_ever(
    entries: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(entries.COUNTED, "start")
    (tmp_path / "steps.py").write_text("def start(): ...\n", encoding="utf-8")
    finder = entries.WatchedFinder()
    assert finder.find_spec("other.steps", [str(tmp_path)]) is None
    spec = finder.find_spec("mindrl.steps", [str(tmp_path)])
    (function,) = (each for each in spec.loader.get_code(spec.name).co_consts if iscode(each))
    assert function.co_names == ("house_called", "house_entered")
