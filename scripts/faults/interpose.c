// Makes system calls of a program fail, for scripts/faults.sh; loaded with LD_PRELOAD. The environment says
// which and how:
//
//   FAULT_UNDER    folders, separated by colons; only calls on paths below them count
//   FAULT_EXCEPT   the end of the paths that do not count
//   FAULT_CALLS    open,read,write,sync,rename,create,remove,lock,clock: the calls that count
//   FAULT_EXE      only processes of this executable's base name; `stratus` includes its copies of a launch
//   FAULT_WHEN     the number of the first call with the fault, from 1, in this process
//   FAULT_TIMES    the number of calls with the fault, 0 for all later ones
//   FAULT_ACTION   error, short, delay, signal, jump or count
//   FAULT_VALUE    errno, microseconds, signal number or seconds
//   FAULT_RECORD   the file that is created at the first fault, with the process, the call and the path. Only
//                  the process that creates it has the fault.
//   FAULT_COUNTS   the file to which each process appends its executable and its numbers of calls, in
//                  the order of FAULT_CALLS above, at its end
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, RENAME = 16, CREATE = 32, REMOVE = 64, LOCK = 128 };
enum { CLOCK = 256 };
enum action { NONE, ERROR, SHORT, DELAY, SIGNAL, JUMP, COUNT };
static const char *const NAMES[] = {
    "open", "read", "write", "sync", "rename", "create", "remove", "lock", "clock"};

static const char *under, *except = "";
static unsigned calls;
static long when, times, value;
static enum action action;
static atomic_long counter, counts[sizeof NAMES / sizeof *NAMES];
static atomic_int state; // 0: no fault yet, 1: this process has it, 2: another process has it
static char executable[512];

static const char *variable(const char *name) {
    const char *text = getenv(name);
    return text ? text : "";
}

__attribute__((constructor)) static void start(void) {
    ssize_t n = readlink("/proc/self/exe", executable, sizeof executable - 1);
    executable[n > 0 ? n : 0] = 0;
    const char *base = strrchr(executable, '/');
    base = base ? base + 1 : executable;
    const char *wanted = variable("FAULT_EXE");
    int copy = !strcmp(wanted, "stratus")
        && (strstr(executable, "/content/") || strstr(executable, "/program/"));
    if (*wanted && strcmp(base, wanted) && !copy)
        return;
    memmove(executable, copy ? "stratus" : base, copy ? 8 : strlen(base) + 1);
    under = variable("FAULT_UNDER");
    except = variable("FAULT_EXCEPT");
    for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strstr(variable("FAULT_CALLS"), NAMES[i]))
            calls |= 1u << i;
    when = atol(variable("FAULT_WHEN"));
    times = atol(variable("FAULT_TIMES"));
    value = atol(variable("FAULT_VALUE"));
    const char *names[] = {"none", "error", "short", "delay", "signal", "jump", "count"};
    for (int i = 0; i < 7; i++)
        if (!strcmp(variable("FAULT_ACTION"), names[i]))
            action = i;
}

__attribute__((destructor)) static void end(void) {
    const char *path = variable("FAULT_COUNTS");
    if (action != COUNT || !*path)
        return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_APPEND | O_WRONLY, 0644);
    char line[800];
    int n = snprintf(line, sizeof line, "%s", executable);
    for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        n += snprintf(line + n, sizeof line - n, " %ld", counts[i]);
    line[n++] = '\n';
    if (fd >= 0)
        syscall(SYS_write, fd, line, n), syscall(SYS_close, fd);
}

static int below(const char *path) {
    size_t length = strlen(path), end = strlen(except);
    if (end && length >= end && !strcmp(path + length - end, except))
        return 0;
    for (const char *at = under; at && *at;) {
        size_t n = strcspn(at, ":");
        if (n && !strncmp(path, at, n) && (path[n] == '/' || !path[n]))
            return 1;
        at += n + (at[n] == ':');
    }
    return 0;
}

// Whether this process may have the fault; the first call records it.
static int claimed(unsigned call, const char *path) {
    if (state)
        return state == 1;
    const char *record = variable("FAULT_RECORD");
    int fd = syscall(SYS_openat, AT_FDCWD, record, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd < 0)
        return state = 2, 0;
    char line[1200];
    const char *name = NAMES[__builtin_ctz(call)];
    int n = snprintf(line, sizeof line, "%d %s %s %s\n", getpid(), executable, name, path);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
    return state = 1, 1;
}

// The action for this call on a path; `errno` is set for ERROR.
static enum action fault(unsigned call, const char *path) {
    if (!action || !(calls & call) || (call != CLOCK && !below(path)))
        return NONE;
    long number = ++counter;
    ++counts[__builtin_ctz(call)];
    if (action == COUNT || number < when || (times && number >= when + times) || !claimed(call, path))
        return NONE;
    if (action == DELAY) {
        struct timespec pause = {value / 1000000, value % 1000000 * 1000};
        nanosleep(&pause, NULL);
    } else if (action == SIGNAL) {
        kill(getpid(), value);
    } else if (action == ERROR) {
        errno = value;
    }
    return action;
}

static enum action fault_at(unsigned call, int folder, const char *path) {
    if (!action || !(calls & call))
        return NONE;
    char full[1024] = "", link[64];
    if (path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(full, sizeof full))
                full[0] = 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t n = readlink(link, full, sizeof full - 1);
            full[n > 0 ? n : 0] = 0;
        }
        strncat(full, "/", sizeof full - strlen(full) - 1);
    }
    strncat(full, path, sizeof full - strlen(full) - 1);
    return fault(call, full);
}

static enum action fault_fd(unsigned call, int fd) {
    if (!action || !(calls & call))
        return NONE;
    int saved = errno;
    char link[64], path[1024];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    errno = saved;
    return fault(call, path);
}

static size_t shortened(enum action act, size_t n) {
    return act == SHORT && n > 1 ? 1 + (counter * 7919) % (n - 1) : n;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = (__typeof__(real))dlsym(RTLD_NEXT, #name)
#define FAIL_IF(condition) \
    if ((condition) == ERROR) \
        return -1

#define OPEN_BODY(name, folder, ...) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    } \
    REAL(name); \
    FAIL_IF(fault_at((flags & O_CREAT) && (calls & CREATE) ? CREATE : OPEN, folder, path)); \
    return real(__VA_ARGS__, flags, mode)
int open(const char *path, int flags, ...) { OPEN_BODY(open, AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPEN_BODY(open64, AT_FDCWD, path); }
int openat(int folder, const char *path, int flags, ...) { OPEN_BODY(openat, folder, folder, path); }
int openat64(int folder, const char *path, int flags, ...) { OPEN_BODY(openat64, folder, folder, path); }

#define TRANSFER(name, call, ...) \
    REAL(name); \
    enum action act = fault_fd(call, fd); \
    FAIL_IF(act); \
    n = shortened(act, n); \
    return real(fd, data, n __VA_ARGS__)
ssize_t read(int fd, void *data, size_t n) { TRANSFER(read, READ); }
ssize_t write(int fd, const void *data, size_t n) { TRANSFER(write, WRITE); }
ssize_t pread(int fd, void *data, size_t n, off_t at) { TRANSFER(pread, READ, , at); }
ssize_t pread64(int fd, void *data, size_t n, off64_t at) { TRANSFER(pread64, READ, , at); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { TRANSFER(pwrite, WRITE, , at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { TRANSFER(pwrite64, WRITE, , at); }
ssize_t writev(int fd, const struct iovec *data, int n) {
    REAL(writev);
    enum action act = fault_fd(WRITE, fd);
    FAIL_IF(act);
    return real(fd, data, act == SHORT ? 1 : n);
}
ssize_t readv(int fd, const struct iovec *data, int n) {
    REAL(readv);
    enum action act = fault_fd(READ, fd);
    FAIL_IF(act);
    return real(fd, data, act == SHORT ? 1 : n);
}
// Rust's copies fall back to read and write.
ssize_t copy_file_range(int a, off64_t *b, int c, off64_t *d, size_t n, unsigned flags) {
    REAL(copy_file_range);
    FAIL_IF(fault_fd(WRITE, c));
    return real(a, b, c, d, n, flags);
}

#define BY_FD(name, call, parameters, ...) \
    int name parameters { REAL(name); FAIL_IF(fault_fd(call, fd)); return real(__VA_ARGS__); }
BY_FD(fsync, SYNC, (int fd), fd)
BY_FD(fdatasync, SYNC, (int fd), fd)
BY_FD(ftruncate, WRITE, (int fd, off_t length), fd, length)
BY_FD(ftruncate64, WRITE, (int fd, off64_t length), fd, length)
extern int flock(int, int);
BY_FD(flock, LOCK, (int fd, int how), fd, how)

#define BY_PATH(name, call, path, parameters, ...) \
    int name parameters { REAL(name); FAIL_IF(fault_at(call, AT_FDCWD, path)); return real(__VA_ARGS__); }
BY_PATH(rename, RENAME, to, (const char *from, const char *to), from, to)
BY_PATH(mkdir, CREATE, path, (const char *path, mode_t mode), path, mode)
BY_PATH(unlink, REMOVE, path, (const char *path), path)
BY_PATH(rmdir, REMOVE, path, (const char *path), path)

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    int result = real(clock, time);
    if (clock == CLOCK_REALTIME && fault(CLOCK, "") == JUMP)
        time->tv_sec += value;
    return result;
}
