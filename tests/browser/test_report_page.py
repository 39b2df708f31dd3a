"""The report in a real browser: plots drawn, hover and zoom work, nothing leaves the page, text of traces stays text."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import story
import traces
from story import MS

pytest.importorskip("altair", reason="the report needs altair, vl-convert-python and jinja2")
pytest.importorskip("vl_convert", reason="the report needs altair, vl-convert-python and jinja2")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from specanalyze.report.page import build_report, to_html  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
HOSTILE = "</script><script>window.owned=1</script><img src=x onerror=window.owned=2>'\"&amp;"
"""A name that tries to leave its script, its attribute and its element."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium with its driver on this machine (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def page(folder: Path, *recordings: Any, baseline: Any = None) -> Path:
    path = folder / "report.html"
    path.write_text(to_html(build_report([r.trace() for r in recordings], baseline=baseline and baseline.trace())))
    return path


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speculation on four ranks, one of them late, beside its baseline."""
    recording = story.first_recording(ranks=4, lag_ns={2: 20_000}, observer_ns=3 * MS)
    return page(
        tmp_path_factory.mktemp("eagle"), recording, baseline=story.baseline_recording(15_900_000, False, ranks=4)
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose kernel, range, module, host and environment names attack the page."""
    ms = 1_000_000
    rows: list[dict[str, Any]] = []
    for cycle in range(8):
        at = cycle * 10 * ms
        rows += [
            traces.phase(
                "spec.cycle",
                at,
                at + 9 * ms,
                cycle=cycle,
                mode="speculative",
                batch_size=1,
                draft_tokens=2,
                request_ids=[HOSTILE],
                accept_lengths=[2],
                accepted_draft_tokens=[1],
            ),
            traces.phase("spec.verify", at + ms, at + 8 * ms, cycle=cycle),
            traces.phase(f"spec.{HOSTILE}", at + 2 * ms, at + 3 * ms),
            traces.launch("cudaGraphLaunch", at + ms, 10 * cycle + 1),
            traces.kernel(HOSTILE, at + 2 * ms, at + 7 * ms, 10 * cycle + 1, graph_id=1, node=0),
            traces.kernel("ncclDevKernel_AllReduce", at + 7 * ms, at + 8 * ms, 10 * cycle + 1, graph_id=1, node=1),
        ]
    rows += [
        {
            "kind": "node",
            "name": n,
            "graph_id": 1,
            "node": i,
            "node_type": "kernel",
            "module": f"model.layers.0.{HOSTILE}",
            "module_class": HOSTILE,
            "start_ns": 0,
        }
        for i, n in enumerate((HOSTILE, "ncclDevKernel_AllReduce"))
    ]
    trace = traces.trace(traces.rank_trace(rows, host=HOSTILE))
    named = type(trace)(
        f"{HOSTILE}.parquet",
        trace.sources,
        {"environment": {"gpu": HOSTILE, "variables": {HOSTILE: HOSTILE}, "server_args": {"x": HOSTILE}}},
        [HOSTILE],
    )
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(to_html(build_report([named])))
    return path


def show(browser: Any, path: Path, theme: str = "light", width: int = 1400) -> None:
    """Open a page and wait until its plots are drawn; what the browser logged before is forgotten."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "", "features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(path.as_uri())
    for _ in range(300):
        if browser.execute_script("return document.body.dataset.plots"):
            return
        time.sleep(0.1)
    raise AssertionError("the plots were not drawn")


def picture(browser: Any, tmp_path: Path, name: str) -> None:
    """Keep a screenshot of the whole page: in SPECANALYZE_SCREENSHOTS where that is set."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    folder = Path(os.environ.get("SPECANALYZE_SCREENSHOTS", tmp_path))
    (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def requested(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def test_opens_from_a_file_without_a_word_and_asks_nobody(browser: Any, eagle: Path, tmp_path: Path) -> None:
    show(browser, eagle)
    assert browser.execute_script("return document.body.dataset.plots") == "drawn"
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot")
    assert len(plots) >= 7
    assert [p.get_attribute("id") for p in plots if not p.find_elements(By.CSS_SELECTOR, "svg path, svg line")] == []
    picture(browser, tmp_path, "eagle-light")
    assert complaints(browser) == []
    asked = [url for url in requested(browser) if not url.startswith("data:")]
    assert asked == [eagle.as_uri()]


def test_the_page_may_not_ask_even_if_it_wanted(browser: Any, eagle: Path) -> None:
    """The page's own policy stops requests and foreign scripts, whatever a later change puts into it."""
    show(browser, eagle)
    browser.execute_script(
        "fetch('http://127.0.0.1:9/x').catch(() => { window.refused = true; });"
        "const s = document.createElement('script'); s.textContent = 'window.owned = 3'; document.body.append(s);"
    )
    time.sleep(0.3)
    assert browser.execute_script("return [window.refused, window.owned]") == [True, None]
    assert any("Content Security Policy" in line for line in complaints(browser))


def test_every_plot_has_its_table(browser: Any, eagle: Path) -> None:
    show(browser, eagle)
    lacking = browser.execute_script(
        "return [...document.querySelectorAll('figure')].filter(f => !f.querySelector('table tbody tr')).map(f => f.textContent)"
    )
    assert lacking == []


def test_hovering_a_bar_says_what_it_is(browser: Any, eagle: Path) -> None:
    show(browser, eagle)
    bar = browser.find_element(By.CSS_SELECTOR, "#breakdown .plot svg .mark-rect path[aria-label*='MoE']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    time.sleep(0.3)
    tip = browser.find_element(By.ID, "vg-tooltip-element")
    assert "visible" in tip.get_attribute("class")
    assert "MoE" in tip.text
    assert "ms" in tip.text


def timeline_domain(browser: Any) -> list[float]:
    found = browser.execute_script("return document.querySelector('#timeline .plot').view.scale('x').domain()")
    return [float(v) for v in found]


def test_the_timeline_zooms_moves_and_comes_back(browser: Any, eagle: Path) -> None:
    show(browser, eagle)
    plot = browser.find_element(By.CSS_SELECTOR, "#timeline .plot svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    whole = timeline_domain(browser)
    origin = ScrollOrigin.from_element(plot)
    at = browser.execute_script("return scrollY")
    ActionChains(browser).scroll_from_origin(origin, 0, -40).perform()
    time.sleep(0.3)
    assert timeline_domain(browser) == whole
    assert browser.execute_script("return scrollY") < at  # the page goes on where the timeline lies under the pointer
    wheel = ActionChains(browser).key_down(Keys.CONTROL).scroll_from_origin(origin, 0, -400).key_up(Keys.CONTROL)
    wheel.perform()
    time.sleep(0.3)
    near = timeline_domain(browser)
    assert near[1] - near[0] < 0.8 * (whole[1] - whole[0])
    ActionChains(browser).move_to_element(plot).click_and_hold().move_by_offset(-120, 0).release().perform()
    time.sleep(0.3)
    moved = timeline_domain(browser)
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0], rel=1e-6)
    ActionChains(browser).double_click(plot).perform()
    time.sleep(0.3)
    assert timeline_domain(browser) == pytest.approx(whole)
    assert complaints(browser) == []


def test_dark_mode_follows_the_system_and_the_button(browser: Any, eagle: Path, tmp_path: Path) -> None:
    def look() -> list[str]:
        script = """
        const path = document.querySelector("#breakdown .plot svg .mark-rect path[aria-label*='MoE']");
        const text = document.querySelector('#breakdown .plot svg text');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(path).fill, getComputedStyle(text).fill];
        """
        return [str(v) for v in browser.execute_script(script)]

    show(browser, eagle)
    light = look()
    assert light == ["rgb(245, 246, 248)", "rgb(0, 127, 91)", "rgb(27, 31, 36)"]
    show(browser, eagle, theme="dark")
    dark = look()
    assert dark == ["rgb(15, 18, 21)", "rgb(24, 181, 138)", "rgb(232, 235, 238)"]
    picture(browser, tmp_path, "eagle-dark")
    browser.find_element(By.ID, "theme").click()
    assert look() == light


def test_prints_to_paper(browser: Any, eagle: Path) -> None:
    """White paper with dark ink also from a dark screen, nothing wider than the sheet, short tables open."""
    show(browser, eagle, theme="dark")
    browser.execute_script(
        "window.before = 0; addEventListener('beforeprint', () => { window.before = document.querySelectorAll('details[open]').length })"
    )
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") > 1
    assert browser.execute_script("return window.before") > 0
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = browser.execute_script("return getComputedStyle(document.querySelector('#breakdown svg text')).fill")
    assert ink == "rgb(27, 31, 36)"
    wide = "return [...document.querySelectorAll('.plot svg')].map(s => s.getBoundingClientRect().right).filter(r => r > innerWidth + 1)"
    assert browser.execute_script(wide) == []
    # One table that cannot wrap makes the browser shrink every page until it fits.
    shrinks = "return [...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().width > innerWidth).map(t => t.textContent.slice(0, 80))"
    assert browser.execute_script(shrinks) == []


def test_plots_are_seen_whole_on_a_telephone(browser: Any, eagle: Path) -> None:
    """Labels used to take the width, and all bars lay to the right of the screen."""
    show(browser, eagle, width=390)
    hidden = browser.execute_script(
        "return [...document.querySelectorAll('.aside')].filter(a => a.scrollWidth > a.clientWidth).map(a => a.textContent.slice(0, 80))"
    )
    assert hidden == []
    bars = browser.execute_script(
        "return [...document.querySelectorAll('#breakdown .plot svg .mark-rect path')].map(p => p.getBoundingClientRect()).map(r => [r.left, r.right])"
    )
    assert max(right for _, right in bars) - min(left for left, _ in bars) > 150
    labels = (
        "return [...document.querySelectorAll('#breakdown .plot svg .role-axis-label text')].map(t => t.textContent)"
    )
    assert any("rank 0" in text for text in browser.execute_script(labels))


def test_nothing_in_a_plot_is_cut_on_a_telephone(browser: Any, eagle: Path) -> None:
    """``ms, all ranks together, the gap before included`` ended at the edge; legends were cut although they had a line each."""
    show(browser, eagle, width=390)
    cut = browser.execute_script(
        """return [...document.querySelectorAll('.plot svg')].flatMap(svg => {
        const edge = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(t => t.textContent.trim()).map(t => [t.textContent, t.getBoundingClientRect()])
          .filter(([, r]) => r.left < edge.left - 1 || r.right > edge.right + 1).map(([text]) => text);
        })"""
    )
    assert cut == []
    legends = browser.execute_script(
        "return [...document.querySelectorAll('.plot svg .role-legend-label text')].map(t => t.textContent)"
    )
    assert len(legends) > 10
    assert [text for text in legends if "…" in text] == []
    fact = "return document.querySelector('#environment td').getBoundingClientRect().width"
    assert browser.execute_script(fact) >= 176  # 11rem: names of settings stay readable, the table scrolls


def test_a_screen_reader_finds_its_way(browser: Any, eagle: Path) -> None:
    """Headings in order, each region and plot by its own name, no mark of a plot between a plot and its table, no empty header."""
    show(browser, eagle)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert [(a, b) for a, b in pairwise(levels) if b > a + 1] == []
    assert levels.count(1) == 1
    named = "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute('aria-label'))"
    regions = browser.execute_script(named, "[role=region], nav")
    assert len(set(regions)) == len(regions) > 7
    plots = browser.execute_script(named, ".aside[role=img]")
    assert all(plots)
    inside = "return [...document.querySelectorAll('.plot')].filter(p => !p.closest('[role=img]')).length"
    assert browser.execute_script(inside) == 0
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [n for n in tree if not n["ignored"]]
    assert [n for n in seen if n["role"]["value"] in ("GraphicsSymbol", "graphics-symbol")] == []
    empty = "return [...document.querySelectorAll('th')].filter(h => !h.textContent.trim()).length"
    assert browser.execute_script(empty) == 0
    focusable = browser.execute_script(
        "return [...document.querySelectorAll('a, button, summary, [tabindex]')].filter(e => e.tabIndex < 0).length"
    )
    assert focusable == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, eagle: Path, theme: str) -> None:
    """4.5 to 1 for each colour of text on each ground it lies on, as WCAG asks (success criterion 1.4.3)."""
    show(browser, eagle, theme=theme)
    script = """
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(arguments[0].map(name => [name, style.getPropertyValue('--' + name).trim()]));
    """
    texts, grounds = ("ink", "muted", "accent", "good", "bad"), ("paper", "back")
    colours = browser.execute_script(script, [*texts, *grounds])
    light = {name: luminance(colour) for name, colour in colours.items()}
    for text in texts:
        for ground in grounds:
            bright, dim = sorted((light[text], light[ground]), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (theme, text, ground)


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_commands_in_messages_stand_out(browser: Any, eagle: Path) -> None:
    show(browser, eagle)
    text = browser.find_element(By.ID, "findings").text
    assert "`" not in text
    assert browser.find_elements(By.CSS_SELECTOR, "#findings code") != []


def test_options_stay_on_one_line(browser: Any, tmp_path: Path) -> None:
    """``(--`` ended a line and ``scheduler-recv-interval`` began the next one."""
    show(browser, page(tmp_path, story.first_recording(control=False)), width=390)
    options = "return [...document.querySelectorAll('.option')].map(o => [o.textContent, o.getClientRects().length])"
    shown = browser.execute_script(options)
    assert ["--baseline", 1] in shown
    assert [name for name, lines in shown if lines != 1 or not name.startswith("--")] == []


@pytest.mark.parametrize("width", [390, 820])
def test_fits_narrow_screens(browser: Any, eagle: Path, width: int) -> None:
    show(browser, eagle, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_readable_without_scripts(browser: Any, eagle: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(eagle.as_uri())
        text = browser.find_element(By.TAG_NAME, "body").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "Plots need JavaScript" in text
    assert "Where verify's time goes" in text


def test_text_of_a_trace_stays_text(browser: Any, hostile: Path, tmp_path: Path) -> None:
    show(browser, hostile)
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.scripts.length") == 3
    assert browser.execute_script("return document.images.length") == 0
    assert HOSTILE in browser.execute_script(
        "return document.body.textContent.replace(document.getElementById('specs').textContent, '')"
    )
    picture(browser, tmp_path, "hostile")
    bars = browser.find_elements(By.CSS_SELECTOR, "#timeline .plot svg .mark-rect path[aria-label*='owned']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bars[-1])
    ActionChains(browser).move_to_element(bars[-1]).perform()
    time.sleep(0.3)
    tip = browser.find_element(By.ID, "vg-tooltip-element")
    assert "<script>window.owned=1</script>" in tip.text
    assert browser.execute_script("return [window.owned, document.images.length, document.scripts.length]") == [
        None,
        0,
        3,
    ]
    assert complaints(browser) == []


def test_findings_lead_to_their_plots(browser: Any, eagle: Path) -> None:
    show(browser, eagle)
    links = browser.find_elements(By.CSS_SELECTOR, "#findings ol a, header nav a")
    targets = [link.get_attribute("href").rpartition("#")[2] for link in links]
    assert len(targets) > 10
    assert [t for t in targets if not browser.find_elements(By.ID, t)] == []


def test_recordings_of_the_collector(browser: Any, tmp_path: Path) -> None:
    """The repository's own samples: two step counts of one server beside plain decoding."""
    from specanalyze.formats.load import open_trace

    samples = Path(__file__).resolve().parents[2] / "samples"
    steps2, steps5, plain = (
        open_trace([samples / f"sglang_tp2_{name}.parquet"]) for name in ("eagle3_steps2", "eagle3_steps5", "plain")
    )
    path = tmp_path / "report.html"
    path.write_text(to_html(build_report([steps2, steps5], baseline=plain)))
    show(browser, path)
    picture(browser, tmp_path, "samples")
    assert browser.execute_script("return document.body.dataset.plots") == "drawn"
    assert complaints(browser) == []
    assert path.stat().st_size < 3_000_000


def test_a_real_server_with_a_node_map(browser: Any, reference: Path, tmp_path: Path) -> None:
    from specanalyze.formats.load import open_trace

    folder = reference / "traces" / "sglang_h200" / "tp2"
    trace = open_trace(sorted(folder.glob("e2_nccl_nodemap_m17_rank?.json.gz")))
    path = tmp_path / "report.html"
    path.write_text(to_html(build_report([trace])))
    show(browser, path)
    picture(browser, tmp_path, "nodemap")
    assert browser.execute_script("return document.body.dataset.plots") == "drawn"
    cells = browser.find_elements(By.CSS_SELECTOR, "#layers .plot:first-of-type svg .mark-rect path")
    assert len(cells) >= 24 * 6
    assert complaints(browser) == []
    assert path.stat().st_size < 3_000_000
