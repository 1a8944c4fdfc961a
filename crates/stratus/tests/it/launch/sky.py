"""Stands in for the command `sky`: managed jobs on machines that are folders of this one.

It accepts the commands and options that launches use, rejects others, and behaves as SkyPilot documents: a
job runs on a separate machine, on a new one after a preemption (a file `JOB.take`), and again if it exits
with one of the exit codes in its task file.

A job with `num_nodes` runs on several machines: mount namespaces, each with its own folder as the home. A
file `JOB.take-RANK` takes one of them, and the others have some time to end by themselves."""

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


class Machine:
    """A machine of a job on which its commands run."""

    def __init__(self, job, attempt, rank, count, run):
        self.home = path(f"machine-{job['job_id']}-{attempt}" + (f"-{rank}" if count > 1 else ""))
        os.makedirs(self.home)
        environment = {**os.environ, "HOME": self.home}
        command = ["bash", "-c", run]
        if count > 1:
            # The same path on all machines.
            environment["HOME"] = path("home")
            os.makedirs(path("home"), exist_ok=True)
            environment |= {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": str(count),
                            "SKYPILOT_NODE_IPS": "\n".join(["localhost", "other", "third", "fourth"][:count])}
            mount = f'mount --bind "{self.home}" "{path("home")}" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
        with open(path(f"{job['job_name']}.log"), "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, start_new_session=True)
        self.has_namespace = count > 1
        if self.has_namespace:
            # A program that connects to the machine enters it.
            with open(path(f"node-{rank}.pid"), "w") as file:
                file.write(str(self.process.pid))

    def kill(self):
        """Ends all processes of the machine."""
        if not self.has_namespace:
            os.killpg(self.process.pid, signal.SIGKILL)
            return
        own = namespace(self.process.pid)
        for entry in os.listdir("/proc"):
            if entry.isdigit() and own is not None and namespace(entry) == own:
                try:
                    os.kill(int(entry), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        # Those that it started on other machines lose it.
        self.process.kill()


def namespace(process):
    try:
        found = os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return None
    # Before `unshare`, that of this program.
    return found if found != os.readlink("/proc/self/ns/mnt") else None


def wait_for(machines, seconds):
    end = time.time() + seconds
    while time.time() < end and any(machine.process.poll() is None for machine in machines):
        time.sleep(0.05)


def events(number, machines):
    """The kinds of events, and the machines that end by them."""
    yield "take", machines
    yield "cancel", machines
    for rank, machine in enumerate(machines):
        yield f"take-{rank}", [machine]


def control(job, run, codes, count):
    """Runs a job to its end, as SkyPilot's controller does."""
    number = job["job_id"]
    for attempt in range(100):
        job["status"] = "RUNNING"
        write(job)
        machines = [Machine(job, attempt, rank, count, run) for rank in range(count)]
        ended = None
        while ended is None:
            if any(machine.process.poll() is not None for machine in machines):
                ended = "exit"
            for event, lost in events(number, machines):
                if os.path.exists(path(f"{number}.{event}")):
                    os.remove(path(f"{number}.{event}"))
                    for machine in lost:
                        machine.kill()
                    ended = event
            time.sleep(0.05)
        # The others notice it, or are ended.
        wait_for(machines, 120)
        for machine in machines:
            if machine.process.poll() is None:
                machine.kill()
            machine.process.wait()
        ends = [machine.process.returncode for machine in machines]
        with open(path(f"{number}.codes"), "a") as file:
            file.write(" ".join(map(str, ends)) + "\n")
        if ended.startswith("take"):
            for machine in machines:
                shutil.rmtree(machine.home)
        elif ended == "cancel":
            job["status"] = "CANCELLED"
        elif not any(ends):
            job["status"] = "SUCCEEDED"
        elif not set(ends) & set(codes):
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
    count = re.search(r"^num_nodes: ([0-9]+)$", text, re.MULTILINE)
    job = {"job_id": len(jobs()) + 1, "job_name": name, "status": "PENDING", "failure_reason": None}
    write(job)
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        control(job, block(text, "run"), [int(code) for code in codes[1].split(",")] if codes else [],
                int(count[1]) if count else 1)
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
