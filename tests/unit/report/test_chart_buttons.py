"""The buttons of the charts, in Chromium with a touch screen, which always shows them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import make_run
from playwright.sync_api import Browser, FloatRect, Locator, Page

from mindrl.report.page import write_page
from mindrl.report.run_state import RunState


@pytest.fixture
def touched(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of a run on a touch screen."""
    path = tmp_path / "page.html"
    write_page(path, [RunState(make_run(tmp_path / "run"))])
    context = browser.new_context(has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector(".chart .main-svg")
    yield page
    context.close()


def bounds(part: Locator) -> FloatRect:
    found = part.first.bounding_box()
    assert found is not None
    return found


def test_no_button_uploads_a_chart_and_they_cover_no_curve_and_no_legend(touched: Page) -> None:
    memory = touched.locator(".chart", has_text="Device memory at each moment")
    memory.scroll_into_view_if_needed()
    memory.locator(".main-svg").first.wait_for()
    buttons = touched.locator(".modebar-btn").all()
    names = [button.get_attribute("data-title") or "" for button in buttons]
    assert {name.split()[0] for name in names} == {"Download", "Zoom", "Pan", "Reset"}
    for chart in (touched.locator(".chart").first, memory):
        bar = bounds(chart.locator(".modebar"))
        for part in (".nsewdrag", ".legend"):
            assert bar["y"] + bar["height"] <= bounds(chart.locator(part))["y"], part
