"""A run that grows while its page is open: delay, cost to the training, memory."""
import json
import random
import shutil
import signal
import statistics
import subprocess
import time

from browser import drawn_at, memory_of, seconds_to_draw, watch_now
from opening import RUN, run_id
from server import StratusServer, digits

LAST = "document.querySelector('[data-chart=loss]').chart.data[0].at(-1)"
# Rows that the growing run has at first.
FIRST_ROWS = 400
# Epochs of the training beside a page, about half a minute: opening the page counts once.
EPOCHS = 30
# Images of one row: a loader of one thread sleeps this long, so that there are 50 rows a second.
ROW_MS = 20
# Between two samples of memory.
SAMPLE_S = 5
# Memory is flat if the median of the last quarter exceeds that of the second by no more than this. In the
# first quarter the first epochs end, which add sections, and curves grow to their maximum number of points.
MAX_GROWTH_PERCENT = 10


class OpenRun:
    """The page of a run, on a server of its own."""

    def __init__(self, program, browser, folders, run):
        self.server = StratusServer(program, *folders)
        self.page = browser.page()
        # A run of the first second has no curve yet.
        seconds_to_draw(self.page, f"{self.server.url}run/{run_id(run)}", RUN)

    def close(self):
        self.page.context.close()
        self.server.stop()


def copy_growing_run(folder, run):
    """Copies a generated run with its first rows; returns the rows that follow."""
    source = folder / "runs/resnet34/1"
    run.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, run / path.name)
    shutil.copytree(source / "timeline", run / "timeline")
    lines = (source / "iterations.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "iterations.csv").write_text("".join(lines[: FIRST_ROWS + 1]), encoding="utf-8")
    return lines[FIRST_ROWS + 1 :]


def measure_delay(results, program, folder, browser, count):
    """Appends rows at random times to a run among all others, and waits for each on the screen."""
    run = folder / "runs/growing/1"
    shutil.rmtree(run.parent, ignore_errors=True)
    rows = copy_growing_run(folder, run)
    chance, delays = random.Random(1), []
    open_run = OpenRun(program, browser, [folder / "runs"], run)
    try:
        time.sleep(3)
        for number, row in enumerate(rows[:count], FIRST_ROWS + 1):
            watch_now(open_run.page, f"{LAST} === {number}")
            time.sleep(chance.uniform(0.2, 1.5))
            with (run / "iterations.csv").open("a", encoding="utf-8") as file:
                file.write(row)
            written = time.time()
            delays.append(drawn_at(open_run.page) - written)
    finally:
        open_run.close()
        shutil.rmtree(run.parent)
    assert len(delays) == count, len(delays)
    results.add(f"delay from row to screen, {count} rows", delays, "s", 2.0)
    results.add("the longest of these delays", [max(delays)], "s")


def speed_of(run):
    """Images a second: the median that the summary has, and all images by the time of all iterations."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "completed", summary["status"]
    seconds = summary["accounting"]["iteration_s"]
    return summary["images_per_second"]["median"], summary["iterations"] * summary["batch_size"] / seconds


def train_beside(program, folder, browser, run, is_open):
    """Trains digits, with or without its page open."""
    shutil.rmtree(run, ignore_errors=True)
    with subprocess.Popen(digits(program, run, f"train.epochs={EPOCHS}"), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as training:
        open_run = None
        try:
            if is_open:
                while not (run / "iterations.csv").exists():
                    assert training.poll() is None, "the training ended early"
                    time.sleep(0.05)
                time.sleep(1)
                open_run = OpenRun(program, browser, [folder], run)
            assert training.wait() == 0, training.returncode
        finally:
            training.kill()
            if open_run:
                open_run.close()
    return speed_of(run)


def measure_speed(results, program, folder, browser, pairs):
    """Trainings with and without an open page, in turn, each first as often as the other."""
    folder = folder / "beside"
    folder.mkdir(exist_ok=True)
    speeds = {False: [], True: []}
    for pair in range(pairs):
        for is_open in (pair % 2 == 1, pair % 2 == 0):
            speeds[is_open].append(train_beside(program, folder, browser, folder / "1", is_open))
    for column, name in ((0, "median of iterations"), (1, "all iterations")):
        without, beside = ([speed[column] for speed in speeds[is_open]] for is_open in (False, True))
        results.add(f"digits without a page, {name}", without, "images/s")
        results.add(f"digits beside an open page, {name}", beside, "images/s")
        loss = 100 * (1 - statistics.median(beside) / statistics.median(without))
        results.add(f"slower beside an open page, {name}", [loss], "%", 2.0)
    shutil.rmtree(folder)


class PageMemory:
    """The heap of a page after garbage collection, and its number of DOM nodes."""

    def __init__(self, page):
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable")

    def sample(self):
        self.session.send("HeapProfiler.collectGarbage")
        metrics = {metric["name"]: metric["value"]
                   for metric in self.session.send("Performance.getMetrics")["metrics"]}
        return metrics["JSHeapUsedSize"], metrics["Nodes"]


def quarter(samples, number):
    """The median of a quarter of samples, counted from 1."""
    length = len(samples) // 4
    return statistics.median(samples[(number - 1) * length : number * length])


def measure_memory(results, program, folder, browser, minutes):
    """A training that writes 50 rows a second, its page open: memory of the server and of the page."""
    folder = folder / "steady"
    run = folder / "1"
    shutil.rmtree(folder, ignore_errors=True)
    settings = ("data.name=synthetic", "data.shape=[1,28,28]", "data.synthetic.images=1000",
                "data.synthetic.validation_images=10", f"data.synthetic.delay_ms={ROW_MS}",
                "train.batch_size=1", "train.epochs=100000", "data.workers=1")
    folder.mkdir()
    training = subprocess.Popen(digits(program, run, *settings), stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    samples = []
    try:
        while not (run / "iterations.csv").exists():
            assert training.poll() is None, "the training ended early"
            time.sleep(0.1)
        time.sleep(2)
        open_run = OpenRun(program, browser, [folder], run)
        heap = PageMemory(open_run.page)
        begun = time.time()
        first = open_run.page.evaluate(LAST)
        try:
            while time.time() - begun < 60 * minutes:
                time.sleep(SAMPLE_S)
                samples.append((memory_of(open_run.server.process.pid), *heap.sample()))
            last, seconds = open_run.page.evaluate(LAST), time.time() - begun
        finally:
            open_run.close()
    finally:
        training.send_signal(signal.SIGINT)
        training.wait(timeout=120)
    results.add(f"rows a second over {minutes:g} minutes", [(last - first) / seconds], "rows/s")
    columns = (("resident memory of the server", "MB", 1e6), ("heap of the page", "MB", 1e6),
               ("nodes of the page", "nodes", 1))
    for (name, unit, divisor), values in zip(columns, zip(*samples)):
        results.add(name, [value / divisor for value in values], unit)
        growth = 100 * (quarter(values, 4) / quarter(values, 2) - 1)
        results.add(f"{name}: growth from the second to the last quarter", [growth], "%", MAX_GROWTH_PERCENT)
    shutil.rmtree(folder)
