"""What the controls of pages do in a browser, for check-page.py and check-ui.py."""

# The formats that scripts share, with the texts of `stratus_base::text` for the same values.
FORMATS = """() => [
    [0, 1023, 1024, 1536, 33554432, 1048530, -1536].map(formats.bytes),
    [0.26, 59.4, 61, 7500, 500000].map(formats.duration),
    [formats.time(86400), formats.time(86460, true), ...[0, 1e300, null].map(value => formats.time(value))],
    formats.shown("a\\u202eb\\u2066c\\u2028d\\u0007e\\u009bf\\n\\tg\\u200f"),
]"""
EXPECTED_FORMATS = [
    ["0 B", "1023 B", "1 KiB", "1.5 KiB", "32 MiB", "1.0 MiB", "\u22121.5 KiB"],
    ["0.3 s", "59 s", "1 min 01 s", "2 h 05 min", "5.8 d"],
    ["1970-01-02 00:00:00", "1970-01-02 00:01", "\u2013", "\u2013", "\u2013"],
    "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\n\tg\u200f",
]
# A part of the page of a segmentation with a slider, as the server sends it.
MASKS = """<div data-part="checked"><div class="masks"><p class="slider"><label>Epoch <input type="range"
    min="0" max="LAST" value="LAST" data-mask-epochs="EPOCHS" data-pictures="pictures-9-"></label>
    <output>NEWEST</output></p><div class="predicted"><svg><use href="#pictures-9-NEWEST"></use></svg></div>
    <strong data-ious="EPOCHS"></strong></div></div>"""


def check_legends(page, what):
    """Each entry of a visible legend hides and shows its line by keyboard, and says which."""
    buttons = page.locator(".u-legend .u-series:not(.range) button")
    assert buttons.count() > 0, what
    chart = page.locator(".chart:has(.u-legend button)").first
    button = chart.locator(".u-series:not(.range) button").first
    shown = chart.evaluate("place => place.chart.series.slice(1).map(s => s.show)")
    assert shown[0], what
    for key, expected in (("Enter", False), ("Space", True)):
        button.focus()
        page.keyboard.press(key)
        now = chart.evaluate("place => place.chart.series.slice(1).map(s => s.show)")
        assert now == [expected, *shown[1:]], (what, key, now)
        assert button.get_attribute("aria-pressed") == str(expected).lower(), (what, key)
    outline = button.evaluate("button => getComputedStyle(button).outlineStyle")
    assert outline == "solid", (what, outline)
    # By mouse, too, and only once.
    button.click(force=True)
    assert button.get_attribute("aria-pressed") == "false", what
    button.click(force=True)
    assert button.get_attribute("aria-pressed") == "true", what


def check_formats(page, what):
    found = page.evaluate(FORMATS)
    assert found == EXPECTED_FORMATS, (what, found)


def check_epochs(page, what):
    """The chosen epoch of masks stays when sections are renewed; the newest one is followed."""
    def part(*epochs):
        text = MASKS.replace("LAST", str(len(epochs) - 1)).replace("NEWEST", str(epochs[-1]))
        return text.replace("EPOCHS", ",".join(map(str, epochs)))

    page.evaluate("""html => {
        window.checked = document.createElement("div");
        checked.innerHTML = html;
        document.querySelector("main").append(checked);
        checked.renew = ui.renewer(checked);
    }""", part(1, 2, 3))
    state = """[checked.querySelector("input").value, checked.querySelector("output").value,
        checked.querySelector("use").getAttribute("href"), checked.querySelector("strong").textContent]"""

    def renew(*epochs):
        page.evaluate("html => checked.renew(html)", part(*epochs))
        return page.evaluate(state)

    assert renew(1, 2, 3, 4)[:3] == ["3", "4", "#pictures-9-4"], (what, "it follows the newest epoch")
    slider = page.locator("[data-pictures='pictures-9-']")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    chosen = page.evaluate(state)
    assert chosen == ["1", "2", "#pictures-9-2", "2"], (what, chosen)
    renewed = renew(1, 2, 3, 4, 5)
    assert renewed == ["1", "2", "#pictures-9-2", "2"], (what, renewed)
    assert slider.evaluate("slider => slider === document.activeElement"), what
    # Pictures of old epochs are removed: the next one is shown, and stays.
    renewed = renew(1, 3, 5, 6)
    assert renewed == ["1", "3", "#pictures-9-3", "3"], (what, renewed)
    page.keyboard.press("End")
    assert renew(1, 3, 5, 6, 7)[1] == "7", what
    page.evaluate("checked.remove()")
