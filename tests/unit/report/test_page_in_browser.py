"""The page as people see it: in Chromium, without a network."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from made_run import HOSTILE, conversation, make_run, metrics_of, sample, write_lines
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from mindrl.report.page import write_page as write_page_of
from mindrl.report.run_state import RunState
from mindrl.report.server import PageServer


def write_page(path: Path, runs: Iterable[Path]) -> None:
    write_page_of(path, [*map(RunState, runs)])


@pytest.fixture
def opened(browser: Browser) -> Iterator[Page]:
    """A page that complains of every error, and of every question to a network."""
    context = browser.new_context()
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert complaints == []
    assert all(url.startswith(("file:", "blob:", "http://127.0.0.1")) for url in asked), asked
    context.close()


def shows(page: Page, path: Path) -> Page:
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    return page


def of_section(page: Page, title: str) -> Locator:
    return page.locator("section").filter(has=page.locator(f"h2:text-is('{title}')"))


def groups(page: Page) -> list[str]:
    return page.locator("#samples-list .group").all_inner_texts()


def test_curves_samples_and_faults_are_there(opened: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, [make_run(tmp_path / "run"), make_run(tmp_path / "other", seed=2)])
    page = shows(opened, path)
    titles = page.locator("nav a").all_inner_texts()
    assert titles[:2] == ["Overview", "Learning"]
    assert {"Time", "Memory", "Faults and restarts", "Samples", "Configuration"} <= {*titles}
    page.wait_for_selector(".chart .main-svg")
    assert page.locator(".chart h3", has_text="Accuracy on held-out prompts").count() == 1
    assert page.locator("td", has_text="megatron_training.seed").count() >= 1
    assert len(groups(page)) == 4
    (timelines, _) = page.locator(".chart", has_text="Timelines of steps").all_inner_texts()
    assert f"{tmp_path / 'run'}: trace/step-2.json, trace/step-10.json." in timelines
    # Of each run, in MiB: planned, measured in the middle step, and the most.
    cells = page.locator("tr", has_text="memory/device_peak_bytes_max").all_inner_texts()
    assert [text.split()[-3:] for text in cells] == [["2", "1", "1"]] * 2


@pytest.mark.nightly
def test_advice_configuration_and_differences_are_elements_of_their_sections(
    opened: Page, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    runs = [make_run(tmp_path / "a", steps=6, cut=0.5), make_run(tmp_path / "b", steps=6, seed=2)]
    write_page(path, runs)
    page = shows(opened, path)
    # Hidden texts too.
    assert "[object" not in (page.locator("main").text_content() or "")
    advice = of_section(page, "Overview").locator(".advice")
    assert advice.count() == 1
    assert advice.locator("strong").inner_text() == "Many responses are cut off"
    assert "50% of the responses of the last 5 steps" in advice.inner_text()
    assert advice.locator("li").count() == 3
    configuration = of_section(page, "Configuration")
    assert configuration.locator("h3").all_inner_texts() == ["Differences"]
    differs = configuration.locator("h3 ~ * tbody tr").first
    assert differs.locator("td").all_inner_texts() == ["megatron_training.seed", "1", "2"]
    summaries = configuration.locator("details > summary").all_inner_texts()
    names = [f"{tmp_path.name}/{name}" for name in ("a", "b")]
    assert summaries == [
        *(f"derived numbers of {name}" for name in names),
        *(f"all keys of {name}" for name in names),
    ]
    keys = configuration.locator("details", has_text=f"all keys of {names[0]}")
    keys.locator("summary").click()
    assert keys.locator("tr", has_text="train_iters").locator("td").all_inner_texts() == [
        "megatron_training.train_iters",
        "16",
    ]


def test_pictures_of_samples_are_shown_from_inside_the_page(opened: Page, tmp_path: Path) -> None:
    red, gone = f"{1:016x}", f"{2:016x}"
    samples = [
        sample(1, prompt="What?", pictures=[red, gone]),
        sample(2, prompt="What?", pictures=["https://a.b/c.png", f"{red}' onerror='alert(1)"]),
    ]
    run = make_run(tmp_path / "run", samples=samples)
    (run / "pictures").mkdir()
    Image.new("RGB", (60, 40), "red").save(run / f"pictures/{red}.png")
    path = tmp_path / "page.html"
    write_page(path, [run])
    page = shows(opened, path)
    assert len(groups(page)) == 2
    image = page.locator("#samples-list img")
    assert image.count() == 1
    assert (image.get_attribute("src") or "").startswith("data:image/png;base64,")
    assert image.evaluate("image => image.complete && image.naturalWidth") == 60
    assert image.get_attribute("alt") == "picture 1"
    assert page.locator("#samples-list .pictures").inner_text() == "picture 2: no thumbnail"
    page.locator(".group", has=page.locator("img")).locator("button").click()
    assert len(groups(page)) == 1


@pytest.mark.nightly
def test_filters_choose_samples_and_a_prompt_is_followed_through_the_steps(
    opened: Page, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    samples = [
        sample(1, reward=0.0, data_source="easy"),
        sample(2, data_source="easy"),
        sample(2, prompt="2+2=?", response="needle", finished=False, data_source="hard"),
    ]
    write_page(path, [make_run(tmp_path / "run", samples=samples)])
    page = shows(opened, path)
    assert len(groups(page)) == 3
    for name, value, kept in [
        ("words", "NEEDLE", 1),
        ("from", "2", 2),
        ("to", "1", 1),
        ("least", "0.5", 2),
        ("most", "0.5", 1),
    ]:
        page.fill(f"#filter-{name}", value)
        assert len(groups(page)) == kept, name
        page.fill(f"#filter-{name}", "")
    for name, value, kept in [("source", "hard", 1), ("ended", "cut off", 1), ("kind", "step", 3)]:
        page.select_option(f"#filter-{name}", value)
        assert len(groups(page)) == kept, name
        page.select_option(f"#filter-{name}", "")
    page.get_by_text("this prompt over the steps").last.click()
    assert [text.split(",")[0] for text in groups(page)] == ["step 1", "step 2"]
    page.get_by_text("all prompts").click()
    assert len(groups(page)) == 3


def test_what_a_model_writes_is_text_and_nothing_else(opened: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    changes = {"prompt": HOSTILE, "response": HOSTILE * 3, "reference": HOSTILE}
    changes |= {"data_source": HOSTILE, "parts": {HOSTILE: 1.0}}
    run = make_run(
        tmp_path / "run", samples=[sample(1, **changes), sample(2, response="x" * 10**6)]
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "data/<b onclick=1>x</b>/reward": 1.0}\n')
    write_page(path, [run])
    page = shows(opened, path)
    assert page.title() == f"{tmp_path.name}/run"
    shown = groups(page)[-1]
    assert "<script>document.title" in shown
    assert "\\u001b[31mred" in shown
    assert "\\u202e" in shown
    assert page.locator("#samples-list img, #samples-list script, svg b").count() == 0


def test_a_conversation_is_shown_turn_by_turn_and_what_is_masked_is_set_apart(
    opened: Page, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    talks = [conversation(HOSTILE), conversation(ending="failed")]
    samples = [*(sample(1, conversation=talk) for talk in talks), sample(2)]
    write_page(path, [make_run(tmp_path / "run", samples=samples)])
    page = shows(opened, path)
    plain, talk, failed = page.locator(".answer").all()
    assert plain.locator("li, .ending").count() == 0
    heads = talk.locator("li .facts").all_inner_texts()
    assert heads == [
        "user 5 tokens, not trained on",
        "turn 1 14 tokens, 1 call, reward 0.25, answered in 0.0125 s",
        "tool 9 tokens, not trained on",
        "turn 2 4 tokens, reward 1, answered in 0.5 s",
    ]
    assert talk.locator("li.masked pre").all_inner_texts()[0] == "You may use tools."
    assert talk.locator("li.written pre").all_inner_texts()[1] == "It is 5."
    looks = [
        each.evaluate("(item) => [getComputedStyle(item).backgroundColor, item.offsetLeft]")
        for each in talk.locator("li").all()
    ]
    assert looks[0] == looks[2] != looks[1] == looks[3]
    endings = [each.locator(".ending").inner_text() for each in (talk, failed)]
    assert endings == ["ended: the environment ended it", "ended: its environment failed"]
    given = talk.locator("li.masked pre").nth(1)
    assert given.inner_text().startswith("<script>document.title")
    assert given.locator("*").count() == 0
    assert page.title() == f"{tmp_path.name}/run"
    # Words of the environment are found too.
    page.fill("#filter-words", "ONERROR")
    assert len(groups(page)) == 1
    page.set_viewport_size({"width": 390, "height": 800})
    shows(page, path)
    assert page.locator("li.masked").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth") == 390


FAMILY = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
ENGLAND = "\N{WAVING BLACK FLAG}" + "".join(chr(0xE0000 + ord(char)) for char in "gbeng\x7f")
PERSIAN = "می\u200cخواهم"  # noqa: RUF001
MALAYALAM = "അവന്\u200d"
WRITTEN = {text: text for text in (FAMILY, ENGLAND, PERSIAN, MALAYALAM)}
HIDING = {
    "pass\u200dword": "pass\\u200dword",
    f"{PERSIAN}\u200c": f"{PERSIAN}\\u200c",
    "അ\u200d\u200d": "അ\\u200d\\u200d",
    "\N{MAN}\u200d": "\N{MAN}\\u200d",
    "\u202eabc\u2066": "\\u202eabc\\u2066",
    "a\U000e0041": "a\\u{e0041}",
    "\x07\ufeff": "\\u0007\\ufeff",
}


@pytest.mark.nightly
def test_joiners_that_belong_to_the_writing_stay_and_others_are_spelled_out(
    opened: Page, tmp_path: Path
) -> None:
    path, cases = tmp_path / "page.html", WRITTEN | HIDING
    write_page(path, [make_run(tmp_path / "run", samples=[sample(1, response="|".join(cases))])])
    page = shows(opened, path)
    assert page.locator(".answer pre").inner_text().split("|") == [*cases.values()]
    # A tokenizer may make a token of a joiner alone.
    whole = page.evaluate("(parts) => shownParts(parts)", [*PERSIAN, "|", *"pass\u200dword"])
    assert "".join(whole) == f"{PERSIAN}|pass\\u200dword"


@pytest.mark.nightly
def test_a_page_is_as_wide_as_a_phone_and_what_is_wider_scrolls_in_its_box(
    opened: Page, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    names = ["short", "a_long_name_without_any_space_" * 4]
    runs = [make_run(tmp_path / name, steps=6, cut=0.5, seed=at) for at, name in enumerate(names)]
    write_page(path, [*runs, *runs])
    opened.set_viewport_size({"width": 390, "height": 800})
    page = shows(opened, path)
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    page.wait_for_selector(".chart.wide .main-svg")
    for closed in page.locator("summary").all():
        closed.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # Four runs beside each other do not fit: their table can be moved.
    overview = of_section(page, "Overview").locator(".scrolls")
    assert overview.evaluate("(box) => box.scrollWidth > box.clientWidth")


@pytest.mark.nightly
def test_a_long_run_opens_within_3_s_and_stays_below_30_mb(opened: Page, tmp_path: Path) -> None:
    path, steps = tmp_path / "page.html", 2000
    answer = "word " * 200
    samples = (sample(step, response=answer) for step in range(1, steps + 1) for _ in range(8))
    write_page(path, [make_run(tmp_path / "run", steps=steps, samples=samples)])
    assert path.stat().st_size < 30e6
    cpu = []
    for _ in range(3):
        started = time.perf_counter()
        shows(opened, path)
        cpu.append(time.perf_counter() - started)
    # The quickest of three: other programs may run beside this one.
    assert min(cpu) < 3


@contextmanager
def served(*runs: Path) -> Iterator[PageServer]:
    with PageServer(runs, host="127.0.0.1", port=0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_live_page_shows_new_steps_and_leaves_what_its_reader_has_chosen(
    opened: Page, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", samples=[sample(at, response=f"{at}") for at in (1, 2)])
    with served(run) as server:
        opened.goto(server.url)
        opened.wait_for_selector("td:has-text('4 of 14')")
        opened.wait_for_selector(".group >> nth=1")
        opened.wait_for_selector(".chart .main-svg")
        opened.fill("#filter-words", "2")
        expect(opened.locator(".group")).to_have_count(1)
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(metrics_of(step))}\n" for step in (5, 6))
        with (run / "samples.jsonl").open("a") as file:
            file.write(f"{json.dumps(sample(6, response='6'))}\n")
        opened.wait_for_selector("td:has-text('6 of 14')", timeout=60_000)
        reward = ".chart:has(h3:text-is('Reward')) .plot"
        opened.wait_for_selector(f"{reward} .main-svg")
        assert opened.locator(reward).evaluate("(plot) => plot.data.at(-1).x") == [1, 2, 3, 4, 5, 6]
        assert opened.input_value("#filter-words") == "2"
        assert len(groups(opened)) == 1
        opened.fill("#filter-words", "")
        expect(opened.locator(".group")).to_have_count(3)
        # Begun anew in the same folder.
        write_lines(run / "metrics.jsonl", [metrics_of(1)])
        opened.wait_for_selector("td:has-text('1 of 14')", timeout=60_000)


ASKED = [
    {},
    {"words": "NEEDLE"},
    {"words": "you may use"},
    {"from": "2", "to": "2"},
    {"least": "0.5"},
    {"most": "0.5"},
    {"source": "hard"},
    {"ended": "cut off"},
    {"kind": "evaluation"},
    {"run": "b"},
]
"""Filters, of which a page of the file and a live page have to show the same samples."""


@pytest.mark.nightly
def test_a_live_page_finds_the_samples_that_the_page_in_the_folder_shows(
    opened: Page, tmp_path: Path
) -> None:
    samples = [
        sample(step, prompt=f"{number}+2=?", response="needle" if number == 3 else "x")
        | {"reward": float(number % 2), "finished": number > 1}
        | {"data_source": "hard" if number < 2 else "easy"}
        for step in (1, 2, 3)
        for number in range(9)
    ]
    samples[4]["conversation"] = conversation()
    runs = [make_run(tmp_path / name, seed=at, samples=samples) for at, name in enumerate("ab")]
    for run in runs:
        write_lines(run / "evaluations.jsonl", samples[:9])
    path, found = tmp_path / "page.html", list[list[list[str]]]()
    write_page(path, runs)
    with served(*runs) as server:
        for address in (path.as_uri(), server.url):
            opened.goto(address)
            opened.wait_for_selector("body[data-ready=yes]")
            found.append([_shown_by(opened, tmp_path, filters) for filters in ASKED])
    assert found[0] == found[1]
    assert [len(each) for each in found[0]] == [72, 8, 4, 18, 32, 40, 16, 16, 18, 36]


def _shown_by(page: Page, root: Path, filters: Mapping[str, str]) -> list[str]:
    """Return all groups that the filters leave."""
    for name in ("words", "from", "to", "least", "most"):
        page.fill(f"#filter-{name}", filters.get(name, ""))
    run = f"{root.name}/{filters['run']}" if "run" in filters else ""
    for name, value in {"source": "", "ended": "", "kind": "", **filters, "run": run}.items():
        if name in {"source", "ended", "kind", "run"}:
            page.select_option(f"#filter-{name}", value)
    # The server is asked a moment after the last change.
    page.wait_for_selector("#samples-list[aria-busy=false]")
    more = page.get_by_role("button", name="more", exact=True)
    while more.is_visible():
        before = len(groups(page))
        more.click()
        page.wait_for_selector(f".group >> nth={before}")
    return groups(page)
