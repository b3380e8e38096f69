"""The Chinese pages follow the English ones: headings, tables, commands, names, numbers, links.

A section of a Chinese page corresponds to the section at the same place of its English pages. The
two are compared block by block: code line by line; of each table row, list item and paragraph the
multiset of names in backticks, of numbers and of links.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.zh-CN.md": ("README.md",),
    "docs/zh/first-run.md": ("docs/tutorials/first-run.md",),
    "docs/zh/ascend.md": ("docs/how-to/install-npu.md", "docs/how-to/ascend.md"),
    "docs/zh/come-from-mindspeed-rl.md": ("docs/how-to/come-from-mindspeed-rl.md",),
    "docs/zh/troubleshooting.md": ("docs/how-to/troubleshooting.md",),
}
"""By Chinese page, the English pages that it follows; if several, each heading one level deeper."""

HEADING = re.compile(r"(#+) (.+)")
ITEM = re.compile(r"(?:-|\d+\.) ")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
COMMENT = re.compile(r"\s+# (.*)")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
BOLD = re.compile(r"(\w?)\*\*([^*`]+)\*\*(\w?)")

# "Qwen2.5-7B", "1,000" and "1e-6" are one number each; ASCII alone, because \w includes Chinese.
NUMBER = re.compile(r"[A-Za-z0-9_]*[0-9](?:[A-Za-z0-9_]|[.,+-](?=[A-Za-z0-9]))*")
MONTHS = "January February March April May June July August September October November December"
MONTH = re.compile(rf"\b({MONTHS.replace(' ', '|')})(?= \d{{4}})")
SCALED = re.compile(r"([0-9.]+) ?(million|万)")
SCALES = {"million": 1_000_000, "万": 10_000}
ENGLISH = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
ENGLISH_WORD = re.compile(rf"\b({ENGLISH.replace(' ', '|')})\b", re.IGNORECASE)
DIGITS = "一二三四五六七八九"
# A numeral counts before a measure word, and not as an ordinal or a part of a larger number. Like
# English "one", 一 does not count: both are often no number.
CHINESE_WORD = re.compile(
    rf"(?<![第{DIGITS}十百千万])(十[{DIGITS}]?|[两{DIGITS[1:]}])(?=分钟|[个条次步台行项种份类张页段位道件组轮核卡])"
)


@dataclass(frozen=True, kw_only=True)
class Section:
    page: str
    """Path from the root of the checkout."""
    level: int
    title: str
    fragment: str
    """What a link to this section has after its page; a link to a title has none."""
    blocks: tuple[tuple[str, str], ...] = ()
    """Kind and text, in the order of the page."""


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def blocks_of(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Split the lines of a section into fences, lines of code, table rows, items and paragraphs."""
    kind, flow = "", list[str]()
    fenced = False
    for line in [*lines, ""]:
        continues = kind == "item" and line.startswith("  ")
        starts = kind_of(line, fenced)
        if flow and not continues and starts != "text":
            yield kind, " ".join(flow)
            flow = []
        fenced ^= starts == "fence"
        if starts in {"fence", "code", "row"} and not continues:
            yield starts, line.rstrip()
        elif line:
            kind = kind if flow else starts
            flow.append(line)


def kind_of(line: str, fenced: bool) -> str:
    """Return what a line is or starts; an empty line is nothing."""
    if line.startswith("```"):
        return "fence"
    if fenced or line.startswith("    "):
        return "code"
    if line.startswith("|"):
        return "row"
    return "item" if ITEM.match(line) else "text" if line else ""


def sections(page: str, text: str) -> list[Section]:
    found: list[tuple[int, str, list[str]]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        heading = None if fenced else HEADING.fullmatch(line)
        if heading:
            found.append((len(heading[1]), heading[2], []))
        else:
            found[-1][2].append(line)
    return [
        Section(
            page=page,
            level=level,
            title=title,
            fragment=anchor(title) if place else "",
            blocks=tuple(blocks_of(lines)),
        )
        for place, (level, title, lines) in enumerate(found)
    ]


def without_link_line(text: str) -> str:
    """Drop the third line, which links the page to the other language."""
    lines = text.split("\n")
    return "\n".join([*lines[:2], *lines[3:]])


def chinese_text(page: str) -> str:
    return without_link_line(read(page))


def english_sections(texts: dict[str, str], title: str) -> list[Section]:
    """Return the sections in the order and at the levels that a Chinese page with `title` has."""
    apart = [sections(page, text) for page, text in texts.items()]
    if len(apart) == 1:
        return apart[0]
    page = next(iter(texts))
    top = Section(page=page, level=1, title=title, fragment="")
    return [top, *(replace(each, level=each.level + 1) for page in apart for each in page)]


def english_texts(page: str) -> dict[str, str]:
    texts = {name: read(name) for name in PAGES[page]}
    # Of the English pages only the README has a link to its Chinese page.
    return {name: without_link_line(t) if name == "README.md" else t for name, t in texts.items()}


@cache
def english_places() -> dict[tuple[str, str], tuple[str, str]]:
    """Map each section of a Chinese page to that of an English page, as link targets."""
    places = {}
    for page in PAGES:
        ours = sections(page, chinese_text(page))
        theirs = english_sections(english_texts(page), ours[0].title)
        for one, other in zip(ours, theirs, strict=False):
            places[page, one.fragment] = (other.page, other.fragment)
    return places


def links(page: str, text: str, places: dict[tuple[str, str], tuple[str, str]]) -> Counter[str]:
    """Count link targets as paths from the root, of Chinese pages as their English sections."""
    found: Counter[str] = Counter()
    for _, link in LINK.findall(text):
        path, _, fragment = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        name = target.relative_to(ROOT).as_posix()
        where = places.get((name, fragment), (name, fragment))
        found["#".join(where)] += 1
    return found


def names(text: str) -> Counter[str]:
    return Counter(re.findall(r"`([^`]+)`", text))


def numbers(text: str) -> Counter[str]:
    """Count numbers outside of backticks and link targets, written in digits or in words."""
    text = re.sub(r"`[^`]+`", " ", LINK.sub(r"\1", text))
    text = MONTH.sub(lambda found: str(MONTHS.split().index(found[1]) + 1), text)
    text = SCALED.sub(lambda found: f"{Decimal(found[1]) * SCALES[found[2]]:.0f}", text)
    digits = [number.replace(",", "") for number in NUMBER.findall(text)]
    english = [str(ENGLISH.split().index(word.lower()) + 2) for word in ENGLISH_WORD.findall(text)]
    chinese = [chinese_number(word) for word in CHINESE_WORD.findall(text)]
    return Counter([*digits, *english, *chinese])


def chinese_number(word: str) -> str:
    ten, unit = word.startswith("十"), word.removeprefix("十").replace("两", "二")
    return str(10 * ten + (DIGITS.index(unit) + 1 if unit else 0))


def difference(ours: Counter[str], theirs: Counter[str]) -> str:
    lacks, has = sorted((theirs - ours).elements()), sorted((ours - theirs).elements())
    return f"Chinese lacks {lacks}, has {has}" if lacks or has else ""


def code_difference(ours: str, theirs: str) -> str:
    """Compare a line of code; comments, and columns that are explained in Chinese, may differ."""
    ours, theirs = COMMENT.sub("", ours), COMMENT.sub("", theirs)
    if CHINESE.search(ours):
        ours, theirs = (re.split(" {2,}", line.strip())[0] for line in (ours, theirs))
    return "" if ours == theirs else f"{ours.strip()!r} is {theirs.strip()!r} in English"


def block_differences(ours: Section, theirs: Section) -> Iterator[str]:
    places = english_places()
    yield difference(names(ours.title), names(theirs.title))
    yield difference(numbers(ours.title), numbers(theirs.title))
    empty = ("", "")
    for one, other in zip_longest(ours.blocks, theirs.blocks, fillvalue=empty):
        (kind, text), (their_kind, their_text) = one, other
        if kind != their_kind or (kind == "fence" and text != their_text):
            yield f"a {kind or 'missing block'} is a {their_kind or 'missing block'} in English"
            return
        if kind == "code":
            yield code_difference(text, their_text)
            comments = (" ".join(COMMENT.findall(line)) for line in (text, their_text))
            yield difference(*map(numbers, comments))
        elif kind != "fence":
            yield difference(names(text), names(their_text))
            yield difference(numbers(text), numbers(their_text))
            yield difference(links(ours.page, text, places), links(theirs.page, their_text, places))
            yield difference(Counter("|" * text.count("|")), Counter("|" * their_text.count("|")))


def drift(page: str, chinese: str, english: dict[str, str]) -> list[str]:
    """List the differences between a Chinese page and the English pages that it follows."""
    ours = sections(page, chinese)
    theirs = english_sections(english, ours[0].title)
    levels = [[section.level for section in side] for side in (ours, theirs)]
    if levels[0] != levels[1]:
        return [f"{page}: headings have levels {levels[0]}, in English {levels[1]}"]
    return [
        f"{page}: {one.title}: {found}"
        for one, other in zip(ours, theirs, strict=True)
        for found in block_differences(one, other)
        if found
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_chinese_page_has_the_structure_and_the_facts_of_the_english_one(page: str) -> None:
    found = drift(page, chinese_text(page), english_texts(page))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_every_chinese_page_is_held_and_links_its_english_pages_in_its_third_line() -> None:
    written = {*ROOT.glob("*.zh-CN.md"), *(ROOT / "docs" / "zh").rglob("*.md")}
    assert {path.relative_to(ROOT).as_posix() for path in written} == set(PAGES)
    for page, english in PAGES.items():
        assert links(page, read(page).split("\n")[2], {}) == Counter(f"{name}#" for name in english)
    assert "(README.zh-CN.md)" in read("README.md").split("\n")[2]


def test_a_chinese_page_links_the_chinese_page_of_another_if_it_exists() -> None:
    followed = {page for pages in PAGES.values() for page in pages}
    linked = {page: links(page, chinese_text(page), {}) for page in PAGES}
    assert sum(map(len, linked.values())) >= 60
    assert {
        (page, link) for page in PAGES for link in linked[page] if link.split("#")[0] in followed
    } == set()


def unseen_bold(text: str) -> list[str]:
    """List bold texts that CommonMark leaves as they are: a letter, asterisks, then punctuation."""
    return [
        bold
        for before, bold, after in BOLD.findall(text)
        if (before and re.match(r"\W", bold)) or (after and re.search(r"\W$", bold))
    ]


def test_a_renderer_sees_where_bold_text_starts_and_ends() -> None:
    assert {page: unseen_bold(read(page)) for page in PAGES} == {page: [] for page in PAGES}
    assert unseen_bold("**未跑过。**NPU") == ["未跑过。"]


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("README.zh-CN.md", "--config-name grpo_tiny_cpu", "--config-name grpo_tiny"),
        ("README.zh-CN.md", "2 核上 13-16 分钟", "2 核上 13-30 分钟"),
        ("README.zh-CN.md", "# 8 张 NPU", "# 16 张 NPU"),
        ("docs/zh/first-run.md", "`rl_config.test_freq`", "`rl_config.test_interval`"),
        ("docs/zh/first-run.md", "190 万", "19 万"),
        ("docs/zh/first-run.md", "两个 worker 训练 30 步", "三个 worker 训练 30 步"),
        ("docs/zh/first-run.md", "plan.json  ", "plans.json  "),
        ("docs/zh/first-run.md", "## 启动", "### 启动"),
        ("docs/zh/first-run.md", "| 2 | 0.336 |", "| 2 | 0.363 |"),
        ("docs/zh/ascend.md", "| ray | 2.60.0 |", "| ray | 2.61.0 |"),
        ("docs/zh/ascend.md", "torch-npu==2.10.0.post4", "torch-npu==2.10.0.post3"),
        ("docs/zh/ascend.md", "### 3. vLLM", "### 4. vLLM"),
        ("docs/zh/ascend.md", "](#新节点首次运行)", "](#启动训练)"),
        ("docs/zh/come-from-mindspeed-rl.md", "2026 年 4 月", "2026 年 5 月"),
        ("docs/zh/come-from-mindspeed-rl.md", "| refused |", "| refused | |"),
        ("docs/zh/troubleshooting.md", "先读十条", "先读五条"),
        ("docs/zh/troubleshooting.md", "低于 0.5", "低于 0.05"),
        ("docs/zh/troubleshooting.md", "../how-to/own-reward.md", "../how-to/own-data.md"),
    ],
)
def test_a_changed_command_name_number_row_or_link_is_found(
    page: str, before: str, after: str
) -> None:
    text = chinese_text(page)
    changed = text.replace(before, after, 1)
    assert drift(page, text, english_texts(page)) == []
    assert changed != text
    assert len(drift(page, changed, english_texts(page))) == 1
