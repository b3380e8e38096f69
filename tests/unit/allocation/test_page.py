"""What the reference page of allocation strings says is so."""

import re
from pathlib import Path

import pytest
import yaml

from mindrl.allocation.grammar import AllocationError
from mindrl.allocation.into_config import with_sizes
from mindrl.allocation.meaning import parse_backend, parse_mode
from mindrl.config.backends import BACKENDS

PAGE = (Path(__file__).parents[3] / "docs/reference/allocation-strings.md").read_text("utf-8")
STRING_ROW = re.compile(r"^\| `(\S+:\S+|\S+\.\S+)` \| (\d+) \| `(\S+)` \|$", re.MULTILINE)
BACKEND_ROW = re.compile(r"^\| `(\w+)` \| (trains|generates) \| (.+) \|$", re.MULTILINE)


def test_each_string_of_the_page_takes_the_devices_and_has_the_spelling_that_it_says() -> None:
    rows = [tuple(each.replace("\\|", "|") for each in row) for row in STRING_ROW.findall(PAGE)]
    assert len(rows) == 12
    for text, devices, spelled in rows:
        mode = parse_mode(text)
        # Engines of a group share its devices.
        sizes = [{each.world_size for each in group} for group in mode.groups]
        assert all(len(each) == 1 for each in sizes)
        assert (sum(size for each in sizes for size in each), str(mode)) == (int(devices), spelled)


def test_the_strings_and_the_sizes_of_a_configuration_on_the_page_say_the_same() -> None:
    texts = re.findall(r"```yaml\n(.*?)\n```", PAGE, flags=re.DOTALL)
    strings, sizes = map(yaml.safe_load, texts)
    said = with_sizes(strings)
    ones = {"actor_config": said.pop("actor_config"), "generate_config": said["generate_config"]}
    for section, values in ones.items():
        different = {key: value for key, value in values.items() if value != 1}
        assert different == strings[section] | sizes[section]
    assert said["rl_config"] == sizes["rl_config"]


def test_the_page_lists_every_backend_with_its_sizes() -> None:
    listed = {
        backend: (does == "trains", re.sub(r"[`, ]", "", letters))
        for backend, does, letters in BACKEND_ROW.findall(PAGE)
    }
    assert listed == {name: (rules.trains, rules.letters) for name, rules in BACKENDS.items()}


def test_the_error_of_the_page_is_the_one_that_is_raised() -> None:
    (error,) = re.findall(r"```text\n(.*?)\n```", PAGE, flags=re.DOTALL)
    with pytest.raises(AllocationError) as caught:
        parse_backend(error.partition(",")[0])
    assert str(caught.value) == error
