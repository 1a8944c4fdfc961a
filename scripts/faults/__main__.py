"""Trains, sweeps, launches and infers, each time under one random fault; `scripts/faults.sh` explains it.

    python3 scripts/faults STRATUS FOLDER COUNT [--seed S] [--only K] [--jobs J] [--keep] [KIND…]
"""

import argparse
import collections
import contextlib
import functools
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import store
import workloads
from kinds import KINDS, Skipped, interpose

TIMEOUT_SECONDS = 120
MAX_RESUMES = 4
CALLS = ["open", "read", "write", "sync", "rename", "create", "remove", "lock", "clock"]
# The exit codes of aborts, failed accesses of memory and panics.
ABORTED = {-6, 134, -11, -7, -4, 101}
# The exit codes of an interrupted command, before and after it has a checkpoint.
INTERRUPTED = {75, 130, 143}


class Finding(Exception):
    """A behaviour that has to be mended."""


class Tools:
    """What all cases share: the program, its library of faults, the undisturbed results."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.shared = f"{folder}/undisturbed"
        self.results, self.counts, self.server = {}, {}, None
        self.server_guard = threading.Lock()

    def library(self):
        path = f"{self.folder}/interpose.so"
        if not os.path.exists(path):
            compiler = os.environ.get("CC", "cc")
            if not shutil.which(compiler):
                raise Skipped(f"there is no C compiler ({compiler})")
            source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "interpose.c")
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
        return path

    @functools.cache
    def loadable_mib(self):
        """The address space in MiB, in which the system can load the program and its libraries."""
        mib = 16
        while True:
            def limit(limit_bytes=mib << 20):
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
            version = [self.program, "--version"]
            if not subprocess.run(version, preexec_fn=limit, capture_output=True, check=False).returncode:
                return mib
            mib += 1

    def undisturbed(self, name):
        """Runs a workload once without a fault, counting its calls."""
        if name in self.results:
            return
        if name == "infer":
            self.undisturbed("train")
        workload = self.workload(name)
        folder = f"{self.shared}/{name}"
        workload.prepare(folder)
        if name == "remote":
            os.makedirs(f"{folder}/served")
            workload.pack(f"{folder}/served")
            type(workload).server = self.server = store.Server(f"{folder}/served")
        counts = f"{self.folder}/{name}.counts"
        try:
            counting = {"LD_PRELOAD": self.library(), "FAULT_UNDER": folder, "FAULT_CALLS": ",".join(CALLS),
                        "FAULT_ACTION": "count", "FAULT_COUNTS": counts}
        except Skipped:
            counting = {}
        for step in workload.start(folder):
            ran = subprocess.run(step, cwd=folder, env=environment(folder) | counting, capture_output=True,
                                 text=True, timeout=TIMEOUT_SECONDS, check=False)
            if ran.returncode:
                raise SystemExit(f"{name} fails without a fault: {ran.stderr}")
        self.results[name] = workload.result(folder)
        if os.path.exists(counts):
            with open(counts, encoding="utf-8") as file:
                lines = [line.rsplit(" ", len(CALLS)) for line in file]
            self.counts[name] = [(line[0], [int(count) for count in line[1:]]) for line in lines]

    def workload(self, name):
        known = {workload.name: workload for workload in workloads.ALL}
        return known[name](self.program, self.shared)


def environment(folder):
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "STRATUS_ONEDNN")}
    return kept | {"HOME": f"{folder}/home", "STRATUS_CACHE": f"{folder}/cache"}


class Case:
    """A fault: what the kind's function sets, and what became of it."""

    def __init__(self, tools, number, name, workload, seed):
        self.tools, self.number, self.kind = tools, number, name
        self.random = random.Random(seed)
        self.workload = tools.workload(workload)
        self.folder = f"{tools.folder}/{number}"
        self.record = f"{tools.folder}/{number}.fault"
        self.server = tools.server
        self.environment, self.prefix, self.limits = {}, [], []
        self.errno = self.cgroup = self.relieve = self.twice = None
        self.may_die, self.may_stop, self.must_succeed, self.persists = set(), False, False, False
        self.mounted = self.continues = self.without_memory = self.address_in_message = False
        self.said = ""

    def counted(self, calls):
        """A process of the undisturbed workload, chosen by its number of these calls: executable, number."""
        totals = collections.Counter()
        for executable, counts in self.tools.counts.get(self.workload.name, []):
            total = sum(counts[CALLS.index(call)] for call in calls)
            totals[executable] = max(totals[executable], total)
        candidates = sorted((name, total) for name, total in totals.items() if total)
        if not candidates:
            return "stratus", 1
        ours = [one for one in candidates if one[0] == "stratus"]
        return ours[0] if ours and self.random.randrange(4) else self.random.choice(candidates)

    def limit(self):
        for what, value in self.limits:
            resource.setrlimit(what, (value, value))
        if self.cgroup:
            with open(f"{self.cgroup}/cgroup.procs", "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))

    def execute(self, steps, disturbed):
        """Runs steps until one fails; returns its exit code and the output of all."""
        said = ""
        for step in steps:
            variables = environment(self.folder) | (self.environment if disturbed else {})
            process = subprocess.Popen(
                (self.prefix if disturbed else []) + step, cwd=self.folder, env=variables, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                preexec_fn=self.limit if disturbed else None, start_new_session=True)
            with ThreadPoolExecutor(1) as pool:
                output = pool.submit(process.communicate)
                self.wait(process, step)
                said += f"$ {' '.join(step)}\n{output.result()[0]}"
            if process.returncode:
                return process.returncode, said
        return 0, said

    def wait(self, process, step):
        start, continued = time.monotonic(), not self.continues
        while process.poll() is None:
            time.sleep(0.01)
            if not continued and os.path.exists(self.record):
                time.sleep(0.3)
                with open(self.record, encoding="utf-8") as file:
                    pid = file.read().split()
                if pid:
                    # The process may have ended meanwhile, killed by another.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid[0]), signal.SIGCONT)
                    continued = True
            if time.monotonic() - start > TIMEOUT_SECONDS:
                os.killpg(process.pid, signal.SIGKILL)
                raise Finding(f"`{' '.join(step)}` hangs")

    def run(self):
        """Returns the outcome; raises `Finding`."""
        os.makedirs(self.folder)
        try:
            fault = KINDS[self.kind][0](self)
            self.said = f"{self.workload.name}: {fault}\n"
            self.workload.prepare(self.folder)
            self.mine = self.users_files()
            code, said = self.execute_twice() if self.twice is not None else self.first()
            outcome = self.judge(code, said)
            if self.relieve:
                subprocess.run(self.relieve, check=True)
            if self.server and self.workload.name == "remote":
                self.server.reset()
            self.resume(outcome)
            if self.users_files() != self.mine:
                raise Finding("a file of the user has changed")
            return fault, outcome
        finally:
            if self.mounted:
                subprocess.run(["umount", "-l", self.folder], check=True)

    def first(self):
        steps = self.workload.start(self.folder)
        if self.environment and self.workload.name in ("train", "sweep") and self.random.randrange(3) == 0:
            self.kill_before()
            steps = self.workload.resume(self.folder)
        before = self.workload.progress(self.folder)
        code, said = self.execute(steps, True)
        self.said += said
        if self.workload.progress(self.folder) < before:
            raise Finding(f"a checkpoint after {before} iterations is lost")
        return code, said

    def kill_before(self):
        """Kills the command late, so that the fault meets the process that resumes it."""
        fault, record = self.environment, self.record
        self.environment, self.record = {}, f"{self.record}.kill"
        interpose(self, ["write"], "signal", signal.SIGKILL)
        self.said += self.execute(self.workload.start(self.folder), True)[1] + "(killed; resumed)\n"
        self.environment, self.record = fault, record

    def execute_twice(self):
        """The same command in two processes; the second may be refused."""
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(self.execute, self.workload.start(self.folder), True)
            time.sleep(self.twice)
            second = pool.submit(self.execute, self.workload.start(self.folder), True)
            ran = [first.result(), second.result()]
        self.said += ran[0][1] + ran[1][1]
        if not any(code == 0 for code, _ in ran):
            raise Finding(f"neither of the two processes succeeded: {[code for code, _ in ran]}")
        for code, said in ran:
            self.check_end(code, said)
            if code and not re.search(r"in use by another|not empty|already|exists", said):
                raise Finding(f"exit code {code} without the other process as the cause")
        return 0, ran[0][1]

    def check_end(self, code, said):
        if re.search(r"panicked at|RUST_BACKTRACE|internal error", said) or code in ABORTED:
            if not (self.without_memory and re.search(r"memory allocation of \d+ bytes failed", said)):
                raise Finding(f"a panic or an abort, exit code {code}")

    def judge(self, code, said):
        """The outcome of the disturbed command."""
        for path in self.workload.evidence(self.folder):
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    said += file.read()
        self.check_end(code, said)
        if code == 0 and self.workload.is_done(self.folder):
            return "unaffected"
        died = -code if code < 0 else code - 128
        if died in self.may_die or (self.may_die and f"signal: {signal.SIGKILL}" in said):
            return "killed"
        if self.may_die and ("killed" in said or "signal" in said):
            return "killed"
        if self.may_stop and code in INTERRUPTED:
            return "interrupted"
        if self.must_succeed:
            raise Finding(f"exit code {code}, but the fault must not matter")
        self.names_cause(code, said)
        return "refused"

    def names_cause(self, code, said):
        if self.address_in_message and self.workload.address().removesuffix("/shards") not in said:
            raise Finding(f"exit code {code}, and the message does not name the address")
        if self.errno is None:
            return
        causes = [os.strerror(self.errno)]
        if self.without_memory:
            causes += ["memory", "out of memory", "Resource temporarily unavailable"]
        if not any(cause.lower() in said.lower() for cause in causes):
            raise Finding(f"exit code {code}, and the message does not name the cause ({causes[0]})")
        if os.path.exists(self.record):
            with open(self.record, encoding="utf-8") as file:
                path = file.read().split(maxsplit=3)[-1].strip()
            # A temporary file is named as the file that it replaces. The first of several failed calls may
            # have been one that does not matter, such as the writing of a cache.
            names = [re.sub(r"^\.(.*)\.\d+\.\d+\.tmp$", r"\1", name) for name in path.split("/")[-2:]]
            names += ["folder ."] if path == self.folder else []
            names += ["run/", "sweep/", "tar: "] if self.persists else []
            if not any(name in said for name in names):
                raise Finding(f"exit code {code}, and the message does not name the file {path}")

    def resume(self, outcome):
        """Resumes until the command is done; its result must be that of the undisturbed one."""
        code = 0 if outcome == "unaffected" else None
        for _ in range(MAX_RESUMES):
            if code == 0:
                break
            code, said = self.execute(self.workload.resume(self.folder), False)
            self.said += said
            self.check_end(code, said)
        if code:
            raise Finding(f"resuming fails with exit code {code}")
        expected = self.tools.results[self.workload.name]
        try:
            found = self.workload.result(self.folder)
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            raise Finding(f"the result cannot be read: {error!r}") from error
        if found != expected:
            different = [key for key in expected if found.get(key) != expected[key]]
            raise Finding(f"another result than undisturbed: {', '.join(different)}")

    def users_files(self):
        """The checksums of the files that no command may change."""
        found = {}
        for folder, folders, names in os.walk(self.folder):
            if folder == self.folder:
                folders[:] = [name for name in folders if name in ("data", "images")]
                names = [name for name in names if name.endswith(".toml")]
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    found[os.path.join(folder, name)] = hashlib.sha256(file.read()).hexdigest()
        return found


def try_case(tools, options, number, name, workload):
    """Runs a case and prints its outcome; returns its kind and the outcome."""
    case = Case(tools, number, name, workload, f"{options.seed}-{name}-{number}")
    start, finding = time.monotonic(), None
    try:
        # The server has the plan of one case at a time.
        with tools.server_guard if workload == "remote" else contextlib.nullcontext():
            fault, outcome = case.run()
    except Skipped as reason:
        fault, outcome = reason, "SKIPPED"
    except Finding as problem:
        fault, outcome, finding = case.said.splitlines()[0], "FINDING", problem
    seconds = time.monotonic() - start
    unused = case.environment.get("LD_PRELOAD") and not os.path.exists(case.record)
    line = f"{number:>4} {name:<18} {workload:<7} {outcome:<11} {seconds:5.1f} s  {fault}"
    line += " (not reached)" if unused else ""
    print(line + (f"\n     {finding}\n     {case.folder}.log" if finding else ""), flush=True)
    with open(f"{case.folder}.log", "w", encoding="utf-8") as log:
        log.write(f"{line}\n{case.said}\n{finding or outcome}\n")
    if not finding and not options.keep:
        shutil.rmtree(case.folder, ignore_errors=True)
    return name, outcome


def main():
    parser = argparse.ArgumentParser(prog="scripts/faults.sh")
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("count", type=int)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], metavar="KIND")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="K")
    parser.add_argument("--only", type=int, metavar="K")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A shell ignores it for processes in the background, and they inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shutil.rmtree(options.folder, ignore_errors=True)
    os.makedirs(options.folder)
    tools = Tools(os.path.abspath(options.program), os.path.abspath(options.folder))
    names = options.kinds or list(KINDS)
    table = collections.defaultdict(collections.Counter)
    numbers = [options.only] if options.only else range(options.first, options.count + 1)
    chosen = []
    for number in numbers:
        name = names[(number - 1) % len(names)]
        choices = KINDS[name][1]
        chosen.append((number, name, choices[(number - 1) // len(names) % len(choices)].name))
    for workload in sorted({workload for _, _, workload in chosen}):
        tools.undisturbed(workload)
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, outcome in pool.map(lambda one: try_case(tools, options, *one), chosen):
            table[name][outcome] += 1
    outcomes = ["unaffected", "killed", "interrupted", "refused", "SKIPPED", "FINDING"]
    print(f"\n{'kind':<18} {'number':>6} " + " ".join(f"{one:>11}" for one in outcomes))
    total = collections.Counter()
    for name in [name for name in names if name in table] + ["all"]:
        counts = table[name] if name in table else total
        total.update(table[name] if name in table else {})
        print(f"{name:<18} {sum(counts.values()):>6} " + " ".join(f"{counts[one]:>11}" for one in outcomes))
    return 1 if total["FINDING"] else 0


if __name__ == "__main__":
    sys.exit(main())
