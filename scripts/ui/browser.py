"""A headless Chromium that tells when something is on the screen, and the memory of processes."""
import os
import socket
import time
import urllib.error
import urllib.request

from playwright.sync_api import sync_playwright

# The longest wait for anything on a page.
MAX_WAIT_S = 120
# Sets `window.drawn` to the time, in milliseconds since 1970, at which the first frame with the wanted
# content was painted: the test runs at the start of each frame, and the time is taken after that frame.
WATCH = """(() => {
    const test = () => { try { return EXPRESSION; } catch { return false; } };
    const watch = () => {
        if (!test()) { requestAnimationFrame(watch); return; }
        requestAnimationFrame(() => setTimeout(() => {
            window.drawn = performance.timeOrigin + performance.now();
        }, 0));
    };
    requestAnimationFrame(watch);
})()"""


class NotDrawnError(AssertionError):
    """Nothing of what is wanted appeared within MAX_WAIT_S."""


class Browser:
    """One Chromium; every page has a new context, so that nothing is in a cache."""

    def __init__(self, executable):
        self.playwright = sync_playwright().start()
        # Without WebGL, charts of all programs are drawn by the processor, as where there is no GPU.
        arguments = ["--no-sandbox", "--disable-3d-apis"]
        self.chromium = self.playwright.chromium.launch(executable_path=executable or None, args=arguments)

    def page(self, width=1400):
        return self.chromium.new_context(viewport={"width": width, "height": 900}).new_page()

    def close(self):
        self.chromium.close()
        self.playwright.stop()


def watch_documents(page, expression):
    """From the next document on, notes when an expression is first true and painted."""
    page.add_init_script(WATCH.replace("EXPRESSION", expression))


def watch_now(page, expression):
    page.evaluate("() => { window.drawn = 0; }")
    page.evaluate(WATCH.replace("EXPRESSION", expression))


def drawn_at(page):
    """Waits for what is watched; returns the time in seconds since 1970."""
    end = time.time() + MAX_WAIT_S
    while time.time() < end:
        try:
            drawn = page.evaluate("window.drawn || 0")
        except Exception as error:
            # The document is being replaced.
            if "context" not in str(error):
                raise
            drawn = 0
        if drawn:
            return drawn / 1000
        time.sleep(0.02)
    raise NotDrawnError(f"nothing appeared on {page.url} within {MAX_WAIT_S} s")


def seconds_to_draw(page, url, expression):
    """Opens an address; returns the seconds from the request to the first frame with the content."""
    watch_documents(page, expression)
    begun = time.time()
    page.goto(url, wait_until="commit", timeout=1000 * MAX_WAIT_S)
    return drawn_at(page) - begun


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answer(url):
    """The body of an answer; `None` if there is no server yet, or none that is ready."""
    try:
        with urllib.request.urlopen(url, timeout=MAX_WAIT_S) as response:
            return response.read()
    except (urllib.error.URLError, ConnectionError):
        return None


def wait_for_answer(url, server):
    while (body := answer(url)) is None:
        assert server.poll() is None, f"the server of {url} ended with {server.returncode}"
        time.sleep(0.05)
    return body


def memory_of(pid):
    """Resident bytes of a process and all its descendants."""
    children, total = {}, 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry))
            except OSError:
                continue
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


def peak_memory(pid):
    """The largest resident memory that a process had, in bytes."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
