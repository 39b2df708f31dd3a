"""Takes the pictures of docs/report.md: reports of the samples, drawn by headless Chromium.

    python scripts/report_pictures.py [FOLDER]

FOLDER (docs/images) gets one PNG a picture. Needs Chromium with its driver (Debian: chromium, chromium-driver) and selenium.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SAMPLES: Final = ROOT / "samples"
WIDTH: Final = 1240


class Picture(NamedTuple):
    """One picture: of a page, the whole of it or one section, in a theme."""

    name: str
    page: str
    section: str | None = None
    theme: str = "light"


PAGES: Final = {
    "two": [
        "sglang_tp2_eagle3_steps2.parquet",
        "sglang_tp2_eagle3_steps2_nccl.parquet",
        "--baseline",
        "sglang_tp2_plain.parquet",
    ],
    "one": ["sglang_tp2_eagle3_steps2.parquet"],
}
"""Page -> arguments of ``specanalyze report``; file names are samples."""
PICTURES: Final = (
    Picture("report-two-recordings-overview", "two", "overview"),
    Picture("report-two-recordings-breakdown", "two", "breakdown"),
    Picture("report-two-recordings-timeline", "two", "timeline"),
    Picture("report-two-recordings-waits", "two", "waits"),
    Picture("report-two-recordings-changes", "two", "changes"),
    Picture("report-layers-dark", "one", "layers", "dark"),
    Picture("report-sglang-node-map", "one"),
)


def write_page(name: str, folder: Path) -> Path:
    """A page by the command line that a user would type."""
    arguments = [str(SAMPLES / word) if word.endswith(".parquet") else word for word in PAGES[name]]
    path = folder / f"{name}.html"
    subprocess.run([sys.executable, "-m", "specanalyze", "report", *arguments, "-o", str(path)], check=True)
    return path


def browser() -> Any:
    """Headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def take(driver: Any, page: Path, picture: Picture, width: int = WIDTH) -> bytes:
    """The picture as PNG."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": picture.theme}]}
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    driver.get(page.as_uri())
    for _ in range(600):
        if driver.execute_script("return document.body.dataset.plots"):
            break
        time.sleep(0.1)
    if driver.execute_script("return document.body.dataset.plots") != "drawn":
        raise SystemExit(f"{page.name}: its plots were not drawn")
    box = driver.execute_script(
        "const e = arguments[0] ? document.getElementById(arguments[0]) : document.documentElement;"
        "const b = e.getBoundingClientRect();"
        "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height};",
        picture.section,
    )
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {**box, "scale": 1}}
    )
    return base64.b64decode(shot["data"])


def main() -> None:
    """Take all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as scratch:
        pages = {name: write_page(name, Path(scratch)) for name in PAGES}
        driver = browser()
        try:
            for picture in PICTURES:
                path = folder / f"{picture.name}.png"
                path.write_bytes(take(driver, pages[picture.page], picture))
                print(f"{path}: {path.stat().st_size} bytes")
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
