"""The page in a real browser without network: nothing to complain about, and lanes that move."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from report_reading import record_virtual_run

from ebrl.engines.virtual.costs import Costs
from ebrl.report.page import write_report
from ebrl.testing.build import make_plan

DOCS = Path(__file__).parents[2] / "docs"

_TRY = """<script>
const tries = ["in", "right", "out", "left", "all", "in", "in"];
const swim = document.querySelector(".lanes");
const views = [swim.getAttribute("viewBox")];
for (const name of tries) {
  document.querySelector(`[data-do=${name}]`).click();
  views.push(swim.getAttribute("viewBox"));
}
const chart = document.querySelector(".swim");
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
views.push(swim.getAttribute("viewBox"));
chart.dispatchEvent(new WheelEvent("wheel", { shiftKey: true, deltaY: -1, cancelable: true }));
views.push(swim.getAttribute("viewBox"));
document.title = views.join("|");
</script>"""


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``docs/make_report.py``, where a browser is installed."""
    monkeypatch.syspath_prepend(DOCS)
    import make_report

    if make_report.browser() is None:
        pytest.skip(f"no browser: want one of {', '.join(make_report.BROWSERS)} on the PATH")
    return make_report


@pytest.fixture
def page(tmp_path: Path) -> Path:
    plan = make_plan(num_shards=4, num_cpus=2, batch=4, max_updates=30)
    return write_report(record_virtual_run(tmp_path / "run", plan, costs=Costs(env_step_s=0.01))).path


def test_the_browser_has_nothing_to_complain_about(pictures: ModuleType, page: Path, tmp_path: Path) -> None:
    assert pictures.photograph(pictures.browser(), page, tmp_path / "page.png", size=(800, 600)) == []
    with Image.open(tmp_path / "page.png") as image:
        assert image.size == (800, 600)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20


def test_a_complaint_would_be_heard(pictures: ModuleType, page: Path) -> None:
    """So that the test above means something; the page's own policy forbids what is tried here."""
    page.write_text(
        page.read_text().replace("</main>", '</main><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="/>')
    )
    _, complaints = pictures.read_back(pictures.browser(), page)
    assert any("Content Security Policy" in line for line in complaints)


def test_lanes_zoom_and_move_within_the_run(pictures: ModuleType, page: Path) -> None:
    page.write_text(page.read_text().replace("</body>", f"{_TRY}</body>"))
    text, complaints = pictures.read_back(pictures.browser(), page)
    assert complaints == []
    found = re.search(r"<title>([\d. |]+)</title>", text)
    assert found is not None
    views = [(float(view.split()[0]), float(view.split()[2])) for view in found[1].split("|")]
    held = re.search(r'data-end="([\d.]+)"', text)
    assert held is not None
    end = float(held[1])
    first, zoomed, right, out, left, everything, near, nearer, again, wheeled = views
    assert zoomed[1] == pytest.approx(first[1] / 2, rel=0.01)
    assert right[0] > zoomed[0]
    assert out[1] == pytest.approx(2 * right[1], rel=0.01)
    assert left[0] <= out[0]
    assert everything == again == pytest.approx((0.0, end))
    assert nearer[1] == pytest.approx(near[1] / 2, rel=0.01)
    assert wheeled[1] == pytest.approx(0.8 * end, rel=0.01)
    assert all(at >= 0 and at + size <= end * 1.001 for at, size in views)
    assert '<div class="buttons">' in text
