"""Stands in for the command `sky`: managed jobs on machines that are folders of this one.

It accepts the commands and options that launches use, rejects others, and behaves as SkyPilot documents: a
job runs on a separate machine, on a new one after a preemption (a file `JOB.take`), and again if it exits
with one of the exit codes in its task file."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

FOLDER = os.environ["SKY_STAND_IN"]


def path(*parts):
    return os.path.join(FOLDER, *parts)


def write(job):
    temporary = path(f".{job['job_id']}")
    with open(temporary, "w") as file:
        json.dump(job, file)
    os.rename(temporary, path(f"{job['job_id']}.json"))


def jobs():
    names = [name for name in os.listdir(FOLDER) if re.fullmatch(r"[0-9]+\.json", name)]
    return [json.load(open(path(name))) for name in sorted(names, key=lambda name: int(name[:-5]))]


def last(name):
    found = [job for job in jobs() if job["job_name"] == name]
    if not found:
        sys.exit(f"no job is named {name}")
    return found[-1]


def block(text, key):
    found = re.search(rf"^{key}: \|2\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    return "".join(line[2:] for line in found[1].splitlines(True)) if found else None


def control(job, run, codes):
    """Runs a job to its end, as SkyPilot's controller does."""
    number = job["job_id"]
    for attempt in range(100):
        home = path(f"machine-{number}-{attempt}")
        os.makedirs(home)
        job["status"] = "RUNNING"
        write(job)
        with open(path(f"{job['job_name']}.log"), "ab") as log:
            process = subprocess.Popen(["bash", "-c", run], env={**os.environ, "HOME": home}, stdout=log,
                                       stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        ended = None
        while ended is None:
            if process.poll() is not None:
                ended = "exit"
            for event in ("take", "cancel"):
                if os.path.exists(path(f"{number}.{event}")):
                    os.remove(path(f"{number}.{event}"))
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    ended = event
            time.sleep(0.05)
        if ended == "take":
            shutil.rmtree(home)
        elif ended == "cancel":
            job["status"] = "CANCELLED"
        elif process.returncode == 0:
            job["status"] = "SUCCEEDED"
        elif process.returncode not in codes:
            job["status"] = "FAILED"
        if job["status"] != "RUNNING":
            break
        job["status"] = "RECOVERING"
        write(job)
        time.sleep(0.5)
    write(job)


def launch(name, file):
    text = open(file).read()
    codes = re.search(r"recover_on_exit_codes: \[([0-9, ]*)\]", text)
    job = {"job_id": len(jobs()) + 1, "job_name": name, "status": "PENDING", "failure_reason": None}
    write(job)
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        control(job, block(text, "run"), [int(code) for code in codes[1].split(",")] if codes else [])
        os._exit(0)


def main(arguments):
    match arguments:
        case ["--version"]:
            print("skypilot, version 0.14.1")
        case ["jobs", "launch", "--yes", "--detach-run", "--name", name, file]:
            launch(name, file)
        case ["jobs", "queue", "--all", "--output", "json"]:
            print("A message of the server.")
            print(json.dumps(jobs(), indent=2))
        case ["jobs", "logs", "--name", name, "--no-follow", "--tail", "0"]:
            last(name)
            sys.stdout.write(open(path(f"{name}.log"), errors="replace").read())
        case ["jobs", "cancel", "--yes", "--name", name]:
            open(path(f"{last(name)['job_id']}.cancel"), "w").close()
        case _:
            sys.exit(f"sky: unsupported arguments: {arguments}")


main(sys.argv[1:])
