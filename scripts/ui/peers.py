"""TensorBoard and trackio, opened as `stratus ui` is: from the start of the server to a curve on screen."""
import json
import os
import re
import subprocess
import sys
import time

from browser import MAX_WAIT_S, NotDrawnError, answer, drawn_at, free_port, memory_of, wait_for_answer
from browser import watch_documents, watch_now

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
        """Waits until losses of all wanted runs are loaded; of any run, if none is named. Returns the runs.
        Each run is asked for alone, since a list of all would slow the loading."""
        while not wanted:
            self.pause(self.started)
            wanted = json.loads(answer(f"{self.url}/data/runs") or b"[]")[:1]
        for run in wanted:
            while answer(f"{self.url}/data/plugin/scalars/scalars?run={run}&tag=loss") is None:
                self.pause(self.started)
        return wanted

    def pause(self, begun):
        """Waits a moment, at most MAX_WAIT_S after the beginning in all."""
        assert self.process.poll() is None, "TensorBoard ended"
        if time.time() - begun > MAX_WAIT_S:
            raise NotDrawnError(f"TensorBoard is not ready after {MAX_WAIT_S} s")
        time.sleep(0.1)

    def seconds_to_curve(self, browser, wanted):
        """Opens the page once the runs are loaded, selects them and waits for their losses."""
        wanted = self.wait_for_runs(wanted or [])
        ready = time.time()
        page = browser.page()
        runs = "%7C".join(wanted)
        query = f"runFilter=%5E({runs})%24&tagFilter=%5Eloss%24"
        page.goto(f"{self.url}/?{query}#timeseries", wait_until="commit")
        # A box for each run that the filter finds, after one for all of them.
        boxes = page.locator(BOX)
        while boxes.count() != len(wanted) + 1:
            self.pause(ready)
        watch_now(page, TENSORBOARD_LINES.replace("COUNT", str(len(wanted))))
        # TensorBoard selects few runs by itself.
        if not boxes.nth(1).is_checked():
            boxes.first.click()
        drawn = drawn_at(page)
        page.context.close()
        return drawn - self.started, drawn - ready


class Trackio(Peer):
    """trackio's dashboard. Version 0.43 loads all runs first: it applies the runs of an address only if it
    has the list of runs by then, which it does not."""

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
    moment at which it had the runs, its memory in bytes, and whether there was a curve within MAX_WAIT_S:
    else the seconds are lower bounds."""
    server = peer(folder, packages)
    try:
        try:
            total, page = server.seconds_to_curve(browser, wanted)
            is_drawn = True
        except NotDrawnError:
            total = page = MAX_WAIT_S
            is_drawn = False
        return total, page, memory_of(server.process.pid), is_drawn
    finally:
        server.stop()
