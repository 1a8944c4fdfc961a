"""Checks the pages of `stratus ui` in headless Chromium.

    python3 scripts/check-ui.py STRATUS FOLDER [BROWSER]

Trains digits twice, adds runs with hostile names, a damaged one and a run that seems to train, trains a
sweep with halving and a launch to a folder of this machine, serves them, and opens the table, a run, the
comparison, sweeps, launches and forecasts 390 and 1,400 pixels wide, light and dark. Every page must open
without a message on the console (which is where a browser reports what the policy refuses), fit the window,
have its charts drawn, and pass the rules of axe-core for accessibility without a serious violation. Layers
must open, and lines be hidden, by mouse and keyboard. A chosen epoch of masks must stay. Rows that are
appended must appear, the view must be in the address, and deleted runs must be reported. Two repetitions are
drawn as a band. A training is stopped and continued by keyboard, after a question; its button must be in
sight on a narrow screen; without actions, there are no buttons. Screenshots are written to FOLDER. The first
failed assertion ends the check.
"""
import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import axe_playwright_python
from controls_in_browser import check_epochs, check_formats, check_legends
from layers_in_browser import check_layers
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (390, 1400)
SCHEMES = ("light", "dark")
HOSTILE = "<img src=x onerror='document.title=1'></script><script>document.title=1</script>"
# Names of experiments and layers, and of a folder.
HOSTILE_NAMES = (HOSTILE, "line\n\r\tbreak \"quotes\" 'apostrophes' \\ & \u202eend", "x" * 10_000)
HOSTILE_FOLDER = "<script>document.title=1<∕script>\n\"'&"
# uPlot draws each chart as a canvas.
EMPTY = """() => [...document.querySelectorAll("[data-chart], #curve")]
    .filter(place => !place.querySelector("canvas")).map(place => place.dataset.chart || place.id)"""
# Elements that extend beyond the window and are not in a scrolling box; drawings are cut at their edges.
WIDE = """() => [...document.querySelectorAll("body *")].filter(element => {
    const box = element.getBoundingClientRect();
    return element.checkVisibility() && box.width > 1 && box.right > document.documentElement.clientWidth + 1
        && !element.ownerSVGElement && !element.closest(".scroll, .chart");
}).map(element => element.outerHTML.slice(0, 80))"""
# Controls without a name, and pictures without a description.
UNNAMED = """() => [...document.querySelectorAll("input, select, button, a, svg[role=img], progress, table")]
    .filter(element => element.checkVisibility() && !(element.labels && element.labels.length)
        && !element.getAttribute("aria-label") && !element.textContent.trim())
    .map(element => element.outerHTML.slice(0, 80))"""
AXE = pathlib.Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
# What axe-core finds: rule, severity, the first element and the reason.
VIOLATIONS = """() => axe.run(document, { resultTypes: ["violations"] }).then(found => found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, impact, nodes }) => [id, impact, nodes.length, nodes[0].html.slice(0, 120),
        nodes[0].failureSummary]))"""
# Whether a text could change the order of those beside it.
BIDIRECTIONAL = r"() => /[\u202a-\u202e\u2066-\u2069]/.test(document.title + document.body.innerText)"
LIGHT = """() => getComputedStyle(document.documentElement).backgroundColor.match(/[0-9.]+/g)
    .slice(0, 3).reduce((sum, value) => sum + Number(value), 0) / 765"""


def training(program, runs, run, batch, epochs):
    """The command that trains a run."""
    settings = (f"data.path={ROOT / 'data/mnist'}", f"train.epochs={epochs}", f"train.batch_size={batch}")
    overrides = [word for setting in settings for word in ("--set", setting)]
    return [program, "train", "digits", "--out", runs / run, *overrides]


def make_runs(program, folder):
    """Trains two runs, and derives the others from the first."""
    runs = folder / "runs"
    for run, batch in (("digits/1", 64), ("digits/2", 128)):
        command = training(program, runs, run, batch, 2)
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    hostile = ["hostile/1", "hostile/2", "hostile/3"]
    for copy in ("digits/3", "digits/4", "damaged/1", *hostile, HOSTILE_FOLDER):
        shutil.copytree(runs / "digits/1", runs / copy)
    (runs / "damaged/1/epochs.csv").write_text("epoch,what\n1,2\n", encoding="utf-8")
    for run, name in zip(hostile, HOSTILE_NAMES):
        experiment = runs / run / "experiment.toml"
        text = experiment.read_text(encoding="utf-8")
        text = text.replace('name = "digits"', f"name = {json.dumps(name)}")
        experiment.write_text(text, encoding="utf-8")
    # Of this run, half of the iterations and one epoch are there.
    half = runs / "digits/3"
    for name, keep in (("iterations.csv", 0.5), ("epochs.csv", 0.7)):
        lines = (half / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (half / name).write_text("".join(lines[: max(2, int(len(lines) * keep))]), encoding="utf-8")
    return runs


def append(source, copy, name, count):
    """Appends to a copied table the next rows of its source."""
    lines = (source / name).read_text(encoding="utf-8").splitlines(keepends=True)
    have = len((copy / name).read_text(encoding="utf-8").splitlines())
    with open(copy / name, "a", encoding="utf-8") as file:
        file.writelines(lines[have : have + count])
    return lines[have : have + count]


def wait_for(page, expression):
    """Waits for an expression to be true; Playwright's function needs `eval`, which the policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError((page.url, expression))


class Checked:
    """A page whose messages on the console are collected."""

    def __init__(self, browser, url, width, scheme, is_live=True):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said, self.what = [], (url, width, scheme)
        # An initial script is not subject to the policy of the page.
        self.page.add_init_script(AXE)
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(url)
        if is_live:
            wait_for(self.page, "document.getElementById('connection').textContent === 'live'")

    def check(self, path):
        page = self.page
        page.wait_for_timeout(300)
        across = page.evaluate("['scrollWidth', 'clientWidth'].map(key => document.documentElement[key])")
        assert across[0] <= across[1], (self.what, across, page.evaluate(WIDE))
        assert page.evaluate(WIDE) == [], (self.what, page.evaluate(WIDE))
        assert page.evaluate(EMPTY) == [], (self.what, page.evaluate(EMPTY))
        assert page.evaluate(UNNAMED) == [], (self.what, page.evaluate(UNNAMED))
        violations = page.evaluate(VIOLATIONS)
        assert violations == [], (self.what, violations)
        light = page.evaluate(LIGHT)
        scheme = self.what[2]
        assert (light > 0.8) == (scheme == "light"), (self.what, light)
        assert (light < 0.2) == (scheme == "dark"), (self.what, light)
        assert page.title() != "1", self.what
        assert not page.evaluate(BIDIRECTIONAL), self.what
        assert self.said == [], (self.what, self.said)
        page.screenshot(path=path, full_page=True)

    def close(self):
        assert self.said == [], (self.what, self.said)
        self.context.close()


def check_all(browser, url, folder, name):
    """Checks a page at every width, light and dark."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            checked = Checked(browser, url, width, scheme)
            # Charts of the comparison are drawn once their points are fetched.
            wait_for(checked.page, f"({EMPTY})().length === 0")
            checked.check(folder / f"{name}-{width}-{scheme}.png")
            checked.close()


def make_sweep(program, folder):
    """Trains a sweep of two keys, and makes one of 1,000 cells, one with hostile values and a damaged one."""
    text = ("[model]\nname = \"digits\"\n[train]\nepochs = 2\n[sweep.keys]\n"
            "\"train.batch_size\" = [512, 1024]\n\"optimiser.learning_rate\" = [0.01, 0.05, 0.2]\n"
            "[sweep.halving]\nmetric = \"val_top1\"\n")
    (folder / "rates.toml").write_text(text, encoding="utf-8")
    command = [program, "sweep", "rates.toml", "--data", ROOT / "data/mnist"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    sweeps = folder / "sweeps"
    for name, key, values in (
        ("huge", "train.batch_size", [str(value) for value in range(1, 1001)]),
        ("hostile", "data.path", [HOSTILE, "=1+1", "plain"]),
    ):
        (sweeps / name).mkdir()
        listed = ", ".join(json.dumps(value) if key == "data.path" else value for value in values)
        text = f"[model]\nname = \"digits\"\n[sweep.keys]\n\"{key}\" = [{listed}]\n"
        (sweeps / name / "sweep.toml").write_text(text, encoding="utf-8")
        # Values are in the syntax of --set.
        with open(sweeps / name / "cells.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["cell", "repetition", "status", "reason", "run", key])
            table.writerows([number, 1, "waiting", "", "", value] for number, value in enumerate(values, 1))
    shutil.copytree(sweeps / "rates", sweeps / "damaged")
    (sweeps / "damaged/cells.csv").write_text("cell,repet", encoding="utf-8")
    return sweeps


def make_launch(program, folder):
    """Launches two repetitions into a folder of this machine, and fetches them until they have ended."""
    target = f"[here]\nkind = \"local\"\nfolder = {json.dumps(str(folder / 'there'))}\n"
    (folder / "targets.toml").write_text(target, encoding="utf-8")
    settings = ("train.epochs=1", "train.price_per_hour=12", "train.budget=1",
                f"data.path={ROOT / 'data/mnist'}")
    overrides = [word for setting in settings for word in ("--set", setting)]
    for command in (["here", "digits", "--repetitions", "2", *overrides], ["fetch", "--follow"]):
        subprocess.run([program, "launch", *command], cwd=folder, check=True, capture_output=True)


def check_sweeps(browser, url, folder):
    check_all(browser, f"{url}sweeps", folder, "sweeps")
    checked = Checked(browser, f"{url}sweeps", 1400, "light")
    page = checked.page
    sweeps = {link.text_content().split("/")[-1]: link.get_attribute("href")
              for link in page.locator("#list tbody a").all()}
    assert sorted(sweeps) == ["damaged", "hostile", "huge", "rates"], sweeps
    assert page.locator("#list .problem").count() == 1
    checked.close()
    for name, address in sweeps.items():
        check_all(browser, url.rstrip("/") + address, folder, f"sweep-{name}")
    checked = Checked(browser, url.rstrip("/") + sweeps["damaged"], 390, "light")
    assert "cannot be read" in checked.page.locator("#notice").text_content()
    checked.close()
    checked = Checked(browser, url.rstrip("/") + sweeps["huge"], 1400, "light")
    assert checked.page.locator("#cells tbody tr").count() == 100
    assert checked.page.locator("#pager").text_content().count("of 10") == 1
    checked.close()
    checked = Checked(browser, url.rstrip("/") + sweeps["rates"], 1400, "light")
    page = checked.page
    assert page.locator("table.heat td").count() == 6
    assert page.locator("table.heat td.best").count() == 1
    assert page.locator("svg.rounds circle, svg.rounds rect").count() == 6
    # Limits, by keyboard and by dragging, choose cells; the address has them.
    page.get_by_label("train.batch_size, at least").fill("1000")
    page.keyboard.press("Tab")
    wait_for(page, "document.querySelectorAll('#cells tbody tr').length === 3")
    page.select_option("#value", "speed")
    page.select_option("#heat-rows", "none")
    page.locator("#cells thead button", has_text="Training time").click()
    assert "f=train.batch_size" in page.url and "value=speed" in page.url, page.url
    again = Checked(browser, page.url, 1400, "light")
    assert again.page.locator("#cells tbody tr").count() == 3
    assert again.page.locator("#value").input_value() == "speed"
    assert again.page.locator("th[aria-sort=descending]").text_content().startswith("Training time")
    again.close()
    page.locator("#no-limits").click()
    wait_for(page, "document.querySelectorAll('#cells tbody tr').length === 6")
    box = page.locator("svg.parallel .handle").first.bounding_box()
    page.mouse.move(box["x"] + 14, box["y"] + 1)
    page.mouse.down()
    page.mouse.move(box["x"] + 14, box["y"] + box["height"] / 2)
    page.mouse.up()
    wait_for(page, "document.querySelectorAll('#cells tbody tr').length === 3")
    checked.close()


def check_launches(browser, url, folder):
    check_all(browser, f"{url}launches", folder, "launches")
    checked = Checked(browser, f"{url}launches", 1400, "light")
    address = checked.page.locator("#list tbody a").first.get_attribute("href")
    checked.close()
    check_all(browser, url.rstrip("/") + address, folder, "launch")
    checked = Checked(browser, url.rstrip("/") + address, 1400, "light")
    page = checked.page
    assert page.locator("#repetitions .state.completed").count() == 2
    assert "This page asks no other machine" in page.locator("#asked").text_content()
    page.locator("#repetitions tbody a").first.click()
    wait_for(page, "location.pathname.startsWith('/run/')")
    checked.close()


def check_forecast(browser, url, folder):
    address = f"{url}forecast?experiment=resnet50&images=1281167&epochs=90&batch=32,256"
    drawn = "document.querySelectorAll('svg.intervals circle').length > 5"
    for width in WIDTHS:
        for scheme in SCHEMES:
            checked = Checked(browser, address, width, scheme, is_live=False)
            wait_for(checked.page, drawn)
            checked.check(folder / f"forecast-{width}-{scheme}.png")
            checked.close()
    checked = Checked(browser, address, 1400, "light", is_live=False)
    page = checked.page
    wait_for(page, drawn)
    assert page.locator("#connection").text_content() == "", "a forecast does not follow changes"
    assert page.locator("#left-out tbody tr").count() > 0
    page.locator("#machines thead button", has_text="Images/s").click()
    assert "sort=-speed" in page.url, page.url
    page.select_option("#objective", "budget")
    page.locator("#limit").fill("0.01")
    page.get_by_role("button", name="Forecast").click()
    wait_for(page, "document.getElementById('choice').textContent.includes('no machine meets it')")
    checked.close()


def rows(page):
    return page.locator("#runs tbody tr[data-run] th a").all_text_contents()


def check_table(browser, url, folder):
    check_all(browser, url, folder, "table")
    checked = Checked(browser, url, 1400, "light")
    page = checked.page
    names = [HOSTILE_FOLDER, "damaged/1", "digits/1", "digits/2", "digits/3", "digits/4", "hostile/1",
             "hostile/2", "hostile/3"]
    assert rows(page) == names, rows(page)
    assert page.get_by_text("epochs.csv is damaged").count() == 1
    assert page.get_by_text(HOSTILE).count() >= 1
    # The view is in the address, and the address makes the view.
    page.keyboard.press("/")
    page.keyboard.type("digits completed")
    page.get_by_role("button", name="Best", exact=True).click()
    page.select_option("#group", "k:train.batch_size")
    wait_for(page, "document.querySelectorAll('tr.group').length === 2")
    page.locator("#columns summary").click()
    page.get_by_label("train.batch_size (differs)").check()
    wait_for(page, """[...document.querySelectorAll('thead th')]
        .some(head => head.textContent.includes('batch'))""")
    assert page.locator("thead th[aria-sort=descending]").text_content() == "Best"
    view = page.url
    expected = ("q=digits+completed", "sort=-best", "group=k:train.batch_size", "columns=state,")
    assert all(part in view for part in expected), view
    shown = page.locator("#runs tbody").all_text_contents()
    checked.close()
    again = Checked(browser, view, 1400, "light")
    wait_for(again.page, "document.querySelectorAll('tr.group').length === 2")
    assert again.page.locator("#runs tbody").all_text_contents() == shown
    again.check(folder / "table-view.png")
    # By keyboard: select two runs, and compare them.
    boxes = again.page.locator("#runs tbody input[type=checkbox]")
    for i in range(2):
        boxes.nth(i).focus()
        again.page.keyboard.press("Space")
    again.page.get_by_text("Compare 2 runs").focus()
    again.page.keyboard.press("Enter")
    again.page.wait_for_url("**/compare?runs=*")
    again.page.wait_for_selector("#curve canvas")
    comparison = again.page.url
    again.close()
    return comparison


def check_comparison(browser, url, folder):
    check_all(browser, url, folder, "compare")
    checked = Checked(browser, url, 1400, "light")
    page = checked.page
    # The two runs differ in nothing but time, so they are repetitions.
    page.get_by_label("Repetitions as bands").uncheck()
    for metric in page.locator("#metric option").evaluate_all("options => options.map(o => o.value)"):
        page.select_option("#metric", metric)
        for axis in ("iteration", "epoch", "time"):
            page.select_option("#axis", axis)
            assert page.locator("#curve canvas").count() == 1, (metric, axis)
            lines = page.locator("#curve .u-legend .u-series").count()
            assert lines == 3, (metric, axis, lines)
    page.select_option("#metric", "loss")
    page.locator("#smoothing").fill("0.9")
    page.locator("#logarithmic").check()
    assert "smoothing=0.9" in page.url and "log=1" in page.url and "axis=time" in page.url, page.url
    checked.check(folder / "compare-view.png")
    checked.close()


def check_run(browser, url, runs, folder):
    table = Checked(browser, url, 1400, "light")
    address = table.page.get_by_role("link", name="digits/3").get_attribute("href")
    target = url.rstrip("/") + address
    check_all(browser, target, folder, "run")
    check_files(browser, url.rstrip("/") + table.page.get_by_role("link", name="digits/1")
                .get_attribute("href"), folder)
    for width in WIDTHS:
        layers = Checked(browser, target, width, "light")
        check_layers(layers.page, layers.what)
        check_legends(layers.page, layers.what)
        check_epochs(layers.page, layers.what)
        layers.close()
    checked = Checked(browser, target, 1400, "light")
    page = checked.page
    # A chosen layer stays when sections are renewed.
    page.locator(".network > .graph a.node").first.focus()
    page.keyboard.press("Enter")
    chosen = page.locator(".layer-panel h2").text_content()
    last = "document.querySelector('[data-chart=loss]').chart.data[0].at(-1)"
    before = page.evaluate(last)
    # A zoom stays when points are appended and when sections are renewed.
    page.evaluate("document.querySelector('[data-chart=loss]').chart.setScale('x', { min: 10, max: 20 })")
    page.get_by_text("Configuration", exact=True).click()
    page.evaluate("scrollTo(0, 400)")
    added = append(runs / "digits/1", runs / "digits/3", "iterations.csv", 10)
    assert len(added) == 10
    wait_for(page, f"{last} === {before + 10}")
    append(runs / "digits/1", runs / "digits/3", "epochs.csv", 1)
    wait_for(page, "document.querySelector('#progress').textContent.includes('epoch 2 of 2')")
    wait_for(page, "stratus.data().runs[0].epochs.length === 2")
    scale = "document.querySelector('[data-chart=loss]').chart.scales.x"
    zoom = page.evaluate(f"[{scale}.min, {scale}.max]")
    assert zoom == [10, 20], zoom
    assert page.locator(".layer-panel h2").text_content() == chosen
    assert page.locator(".network > .graph a.node.chosen").count() == 1
    page.locator(".layer-panel").get_by_role("button", name="Close").click()
    assert page.evaluate("document.querySelector('details[open] summary').textContent") == "Configuration"
    assert abs(page.evaluate("scrollY") - 400) < 200, page.evaluate("scrollY")
    # The table got the row too, without being loaded again.
    wait_for(table.page, """[...document.querySelectorAll('tr[data-run]')]
        .some(line => line.textContent.includes('digits/3') && line.textContent.includes('2 of 2'))""")
    # At once: of a run that is half deleted, the page would still ask for parts.
    (runs / "digits/3").rename(folder / "deleted")
    wait_for(page, "document.getElementById('notice').textContent.includes('moved or deleted')")
    wait_for(table.page, "![...document.querySelectorAll('tr[data-run]')]"
                                 ".some(line => line.textContent.includes('digits/3'))")
    checked.check(folder / "run-deleted.png")
    checked.close()
    table.close()


def check_bands(browser, url, folder):
    """Two runs with the same configuration are a mean with a band."""
    table = Checked(browser, url, 1400, "light")
    links = (table.page.get_by_role("link", name=name, exact=True) for name in ("digits/1", "digits/4"))
    ids = [link.get_attribute("href").split("/")[-1] for link in links]
    table.close()
    checked = Checked(browser, f"{url}compare?runs={','.join(ids)}", 1400, "light")
    page = checked.page
    wait_for(page, "document.querySelector('#curve').chart")
    bands = "document.querySelector('#curve').chart.bands.length"
    assert page.evaluate(bands) == 1, page.evaluate(bands)
    assert page.get_by_text("mean of 2 from digits/1").count() >= 1
    assert "lowest to the highest" in page.locator("#curve-note").text_content()
    checked.check(folder / "compare-band.png")
    page.get_by_label("Repetitions as bands").uncheck()
    assert page.evaluate(bands) == 0 and "bands=0" in page.url, page.url
    page.get_by_text("Layer times side by side").click()
    page.get_by_text("whole iteration").wait_for()
    checked.check(folder / "compare-layers.png")
    checked.close()


def check_files(browser, target, folder):
    """The log, the checkpoints and the files of a run."""
    checked = Checked(browser, target, 1400, "light")
    page = checked.page
    check_formats(page, checked.what)
    wait_for(page, "document.querySelector('#log').textContent.includes('Z ')")
    assert page.get_by_role("heading", name="Checkpoints").is_visible()
    page.locator("#files-part summary").click()
    wait_for(page, "document.querySelectorAll('#files tbody tr').length > 5")
    assert page.get_by_role("rowheader", name="iterations.csv").is_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as SVG: Time per iteration").click()
    drawing = pathlib.Path(saved.value.path()).read_text(encoding="utf-8")
    assert drawing.startswith("<svg") and 'fill="rgb' in drawing, drawing[:300]
    checked.check(folder / "run-files.png")
    checked.close()


def check_actions(browser, program, folder):
    """A training is stopped and continued by keyboard, and the row shows it without a reload."""
    runs = folder / "acting/runs"
    runs.mkdir(parents=True)
    process = subprocess.Popen(training(program, runs, "digits/1", 64, 30), cwd=folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server, url = serve(program, runs)
    try:
        check_buttons(browser, url, process, folder)
    finally:
        process.kill()
        stop(server)
    server, url = serve(program, runs, "--read-only")
    checked = Checked(browser, url, 1400, "light")
    assert checked.page.get_by_role("button", name="Continue digits/1").count() == 0
    checked.close()
    stop(server)


def check_narrow(browser, url):
    """On a narrow screen, the button of a row can be seen and clicked without scrolling."""
    small = Checked(browser, url, 390, "light")
    button = small.page.get_by_role("button", name="Stop digits/1")
    for scrolled in (0, 10_000):
        small.page.evaluate(f"document.querySelector('.scroll').scrollLeft = {scrolled}")
        box = button.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, (scrolled, box)
        top = button.evaluate("""button => { const box = button.getBoundingClientRect();
            return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === button; }""")
        assert top, scrolled
    small.page.get_by_role("link", name="digits/1").click()
    button.wait_for()
    box = button.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] < 900, box
    small.close()


def check_buttons(browser, url, process, folder):
    checked = Checked(browser, url, 1400, "light")
    page = checked.page
    stop_button = page.get_by_role("button", name="Stop digits/1")
    stop_button.wait_for(timeout=120_000)
    checked.check(folder / "table-acting.png")
    check_narrow(browser, url)
    # Escape says no.
    stop_button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    checked.check(folder / "table-question.png")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.wait_for_timeout(1500)
    assert process.poll() is None and stop_button.is_visible()
    stop_button.focus()
    page.keyboard.press("Enter")
    # The first choice is Cancel; the one before it acts.
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    page.keyboard.press("Enter")
    assert process.wait(timeout=120) == 75, process.returncode
    wait_for(page, "[...document.querySelectorAll('.said')].some(said => said.textContent === 'stopped')")
    assert "digits/1: stopped" in page.locator("#said").text_content()
    # The page of the run continues it, 390 pixels wide and dark.
    target = url.rstrip("/") + page.get_by_role("link", name="digits/1").get_attribute("href")
    small = Checked(browser, target, 390, "dark")
    small.page.get_by_role("button", name="Continue digits/1").click()
    small.check(folder / "run-question.png")
    small.page.get_by_role("dialog").get_by_role("button", name="Continue").click()
    wait_for(small.page, "document.querySelector('#progress').textContent.startsWith('running')")
    stop_button.wait_for(timeout=120_000)
    small.page.get_by_role("button", name="Stop digits/1").click()
    small.page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    wait_for(small.page, "document.querySelector('#progress').textContent.startsWith('interrupted')")
    small.close()
    checked.close()


def check_hostile(browser, url, folder):
    """Pages of runs with hostile names: shown as text, and no wider than others."""
    table = Checked(browser, url, 1400, "light")
    addresses = [table.page.get_by_role("link", name=f"hostile/{number}").get_attribute("href")
                 for number in range(1, len(HOSTILE_NAMES) + 1)]
    links = table.page.locator("#runs tbody tr[data-run] th a").evaluate_all(
        "links => links.map(link => [link.textContent, link.getAttribute('href')])")
    addresses.append(dict(links)[HOSTILE_FOLDER])
    table.close()
    for number, address in enumerate(addresses, 1):
        check_all(browser, url.rstrip("/") + address, folder, f"hostile-{number}")
    ids = ",".join(address.split("/")[-1] for address in addresses)
    check_all(browser, f"{url}compare?runs={ids}", folder, "hostile-compare")


def check_empty(browser, program, folder):
    (folder / "empty").mkdir()
    server, url = serve(program, folder / "empty")
    checked = Checked(browser, url, 390, "light")
    assert checked.page.get_by_text("stratus train digits").is_visible()
    checked.check(folder / "empty.png")
    checked.close()
    stop(server)


def serve(program, *arguments):
    """Starts a server on a free port; returns it with its address."""
    command = [program, "ui", *arguments, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return server, server.stdout.readline().strip()


def stop(server):
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=60) == 0, server.returncode


def main(program, folder, browser):
    folder.mkdir(parents=True)
    runs = make_runs(program, folder)
    server, url = serve(program, runs)
    others = folder / "others"
    others.mkdir()
    make_sweep(program, others)
    make_launch(program, others)
    second, address = serve(program, others / "runs", others / "sweeps")
    try:
        with sync_playwright() as playwright:
            found = playwright.chromium.launch(executable_path=browser or None, args=["--no-sandbox"])
            comparison = check_table(found, url, folder)
            check_comparison(found, comparison, folder)
            check_bands(found, url, folder)
            check_hostile(found, url, folder)
            check_run(found, url, runs, folder)
            check_actions(found, program, folder)
            check_empty(found, program, folder)
            check_sweeps(found, address, folder)
            check_launches(found, address, folder)
            check_forecast(found, address, folder)
            pages = "runs, comparison, sweeps, launches and forecast"
            print(f"Chromium {found.version}: {pages} at {WIDTHS} pixels, light and dark")
            found.close()
    finally:
        stop(server)
        stop(second)


if __name__ == "__main__":
    paths = [pathlib.Path(path).resolve() for path in sys.argv[1:3]]
    main(*paths, sys.argv[3] if len(sys.argv) > 3 else "")
