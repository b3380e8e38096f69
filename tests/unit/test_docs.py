"""What the documents say of the code is true: links, paths, keys, metrics, files, output."""

import ast
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from recorded_device import manager

from mindrl.algorithms.divergence import TaughtLoss
from mindrl.algorithms.losses import LikelyLogprobs, LossInputs
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.config.layout_keys import Role
from mindrl.config.load import field_names
from mindrl.config.rl import RLConfig
from mindrl.memory.schedule import Region, step_phases
from mindrl.observability.console import StepConsole
from mindrl.observability.samples import Sample, SampleLog
from mindrl.rewards.scores import Scores
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

ROOT = Path(__file__).parents[2]
SECTIONS = tuple(field_names([]))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
KEY = re.compile(rf"(?<![\w/.])((?:{'|'.join(SECTIONS)})(?:\.\w+)+)")
REPOSITORY_PATH = re.compile(r"(?<![\w/.~-])(?:scripts|cli|configs|tests|mindrl)/[\w/.-]*\w")
PAGE_NAME = re.compile(
    r"(?:docs|\.\.)/((?:how-to|explanation|reference|tutorials|adr)/[\w-]+\.md)(#[\w-]+)?"
)
METRIC = re.compile(r"[a-z_]+/[a-z_]+[a-z]")


def pages() -> list[Path]:
    found = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(found) >= 20
    return sorted(found)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """List the fragments that lead to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        place, _, fragment = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def is_key(path: str) -> bool:
    *section, name = path.split(".")
    return name in field_names(section)


def yaml_keys(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from yaml_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_relative_link_leads_to_a_file_and_to_a_heading() -> None:
    assert [broken for page in pages() for broken in broken_links(page)] == []


def test_every_page_that_code_names_exists_with_its_heading() -> None:
    """Errors, help and docstrings lead to a page of docs/, some of them to a heading."""
    sources = [
        path
        for top in ("mindrl", "cli", "scripts", "configs")
        for path in (ROOT / top).rglob("*")
        if path.suffix in {".py", ".yaml", ".sh"}
    ]
    named = {
        (source.relative_to(ROOT).as_posix(), *found)
        for source in sources
        for found in PAGE_NAME.findall(source.read_text("utf-8"))
    }
    assert len(named) >= 40
    lost = [
        f"{source}: docs/{page}{fragment}"
        for source, page, fragment in sorted(named)
        if not (ROOT / "docs" / page).is_file()
        or (fragment and fragment[1:] not in anchors(ROOT / "docs" / page))
    ]
    assert lost == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(read("docs/index.md"))}
    assert set(pages()) - linked == {index}


def test_every_file_that_a_newcomer_is_sent_to_exists() -> None:
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", read("docs/explanation/where-is-what.md"))
    assert len(files) >= 40
    assert [
        file for file in files if not any((ROOT / top / file).is_file() for top in (".", "mindrl"))
    ] == []


def test_every_configuration_key_that_is_named_exists() -> None:
    named = {
        (page.name, key)
        for page in pages()
        for key in KEY.findall(page.read_text(encoding="utf-8"))
    }
    # One is wrong on purpose: the example of an error message.
    wrong = {key for _, key in named if not is_key(key)}
    assert len(named) >= 60
    assert wrong == {"rl_config.n_samples"}


def test_every_yaml_example_holds_keys_that_exist() -> None:
    blocks = [
        yaml.safe_load(block)
        for page in pages()
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    keys = [key for block in blocks for key in yaml_keys(block)]
    assert len(keys) >= 8
    # Hydra's own, of a configuration file that builds on another.
    assert [key for key in keys if not is_key(key) and key != "defaults"] == []


def test_every_path_of_the_repository_that_is_named_exists() -> None:
    named = {path for page in pages() for path in REPOSITORY_PATH.findall(page.read_text("utf-8"))}
    assert {"scripts/quickstart.sh", "scripts/test.sh", "cli/train_grpo.py"} <= named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def switch_metrics() -> set[str]:
    """Go twice through the phases of a step with all roles, with every switch on."""
    way = step_phases(get_args(Role)) * 2
    switched, _ = manager()
    for phase in way:
        switched.enter(phase)
    return set(switched.flush_metrics())


def of_any_region(metric: str) -> str:
    """Put a sign in the place of a region's name."""
    pattern = "|".join(region.value for region in Region)
    return re.sub(rf"_(?:{pattern})$", "_<region>", metric)


def loss_metrics() -> set[str]:
    policy = PolicyLoss(
        tokens=resolve_token_loss(RLConfig(mini_batch_size=1)),
        kl_kind="k3",
        kl_coef=0.1,
        entropy_coef=0.0,
    )
    loss = TaughtLoss(own=policy, form="reverse", coef=1.0)
    one_BT = torch.ones(1, 1)
    names = ("tokens_BT", "lengths_B", "response_mask_BT", "token_weights_BT")
    more = dict.fromkeys(names, one_BT)
    terms = loss(
        LossInputs.of(
            (-one_BT, one_BT),
            Minibatch(
                old_logprobs_BT=-one_BT,
                advantages_BT=one_BT,
                ref_logprobs_BT=-one_BT,
                **more,
            ),
            one_BT,
            likely=LikelyLogprobs(
                ours_NK=-one_BT, theirs_NK=-one_BT, places_N=torch.zeros(1, dtype=torch.int64)
            ),
        )
    )
    valued = CriticMinibatch(old_values_BT=one_BT, returns_BT=one_BT, **more)
    of_critic = ValueLoss(clip_range=0.5)(LossInputs.of((one_BT,), valued, one_BT))
    actor = {f"update/{name}" for name in terms.metrics}
    return actor | {f"critic/{name}" for name in of_critic.metrics}


def batch_metrics() -> set[str]:
    responses = Responses.of([[1]], [[-1.0]], [True])
    scores = Scores(rewards=(1.0,), components={}, ranges={}, failures=())
    return set(Rollouts.from_responses([[5]], responses, [0]).metrics()) | set(scores.metrics())


def written_out(source: str, pattern: re.Pattern[str]) -> set[str]:
    """List the string literals of a source file that have a metric's form."""
    constants = (
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
    )
    return {text for text in constants if isinstance(text, str) and pattern.fullmatch(text)}


def literal_metrics() -> set[str]:
    rooms = (ROOT / "mindrl" / room for room in ("trainer", "launch"))
    files = sorted(path.relative_to(ROOT) for room in rooms for path in room.rglob("*.py"))
    files += [Path("mindrl/algorithms/estimators.py"), Path("mindrl/rollout/vllm/engine_counts.py")]
    trainer = [read(str(file)) for file in files]
    stages = {f"seconds/{name}" for name in re.findall(r'timer\("(\w+)"\)', "".join(trainer))}
    workers = sorted((ROOT / "mindrl" / "workers").glob("*.py"))
    memory = set().union(*(written_out(path.read_text("utf-8"), METRIC) for path in workers))
    literal = {name for source in trainer for name in written_out(source, METRIC)}
    learning = "".join(
        read(f"mindrl/training/megatron/{name}.py") for name in ("engine", "training_state")
    )
    update = written_out(learning, re.compile("grad_norm|lr|skipped|moe_aux_loss"))
    named = {f"update/{name}" for name in update}
    critic = {f"critic/{name}" for name in update}
    routes = written_out(
        read("mindrl/training/routes.py"), re.compile("differing_routes|without_routes")
    )
    named |= {f"update/{name}" for name in routes}
    return literal | stages | memory | named | critic


_OF_SOME_STEPS = {
    *("reward/<function>", "reward/model", "reward/overlong"),
    *("data/<source>/share", "data/<source>/reward", "data/<source>/accuracy"),
    *("eval/<set>/avg@<n>", "eval/<set>/pass@<k>"),
    "reward/failed_share",
    *("nonfinite/worker_<rank>/<what>", "throughput/idle_<of>"),
    *("memory/workers", "memory/rollout_<what>_<of>", "memory/rollout_workers"),
}


def test_the_page_of_metrics_names_exactly_the_metrics_of_a_step() -> None:
    switched = switch_metrics()
    produced = {
        # A plan predicts the maximum.
        f"{name.removesuffix('_max')}_<of>" if name.startswith("memory/") else of_any_region(name)
        for name in switched | loss_metrics() | batch_metrics() | literal_metrics()
    }
    page = read("docs/reference/metrics.md")
    named = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))
    regions = {name for name in named if "/" not in name}
    assert len(produced) >= 40
    assert named - regions == produced | _OF_SOME_STEPS
    # Each region comes and goes in a step, but for the messages of a reshard.
    assert regions == {
        region.value for region in Region if f"seconds/swap_bring_{region.value}" in switched
    }
    assert {region.value for region in Region} - regions == {"staging"}


def test_the_page_of_outputs_names_every_file_and_every_key(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path)
    console = StepConsole(1, io.StringIO())
    run_log = RunLog(folder, RunSummary(exports={"actor": tmp_path / "model"}), console, [])
    sample = Sample(
        prompt="",
        response="",
        reference="",
        reward=0.0,
        parts={},
        finished=True,
        response_tokens=0,
    )
    log = SampleLog(tmp_path / "one.jsonl")
    log.log(1, [sample])
    log.close()

    keys = [*run_log.close(), *yaml.safe_load((tmp_path / "one.jsonl").read_text())]
    files = [folder.summary, folder.metrics, folder.samples, folder.evaluations]
    page = read("docs/reference/outputs.md")

    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [file.name for file in files if f"`{file.name}`" not in page] == []
    assert [
        part.name for part in (folder.logs, folder.tensorboard) if f"`{part.name}/" not in page
    ] == []


def test_the_tutorial_shows_the_plan_that_the_program_prints(tmp_path: Path) -> None:
    program = [sys.executable, "cli/train_grpo.py", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(
        [*program, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    refused = subprocess.run(
        [*program, "rl_config.n_samples=16"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tutorial = {line.rstrip() for line in read("docs/tutorials/first-run.md").splitlines()}
    plan = [line.rstrip() for line in done.stdout.splitlines() if "  " in line]
    assert len(plan) >= 10
    assert [line for line in plan if line not in tutorial] == []
    # Nor does a library count what it leaves behind.
    assert "leaked" not in done.stderr
    assert refused.returncode == 2
    assert refused.stderr.strip() in tutorial


def test_the_page_of_the_cluster_script_explains_every_variable_of_its_help() -> None:
    page = read("docs/how-to/ascend.md")
    assert {"NNODES", "MASTER_ADDR", "RAY_AUTH_TOKEN_PATH"} <= set(script_variables())
    assert [name for name in script_variables() if f"| `{name}` |" not in page] == []


def script_variables() -> list[str]:
    done = subprocess.run(
        ["bash", "scripts/train_grpo_qwen25_7b.sh", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"^  ([A-Z][A-Z_]+)  ", done.stdout, flags=re.MULTILINE)
