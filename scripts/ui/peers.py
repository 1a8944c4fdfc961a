"""TensorBoard and trackio, opened as `stratus ui` is: from the start of the server to a curve on the screen."""
import os
import re
import subprocess
import sys
import time
import json

from browser import answer, drawn_at, free_port, memory_of, wait_for_answer, watch_documents, watch_now

# Drawn lines of TensorBoard's chart: each run has one, and one that is not smoothed.
TENSORBOARD_LINES = """[...document.querySelectorAll('line-chart .series-view path')]
    .filter(path => path.getAttribute('d')).length >= COUNT"""
TRACKIO_CHART = "document.querySelector('.plot canvas') !== null"
BOX = "runs-data-table input[type=checkbox]"


class Peer:
    """A server of another program, ended with all its processes."""

    def __init__(self, command, packages, variables=None):
        environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONUNBUFFERED": "1",
                       "BROWSER": "true", "HF_HUB_OFFLINE": "1", **(variables or {})}
        self.started = time.time()
        self.process = subprocess.Popen([sys.executable, *command], env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.process.stdout.close()


class TensorBoard(Peer):
    """TensorBoard with its defaults, which load event files by a program of their own, in the background."""

    name = "TensorBoard"

    def __init__(self, folder, packages):
        self.port = free_port()
        command = ["-m", "tensorboard.main", "--logdir", folder / "tensorboard", "--port", str(self.port)]
        super().__init__(command, packages)
        # Its messages are few and fit the pipe.
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for_runs(self, wanted):
        """Waits until the runs are loaded; returns all that are."""
        while True:
            body = answer(f"{self.url}/data/runs") if self.process.poll() is None else None
            assert self.process.poll() is None, "TensorBoard ended"
            loaded = json.loads(body) if body else []
            if set(wanted) <= set(loaded) and loaded:
                return loaded
            time.sleep(0.05)

    def seconds_to_curve(self, browser, wanted):
        """Opens the page once the runs are loaded, selects them and waits for their losses."""
        loaded = self.wait_for_runs(wanted or [])
        wanted = wanted or loaded[:1]
        ready = time.time()
        page = browser.page()
        runs = "%7C".join(wanted)
        page.goto(f"{self.url}/?runFilter=%5E({runs})%24&tagFilter=%5Eloss%24#timeseries", wait_until="commit")
        page.locator(BOX).nth(len(wanted)).wait_for(state="attached", timeout=300_000)
        watch_now(page, TENSORBOARD_LINES.replace("COUNT", str(len(wanted))))
        # TensorBoard selects few runs by itself; the first box is for all that the filter finds.
        boxes = page.locator(BOX)
        if not boxes.nth(1).is_checked():
            boxes.first.click()
        drawn = drawn_at(page)
        page.context.close()
        return drawn - self.started, drawn - ready


class Trackio(Peer):
    """trackio's dashboard."""

    name = "trackio"

    def __init__(self, folder, packages):
        command = ["-c", "from trackio.cli import main; main()", "show", "--project", "stratus"]
        super().__init__(command, packages, {"TRACKIO_DIR": str(folder / "trackio")})
        for line in self.process.stdout:
            found = re.search(r"http://[0-9.]+:[0-9]+", line)
            if found:
                self.url = found.group()
                break
        else:
            raise AssertionError("trackio does not start")

    def seconds_to_curve(self, browser, wanted):
        wait_for_answer(self.url, self.process)
        ready = time.time()
        runs = ",".join(wanted or ["1"])
        page = browser.page()
        watch_documents(page, TRACKIO_CHART)
        page.goto(f"{self.url}/?project=stratus&run_ids={runs}&metric_filter=loss", wait_until="commit")
        drawn = drawn_at(page)
        page.context.close()
        return drawn - self.started, drawn - ready


def measure(peer, folder, packages, browser, wanted):
    """Starts a peer, opens the losses of runs; returns the seconds from the start of the server and from the
    moment at which it had the runs, and its memory in bytes."""
    server = peer(folder, packages)
    try:
        total, page = server.seconds_to_curve(browser, wanted)
        return total, page, memory_of(server.process.pid)
    finally:
        server.stop()
