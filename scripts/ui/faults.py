"""Damages the files of runs and kills `stratus ui`: pages must say what is damaged, and no run may change.

    python3 scripts/ui/faults.py STRATUS FOLDER [--kills N] [--seed N]

Damage: every file of a trained run is cut at every KiB (at most MAX_CUTS times), overwritten at random
places, replaced by random bytes, by one long line, a folder, a pipe, a link to itself, and removed; each in a
copy of the run. Every address of each copy must be answered; what is read of a damaged file must be reported
by its name, and every byte of all copies must be as before.

Kills: while digits trains, the server is started, asked for pages and killed (SIGKILL) N times, in as many
trainings as that takes. Each must end as the one without a server: the same weights, the same losses.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time

import arguments
from server import StratusServer, digits

MAX_CUTS = 24
OVERWRITES = 6
# The problems of a row, all together.
MAX_PROBLEM_CHARS = 2000
KIB = 1024
# Files of which a page shows something: if nothing of them can be read, it must say so.
SHOWN = ("experiment.toml", "summary.json", "machine.json", "plan.json", "epochs.csv", "iterations.csv",
         "usage.csv", "timeline/records.bin", "labels.json")
# These cannot be read if any part of them is missing.
WHOLE = ("summary.json", "machine.json", "plan.json", "labels.json")
# Trained images of a run, so that a training takes seconds.
SETTINGS = ("train.epochs=2", "train.batch_size=64", "train.tensorboard=true", "train.seed=7")


def train(program, run):
    return subprocess.Popen(digits(program, run, *SETTINGS), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def fingerprint(folder):
    """The kind, times and content of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, content)
    return found


def cuts(data):
    """Positions at every KiB; of a long file, evenly spaced ones."""
    ends = list(range(0, len(data), KIB))
    step = -(-len(ends) // MAX_CUTS)
    return ends[::step] + [len(data) - 1]


def damaged_versions(name, data, chance):
    """Pairs of a name and a function that damages a file; `data` is its content."""
    def write(content):
        def damage(path):
            path.unlink()
            path.write_bytes(content)
        return damage

    def replace(make):
        def damage(path):
            path.unlink()
            make(path)
        return damage

    for end in cuts(data) if data else ():
        yield f"cut-{end}", write(data[:end])
    for number in range(OVERWRITES if data else 0):
        changed = bytearray(data)
        at = chance.randrange(len(data))
        noise = chance.randbytes(chance.choice((1, 8, 300)))
        changed[at : at + len(noise)] = noise
        yield f"overwritten-{number}", write(bytes(changed))
    # A table without the end of a line is one whose header is being written.
    yield "random", write(chance.randbytes(max(len(data), 100)) + b"\n")
    yield "long-line", write(b"x" * 300_000)
    yield "folder", replace(lambda path: path.mkdir())
    yield "pipe", replace(os.mkfifo)
    yield "loop", replace(lambda path: path.symlink_to(path.name))
    if name != "experiment.toml":
        yield "missing", replace(lambda path: None)


def copy_run(run, copy):
    """A copy of a run whose files are hard links: damage replaces a file, and never writes into one."""
    shutil.copytree(run, copy, copy_function=os.link)


def must_be_reported(name, damage, version):
    """Returns whether a page must name a damaged file."""
    if damage in ("random", "long-line"):
        return name in SHOWN
    return name in WHOLE and damage.startswith("cut-") and not is_json(version)


def is_json(text):
    """Returns whether a document is complete: a cut may remove the end of the last line only."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_damage(program, folder, seed):
    """Serves all damaged copies, and asks for every page of each."""
    run = folder / "trained/1"
    training = train(program, run)
    assert training.wait() == 0, "digits does not train"
    subprocess.run([program, "runs", "note", run, "a note"], check=True, capture_output=True)
    runs = folder / "damaged"
    chance, made = random.Random(seed), {}
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
    for file in files:
        data = (run / file).read_bytes()
        for number, (damage, apply) in enumerate(damaged_versions(str(file), data, chance)):
            copy = runs / str(file).replace("/", "_") / str(number)
            copy_run(run, copy)
            apply(copy / file)
            is_file = (copy / file).is_file() and not (copy / file).is_symlink()
            version = (copy / file).read_bytes() if is_file else b""
            label = str(copy.relative_to(runs))
            made[label] = (str(file), damage, must_be_reported(str(file), damage, version))
    before = fingerprint(runs)
    server = StratusServer(program, runs)
    answers = {}
    try:
        status, text = server.get("api/runs")
        assert status == 200, status
        listing = json.loads(text)
        listed = {row["label"]: row for row in listing["runs"]}
        refused = {problem["folder"] for problem in listing["problems"]}
        for label, (file, damage, is_reported) in made.items():
            row = listed.get(label)
            if row is None:
                # With a folder in place of its experiment, a folder is not a run, and may contain some.
                assert file == "experiment.toml", (label, file, damage)
                assert damage == "folder" or str(runs / label) in refused, (label, file, damage)
                continue
            said = check_pages(server, row, (file, damage), answers)
            name = file.split("/")[-1]
            assert not is_reported or name in said, (label, file, damage, "is not reported")
        assert server.process.poll() is None, "the server ended"
    finally:
        server.kill()
    assert fingerprint(runs) == before, "files of runs changed"
    counts = ", ".join(f"{count} answers {status}" for status, count in sorted(answers.items()))
    print(f"damage: {len(made)} damaged copies of {len(files)} files, {counts}; no file changed", flush=True)


def check_pages(server, row, what, answers):
    """Asks for all addresses of a run; returns what they say about missing data."""
    said = str(row["problem"] or "")
    assert len(said) <= MAX_PROBLEM_CHARS, (what, said[:200])
    for path in (f"run/{row['id']}", f"api/runs/{row['id']}/sections", f"api/runs/{row['id']}/series",
                 f"compare?runs={row['id']}", f"api/compare?runs={row['id']}"):
        status, text = server.get(path)
        answers[status] = answers.get(status, 0) + 1
        assert status in (200, 422), (what, path, status, text[:200])
        if path.startswith("api/") and status == 200:
            json.loads(text)
        said += text if status == 422 else "".join(part.split("</div>")[0] for part
                                                   in text.split('data-part="problems"')[1:])
    return said


def result_of(run):
    """What must not depend on a server: status, weights, losses and accuracies."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rows = [row.split(",")[:6] for row in (run / "iterations.csv").read_text(encoding="utf-8").splitlines()]
    return summary["status"], summary["weights_sha256"], rows


def ask_until(server, is_done):
    """Asks for all pages again and again, as an open page does, until the server is killed."""
    while not is_done.is_set():
        try:
            _, text = server.get("api/runs")
            for row in json.loads(text)["runs"]:
                server.get(f"run/{row['id']}")
                server.get(f"api/runs/{row['id']}/series")
        except (OSError, ValueError):
            continue


def check_kills(program, folder, kills, seed):
    """Kills servers at random moments of trainings."""
    run, chance = folder / "killed/1", random.Random(seed)
    training = train(program, run)
    assert training.wait() == 0, "digits does not train"
    expected = result_of(run)
    assert expected[0] == "completed", expected[0]
    done = trainings = 0
    while done < kills:
        shutil.rmtree(run)
        training = train(program, run)
        trainings += 1
        while not (run / "iterations.csv").exists():
            assert training.poll() is None, "the training ended early"
            time.sleep(0.02)
        while training.poll() is None:
            server, is_done = StratusServer(program, folder / "killed"), threading.Event()
            asking = threading.Thread(target=ask_until, args=(server, is_done))
            asking.start()
            time.sleep(chance.uniform(0.02, 0.8))
            # A kill counts if the training was not over before it.
            done += training.poll() is None
            is_done.set()
            server.kill()
            asking.join()
        assert training.returncode == 0, training.returncode
        found = result_of(run)
        assert found == expected, f"the run differs after {done} kills"
    print(f"kills: {done} kills of the server in {trainings} trainings, all with the same result", flush=True)


def main():
    parser = arguments.parser("Damages runs and kills `stratus ui`.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    program, folder = given.program, given.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    check_damage(program, folder, given.seed)
    check_kills(program, folder, given.kills, given.seed)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
