"""Checks the pages of `stratus report` in headless Chromium.

    python3 scripts/check-page.py STRATUS FOLDER [BROWSER]

Trains digits twice and a network of blocks, writes the pages of one run, of both, of their difference, with
published figures, and of the network, and opens each 400 and 1,280 pixels wide, light and dark. Every page
must open without a message on the console, fit the window, have its charts drawn and its axes labelled, and
sort its tables; layers must open, and lines be hidden, by mouse and keyboard. Screenshots are written to
FOLDER. The first failed assertion ends the check.
"""
import pathlib
import subprocess
import sys

from controls_in_browser import check_formats, check_legends
from layers_in_browser import check_layers
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (400, 1280)
SCHEMES = ("light", "dark")
# uPlot draws each chart as a canvas, unless there is nothing to draw.
EMPTY = """() => [...document.querySelectorAll("[data-chart]")]
    .filter(place => !place.querySelector("canvas")).map(place => place.dataset.chart)"""
# Duplicate labels of an axis: rounded to too few decimals.
EQUAL_LABELS = """() => [...document.querySelectorAll("[data-chart]")].filter(place => place.chart)
    .flatMap(place => place.chart.axes.map(axis => (axis._values || []).filter(label => label)))
    .filter(labels => new Set(labels).size < labels.length)"""
# Elements that extend beyond the window and are not in a scrolling box; drawings are cut at their edges.
WIDE = """() => [...document.querySelectorAll("body *")].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.right > document.documentElement.clientWidth + 1
        && !element.ownerSVGElement && !element.closest(".scroll, .chart");
}).map(element => element.outerHTML.slice(0, 80))"""
# The lightness of the page's background, from 0 to 1.
LIGHT = """() => getComputedStyle(document.documentElement).backgroundColor.match(/[0-9.]+/g)
    .slice(0, 3).reduce((sum, value) => sum + Number(value), 0) / 765"""
# Contrast of the text with the page (WCAG 2).
CONTRAST = """() => {
    const style = getComputedStyle(document.documentElement);
    const luminance = text => text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const [a, b] = [luminance(style.color), luminance(style.backgroundColor)].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
}"""


def stratus(program, folder, *arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


def pages(program, folder):
    """Trains, and writes the pages; returns them by name."""
    folder.mkdir(parents=True)
    for run in ("1", "2"):
        settings = (f"data.path={ROOT / 'data/mnist'}", "train.epochs=1", f"train.seed={run}")
        overrides = [word for setting in settings for word in ("--set", setting)]
        stratus(program, folder, "train", "digits", "--out", f"runs/{run}", *overrides)
    images = ("name=synthetic", "shape=[3,32,32]", "synthetic.images=24", "synthetic.validation_images=8")
    settings = ("train.epochs=1", "train.batch_size=8", *(f"data.{setting}" for setting in images))
    overrides = [word for setting in settings for word in ("--set", setting)]
    stratus(program, folder, "train", "resnet18_cifar", "--out", "blocks/1", *overrides)
    published = "source,machine,model,metric,value,unit\nA deck,a GPU,digits,train_time,296,s\n"
    (folder / "published.csv").write_text(published, encoding="utf-8")
    written = {
        "one": ["runs/1"],
        "two": ["runs"],
        "diff": ["--diff", "runs/1", "runs/2"],
        "blocks": ["blocks/1"],
        "against": ["runs/1", "--against", "published.csv"],
    }
    for name, arguments in written.items():
        stratus(program, folder, "report", *arguments, "--out", f"{name}.html")
    return written


def check(browser, path, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if "file:" not in request.url else None)
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    what = (path.name, width, scheme)
    across = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert across[0] <= across[1], (what, across, page.evaluate(WIDE))
    assert page.evaluate(WIDE) == [], (what, page.evaluate(WIDE))
    assert page.evaluate(EMPTY) == [], (what, page.evaluate(EMPTY))
    assert page.evaluate(EQUAL_LABELS) == [], (what, page.evaluate(EQUAL_LABELS))
    light = page.evaluate(LIGHT)
    assert (light > 0.8) == (scheme == "light") and (light < 0.2) == (scheme == "dark"), (what, light)
    assert page.evaluate(CONTRAST) > 7, (what, page.evaluate(CONTRAST))
    # A click on a heading sorts in descending order.
    head = page.locator("table.sortable th button", has_text="total ms").first
    if head.count():
        head.click()
        cells = page.evaluate(
            """() => { const table = [...document.querySelectorAll("table.sortable")]
                .find(table => table.querySelector("[aria-sort]"));
              const heads = [...table.tHead.rows[0].cells];
              const column = heads.findIndex(cell => cell.hasAttribute("aria-sort"));
              return [...table.tBodies[0].rows].map(row => Number(row.cells[column].dataset.n)); }"""
        )
        is_tree = page.locator("table.tree [aria-sort]").count() > 0
        assert is_tree or cells == sorted(cells, reverse=True), (what, cells)
        assert len(cells) > 2, (what, cells)
    check_formats(page, what)
    if page.locator(".u-legend").count():
        check_legends(page, what)
    if page.locator(".network").count() == 1:
        check_layers(page, what)
    assert said == [], (what, said)
    page.screenshot(path=path.with_name(f"{path.stem}-{width}-{scheme}.png"), full_page=True)
    context.close()


def main(program, folder, browser):
    names = pages(program, folder)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser or None, args=["--no-sandbox"])
        for name in names:
            for width in WIDTHS:
                for scheme in SCHEMES:
                    check(found, folder / f"{name}.html", width, scheme)
        print(f"Chromium {found.version}: {len(names)} pages at {WIDTHS} pixels, light and dark")
        found.close()


if __name__ == "__main__":
    paths = [pathlib.Path(path).resolve() for path in sys.argv[1:3]]
    main(*paths, sys.argv[3] if len(sys.argv) > 3 else "")
