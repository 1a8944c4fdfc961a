"""Checks the layers of a run on an open page, for check-page.py and check-ui.py."""

# Visible rows of the table of layers, with the levels of their blocks.
ROWS = """() => [...document.querySelectorAll("table.tree tbody tr")].filter(row => !row.hidden)
    .map(row => Number(row.dataset.level))"""
# Nodes of the drawing of the network that overlap each other.
OVERLAPS = """() => { const boxes = [...document.querySelectorAll(".network > .graph .node rect")]
    .map(node => node.getBoundingClientRect());
  return boxes.filter((a, i) => boxes.slice(i + 1).some(b => a.left < b.right && b.left < a.right
    && a.top < b.bottom && b.top < a.bottom)).length; }"""
# Texts of the drawing that extend beyond their node.
WIDE_NAMES = """() => [...document.querySelectorAll(".network > .graph .node")].filter(node =>
    [...node.querySelectorAll("text")].some(text => text.getBoundingClientRect().width
      > node.querySelector("rect").getBoundingClientRect().width)).map(node => node.textContent)"""


def check_tree(page, what):
    """Opens and closes a block with the keyboard; sorts within blocks."""
    before = page.evaluate(ROWS)
    closed = page.locator("table.tree tr:not([hidden]) button.fold[aria-expanded=false]").first
    if closed.count():
        name = closed.get_attribute("aria-label")
        button = page.locator(f"table.tree button.fold[aria-label='{name}']")
        button.focus()
        page.keyboard.press("Enter")
        opened = page.evaluate(ROWS)
        assert len(opened) > len(before), (what, name, before, opened)
        assert button.get_attribute("aria-expanded") == "true", (what, name)
        page.keyboard.press("Space")
        assert page.evaluate(ROWS) == before, (what, name)
    head = page.locator("table.tree th", has_text="total ms")
    while head.get_attribute("aria-sort") != "descending":
        head.locator("button").click()
    wrong = page.evaluate(
        """() => { const last = [];
          return [...document.querySelectorAll("table.tree tbody tr")].filter(row => {
            const level = Number(row.dataset.level), ms = Number(row.cells[5].dataset.n);
            const before = last[level];
            last.length = level;
            last[level] = ms;
            return before !== undefined && ms > before;
          }).length; }"""
    )
    assert wrong == 0, (what, "rows that are not sorted within their block", wrong)
    assert page.evaluate(ROWS) != [], what


def check_panel(page, what):
    """Chooses a node of the network with the keyboard, and a layer of the table with a click."""
    panel = page.locator(".layer-panel")
    node = page.locator(".network > .graph a.node").first
    name = node.locator("title").first.text_content().split(",")[0]
    node.focus()
    page.keyboard.press("Enter")
    assert panel.is_visible() and panel.locator("h2").inner_text() == name, (what, name)
    assert page.evaluate("document.activeElement.closest('.layer-panel') !== null"), what
    assert page.locator("a.node.chosen").count() >= 1 and page.locator("tr.chosen").count() == 1, what
    page.keyboard.press("Escape")
    assert not panel.is_visible() and page.locator(".chosen").count() == 0, what
    row = page.locator("table.tree tr:not([hidden]):not(.block-row) button.pick").first
    row.click()
    text = panel.inner_text()
    for fact in ("kind", "input", "output", "parameters", "activations", "time", "Kernels"):
        assert fact in text, (what, fact, text)
    box = panel.bounding_box()
    size = page.viewport_size
    assert box["x"] >= 0 and box["x"] + box["width"] <= size["width"], (what, box)
    panel.get_by_role("button", name="Close").click()
    assert not panel.is_visible(), what


def check_layers(page, what):
    """All of it, on a page with one run that has a network."""
    assert page.evaluate(OVERLAPS) == 0, (what, page.evaluate(OVERLAPS))
    assert page.evaluate(WIDE_NAMES) == [], (what, page.evaluate(WIDE_NAMES))
    check_tree(page, what)
    check_panel(page, what)
    colours = page.locator(".network .by select")
    for mode in ("memory", "work", "time"):
        colours.select_option(mode)
        assert page.locator(f".network > .graph > svg.by-{mode}").count() == 1, (what, mode)
