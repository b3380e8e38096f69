"""Names of the hub: found in its cache, or answered with what to do; nothing is downloaded here."""

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.preflight.hub import hub_hint, with_local_folders

MakeConfig = Callable[..., RunConfig]
DATA, ALLOW = "megatron_training.data_path", "megatron_training.allow_download"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a model, and a data set of two subsets, in a folder without others."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for name, files in {
        "models--acme--small": ["config.json", "model.safetensors"],
        "datasets--acme--sums": ["main/train-0.jsonl", "main/test-0.jsonl", "hard/train-0.jsonl"],
    }.items():
        repo = tmp_path / "hub" / name
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("c0ffee")
        for file in files:
            path = repo / "snapshots" / "c0ffee" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"messages": "1+1", "answer": "2"}))
    return tmp_path / "hub"


def test_names_become_folders_of_the_cache(cache: Path, run_config: MakeConfig) -> None:
    data = ["acme/sums/main/train*", "own.jsonl"]
    found = with_local_folders(run_config(Path("acme/small"), {DATA: data}), downloads=False)
    assert found.actor_config.load == f"{cache}/models--acme--small/snapshots/c0ffee"
    sums = f"{cache}/datasets--acme--sums/snapshots/c0ffee"
    assert found.megatron_training.data_path == (f"{sums}/main/train*", "own.jsonl")
    whole = run_config(Path("acme/small"), {DATA: "acme/sums"})
    assert with_local_folders(whole, downloads=False).megatron_training.data_path == sums


def test_the_model_that_drafts_is_one_of_them(cache: Path, run_config: MakeConfig) -> None:
    drafts = "generate_config.speculative_config"
    keys = {f"{drafts}.method": "draft_model", f"{drafts}.model": "acme/small"}
    found = with_local_folders(run_config(Path("own"), keys), downloads=False)
    assert found.value_of(f"{drafts}.model") == f"{cache}/models--acme--small/snapshots/c0ffee"


def test_a_folder_of_that_name_comes_before_the_cache(cache: Path, run_config: MakeConfig) -> None:
    Path("acme/small").mkdir(parents=True)
    config = run_config(Path("acme/small"))
    assert cache.is_dir()
    assert with_local_folders(config, downloads=False) == config


@pytest.mark.parametrize(
    "path", ["/no/model", "./models/small", "small", "data/train.jsonl", "data/train-*.parquet"]
)
def test_what_is_no_name_of_the_hub_stays_as_it_is(
    path: str, cache: Path, run_config: MakeConfig
) -> None:
    config = run_config(Path(path), {DATA: path})
    assert cache.is_dir()
    assert with_local_folders(config, downloads=False).megatron_training.data_path == path
    assert hub_hint(path, "dataset") == ""


def test_what_the_cache_lacks_is_answered_with_two_ways_to_get_it(
    cache: Path, run_config: MakeConfig
) -> None:
    config = run_config(Path("acme/large"), {DATA: "acme/none/main/train*"})
    assert cache.is_dir()
    assert with_local_folders(config, downloads=False) == config
    assert hub_hint("acme/large", "model") == (
        ", and the hub cache of this machine has no model of this name; download it with "
        f"{ALLOW}=true or `hf download acme/large`"
    )
    assert hub_hint("acme/none/main/train*", "dataset").endswith(
        "or `hf download --repo-type dataset acme/none`"
    )


def test_a_name_in_the_folder_of_models_is_no_name_of_the_hub(run_config: MakeConfig) -> None:
    config = run_config(Path("models/large"), {ALLOW: True})
    assert with_local_folders(config, downloads=True).actor_config.load == "models/large"
    assert hub_hint("models/large", "model") == (
        "; put it there with `hf download OWNER/large --local-dir models/large`, or write its name "
        "on the hub, OWNER/large"
    )


def test_without_network_an_allowed_download_ends_in_words(
    cache: Path, run_config: MakeConfig
) -> None:
    assert huggingface_hub.constants.HF_HUB_OFFLINE, "no test downloads"
    config = run_config(Path("acme/large"), {ALLOW: True})
    assert cache.is_dir()
    assert with_local_folders(config, downloads=False) == config
    with pytest.raises(
        ConfigError, match=r"actor_config.load=acme/large: download from the hub failed: "
    ):
        with_local_folders(config, downloads=True)
