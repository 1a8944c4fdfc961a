"""Times of `stratus ui` and of other programs from a request, or the start, to what is on the screen."""
import hashlib
import statistics

import peers
from browser import drawn_at, peak_memory, seconds_to_draw, watch_documents
from server import StratusServer

TABLE = "document.querySelectorAll('#runs tbody tr[data-run]').length > 0"
RUN = "location.pathname.startsWith('/run/') && document.querySelector('[data-chart=loss] canvas') !== null"
# All runs are there, and the legend of the drawn curve has entries: repetitions share one.
COMPARISON = "document.querySelectorAll('#curve canvas').length " \
    "&& stratus.data().compared.length === COUNT " \
    "&& document.querySelectorAll('#curve .u-legend .u-series').length > 1"
COMPARED = 20


def run_id(run):
    """The id of a run in addresses: the start of the hash of its path."""
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]


def compared_runs(runs):
    """Evenly spaced runs, so that none of the programs reads only the first ones."""
    step = max(len(runs) // COMPARED, 1)
    return runs[step - 1 :: step][:COMPARED]


def comparison_address(server, chosen):
    return f"{server.url}compare?runs={','.join(run_id(run) for run in chosen)}"


def drawn_comparison(count):
    return COMPARISON.replace("COUNT", str(count))


def measure_pages(results, program, folder, runs, browser, repetitions):
    """Every page of a new server, so that no report is kept from before."""
    cold, warm, one, twenty, memory = [], [], [], [], []
    chosen = compared_runs(runs)
    for repetition in range(repetitions):
        server = StratusServer(program, folder / "runs")
        try:
            page = browser.page()
            seconds_to_draw(page, server.url, TABLE)
            cold.append(drawn_at(page) - server.started)
            page.context.close()
            page = browser.page()
            warm.append(seconds_to_draw(page, server.url, TABLE))
            page.context.close()
            page = browser.page()
            run = runs[(len(runs) // 2 + repetition) % len(runs)]
            one.append(seconds_to_draw(page, f"{server.url}run/{run_id(run)}", RUN))
            page.context.close()
            page = browser.page()
            twenty.append(seconds_to_draw(page, comparison_address(server, chosen),
                                          drawn_comparison(len(chosen))))
            page.context.close()
            memory.append(peak_memory(server.process.pid) / 1e6)
        finally:
            server.stop()
    many = f"{len(runs)} runs"
    results.add(f"table of {many}, from the start of the server", cold, "s", 1.0)
    results.add(f"table of {many}, server running", warm, "s", 1.0)
    results.add("one run, not opened before", one, "s", 0.5)
    results.add(f"{len(chosen)} runs compared, not opened before", twenty, "s", 1.0)
    results.add("peak resident memory of the server", memory, "MB", 400)


def stratus_to_curve(program, folder, run, chosen, browser):
    """From the start of the server: the table, the run in it, its curve; the same with a comparison."""
    server = StratusServer(program, folder / "runs")
    try:
        page = browser.page()
        seconds_to_draw(page, f"{server.url}?q={run.parent.name}/{run.name}", TABLE)
        watch_documents(page, RUN)
        page.locator(f"tr[data-run='{run_id(run)}'] th a").click()
        one = drawn_at(page) - server.started
        page.context.close()
    finally:
        server.stop()
    server = StratusServer(program, folder / "runs")
    try:
        page = browser.page()
        seconds_to_draw(page, server.url, TABLE)
        page.context.close()
        page = browser.page()
        seconds_to_draw(page, comparison_address(server, chosen), drawn_comparison(len(chosen)))
        many = drawn_at(page) - server.started
        page.context.close()
    finally:
        server.stop()
    return one, many


def measure_first_curves(results, program, folder, runs, browser, packages, repetitions):
    """The time from the start of each program to the loss of one run and of many, programs in turn."""
    one, chosen = runs[len(runs) // 2 - 1], compared_runs(runs)
    names = [run.name for run in chosen]
    asked = {"one run": [one.name], f"{len(chosen)} runs": names, "the first run that it has": None}
    times, undrawn = {}, set()
    for _ in range(repetitions):
        stratus = stratus_to_curve(program, folder, one, chosen, browser)
        times.setdefault(("Stratus", "one run"), []).append(stratus[0])
        times.setdefault(("Stratus", f"{len(chosen)} runs"), []).append(stratus[1])
        for peer in (peers.TensorBoard, peers.Trackio):
            for what, wanted in asked.items():
                if peer is peers.Trackio and wanted is None:
                    continue
                if (peer.name, what) in undrawn:
                    continue
                total, page, memory, is_drawn = peers.measure(peer, folder, packages, browser, wanted)
                if not is_drawn:
                    undrawn.add((peer.name, what))
                times.setdefault((peer.name, what), []).append(total)
                times.setdefault((peer.name, f"{what}, once it has them"), []).append(page)
                times.setdefault((peer.name, "memory"), []).append(memory / 1e6)
    for (name, what), values in times.items():
        if what == "memory":
            results.add(f"{name}: resident memory", values, "MB")
        else:
            note = ", which did not appear: a lower bound" if (name, what) in undrawn else ""
            results.add(f"{name}: start to the curve of {what}{note}", values, "s")
    for name in (peers.TensorBoard.name, peers.Trackio.name):
        for what in ("one run", f"{len(chosen)} runs"):
            own = statistics.median(times["Stratus", what])
            factor = statistics.median(times[name, what]) / own
            results.add(f"{name}: times as long as Stratus, {what}", [factor], "×", 10.0, is_minimum=True)
