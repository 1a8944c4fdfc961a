"""The kinds of faults. Each is a function of a `Case` that describes its fault; `KINDS` lists them all.

A function chooses the case's parameters from `case.random` only, so that a number repeats its fault.
"""

import errno
import os
import resource
import shutil
import signal
import subprocess

from workloads import Infer, Launch, Remote, Sweep, Train

# Launches take longest.
LOCAL = (Train, Sweep, Infer, Train, Sweep, Infer, Launch)
KINDS = {}


class Skipped(Exception):
    """The machine lacks something that the kind needs."""


def kind(name, *workloads):
    def add(function):
        KINDS[name] = (function, workloads)
        return function
    return add


def interpose(case, calls, action, value=0, times=1, chosen=None):
    """Disturbs a random call of these kinds."""
    executable, count = case.counted(calls)
    number = chosen if chosen is not None else case.random.randint(1, max(count, 1))
    case.environment |= {
        "LD_PRELOAD": case.tools.library(), "FAULT_UNDER": case.folder, "FAULT_CALLS": ",".join(calls),
        "FAULT_EXE": executable, "FAULT_WHEN": str(number), "FAULT_TIMES": str(times), "FAULT_ACTION": action,
        "FAULT_VALUE": str(int(value)), "FAULT_RECORD": case.record,
        # The log of a launched training, through which its messages come.
        "FAULT_EXCEPT": "/1/log.txt",
    }
    more = {0: " and all later ones"}.get(times, f" to {number + times - 1}" if times > 1 else "")
    return f"{executable}: {'/'.join(calls)} call {number}{more} of about {count}"


def fails(case, calls, code, times):
    case.errno, case.persists = code, times != 1
    return f"{errno.errorcode[code]}, {interpose(case, calls, 'error', code, times)}"


@kind("kill", *LOCAL)
def kill(case):
    calls = case.random.choice([["write"], ["rename"], ["sync"], ["open"], ["create"], ["remove"], ["read"]])
    case.may_die = {signal.SIGKILL}
    return f"SIGKILL, {interpose(case, calls, 'signal', signal.SIGKILL)}"


@kind("kill-strace", Train, Sweep, Infer)
def kill_by_strace(case):
    """Covers system calls that bypass the C library."""
    strace = shutil.which("strace")
    if not strace:
        raise Skipped("there is no strace")
    call, bound = case.random.choice([("write", 60), ("/rename", 20), ("fsync", 30), ("openat", 120),
                                      ("mmap", 150), ("futex", 60), ("ftruncate", 3)])
    number = case.random.randint(1, bound)
    case.prefix = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
                   "-e", f"inject={call}:signal=KILL:when={number}"]
    case.may_die = {signal.SIGKILL}
    return f"SIGKILL by strace, {call} call {number}"


@kind("disk-full", *LOCAL)
def disk_full(case):
    code = case.random.choice([errno.ENOSPC, errno.ENOSPC, errno.EDQUOT])
    return fails(case, ["write", "create", "sync"], code, case.random.choice([1, 0, 0]))


@kind("input-output-error", *LOCAL)
def input_output_error(case):
    calls = case.random.choice([["read"], ["write"], ["sync"], ["open"], ["rename"], ["remove"], ["lock"]])
    return fails(case, calls, errno.EIO, case.random.choice([1, 1, 0]))


@kind("short-transfers", *LOCAL)
def short_transfers(case):
    calls = case.random.choice([["read"], ["write"], ["read", "write"]])
    case.must_succeed = True
    return f"short, {interpose(case, calls, 'short', times=0)}"


@kind("interrupted-calls", *LOCAL)
def interrupted_calls(case):
    calls = case.random.choice([["read"], ["write"], ["open"], ["sync"]])
    case.must_succeed = True
    return fails(case, calls, errno.EINTR, case.random.choice([1, 3]))


@kind("descriptors", *LOCAL)
def descriptors(case):
    if case.random.randrange(2):
        return fails(case, ["open"], case.random.choice([errno.EMFILE, errno.ENFILE]),
                     case.random.choice([1, 0]))
    # The scripts of a launch need some to look for programs.
    limit = case.random.randint(20 if isinstance(case.workload, Launch) else 4, 30)
    case.limits = [(resource.RLIMIT_NOFILE, limit)]
    case.errno = errno.EMFILE
    return f"at most {limit} descriptors"


@kind("read-only", *LOCAL)
def read_only(case):
    return fails(case, ["create", "rename", "remove"], errno.EROFS, 0)


def mount(case, options, what):
    """A file system of its own for the case, which is unmounted before resuming."""
    if os.geteuid():
        raise Skipped("mounting needs root")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", case.folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise Skipped("mounting failed")
    case.mounted = True
    case.errno = errno.ENOSPC
    return what


@kind("full-volume", Train, Sweep)
def full_volume(case):
    kib = case.random.randint(60, 500)
    case.relieve = ["mount", "-o", "remount,size=64m", case.folder]
    return mount(case, f"size={kib}k", f"a volume of {kib} KiB")


@kind("full-inode-table", Train, Sweep)
def full_inode_table(case):
    count = case.random.randint(14, 60)
    case.relieve = ["mount", "-o", "remount,nr_inodes=10000", case.folder]
    return mount(case, f"size=64m,nr_inodes={count}", f"{count} inodes")


@kind("memory", Train, Sweep, Infer)
def memory(case):
    mib = case.tools.loadable_mib() + case.random.randint(0, 24)
    case.limits = [(resource.RLIMIT_AS, mib << 20)]
    case.errno = errno.ENOMEM
    case.without_memory = True
    return f"{mib} MiB of address space"


@kind("memory-cgroup", Train, Sweep, Infer)
def memory_cgroup(case):
    group = os.environ.get("FAULTS_CGROUP")
    if not group:
        raise Skipped("FAULTS_CGROUP names no cgroup with a memory limit that this user may join")
    case.cgroup = group
    case.may_die = {signal.SIGKILL}
    return f"in the cgroup {group}"


@kind("clock", *LOCAL)
def clock(case):
    seconds = case.random.choice([1, -1]) * case.random.choice([1, 3600, 86_400, 400 * 86_400])
    case.must_succeed = True
    return f"the clock jumps by {seconds} s, {interpose(case, ['clock'], 'jump', seconds, times=0)}"


@kind("slow-disk", *LOCAL)
def slow_disk(case):
    calls = case.random.choice([["write"], ["sync"], ["open"], ["rename"], ["read"]])
    case.must_succeed = True
    milliseconds = case.random.choice([2, 10, 30])
    times = case.random.choice([20, 60])
    return f"{milliseconds} ms later, {interpose(case, calls, 'delay', 1000 * milliseconds, times)}"


@kind("signal", *LOCAL)
def a_signal(case):
    chosen = case.random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
    case.may_die = {chosen}
    case.may_stop = True
    calls = case.random.choice([["write"], ["open"], ["create"], ["rename"], ["sync"], ["read"]])
    return f"{chosen.name}, {interpose(case, calls, 'signal', chosen)}"


@kind("stop-and-continue", *LOCAL)
def stop_and_continue(case):
    case.continues = True
    case.must_succeed = True
    calls = case.random.choice([["write"], ["open"], ["create"], ["rename"], ["sync"]])
    return f"SIGSTOP, {interpose(case, calls, 'signal', signal.SIGSTOP)}"


@kind("store", Remote)
def store(case):
    answers = ["429", "500", "half", "slow", "cut", "other"]
    if case.random.randrange(4) == 0:
        always = case.random.choice(["500", "429", "half", "other", "cut"])
        case.server.reset(always=always)
        case.address_in_message = True
        return f"every answer with data is {always}"
    plan = {number: case.random.choice(answers[:5]) for number in range(8) if case.random.randrange(2)}
    if case.random.randrange(3) == 0:
        plan[case.random.randrange(2, 6)] = "other"
        case.address_in_message = True
    case.server.reset(plan)
    case.must_succeed = "other" not in plan.values()
    return "answers: " + (", ".join(f"{number}: {what}" for number, what in plan.items()) or "all good")


@kind("two-at-once", Train, Sweep, Infer)
def two_at_once(case):
    case.twice = case.random.choice([0.0, 0.02, 0.1, 0.3])
    return f"a second process {case.twice} s later"
