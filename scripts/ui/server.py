"""The program: `stratus ui`, and trainings of digits."""
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The longest wait for an answer.
MAX_WAIT_S = 120


def digits(program, run, *settings):
    """The command that trains digits."""
    settings = (f"data.path={ROOT / 'data/mnist'}", *settings)
    overrides = [word for setting in settings for word in ("--set", setting)]
    return [program, "train", "digits", "--out", run, "--quiet", *overrides]


class StratusServer:
    """`stratus ui` on folders."""

    def __init__(self, program, *folders):
        self.started = time.time()
        self.process = subprocess.Popen([program, "ui", *folders, "--port", "0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, "stratus ui does not start"

    def get(self, path):
        """Status and text of an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=MAX_WAIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
