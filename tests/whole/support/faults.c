/*
 * A library for LD_PRELOAD that injects faults into calls of the system.
 *
 *     FAULT=KIND:N        the Nth call of this kind fails (1 is the first)
 *     FAULT=KIND:N+       this call and all later ones fail
 *     FAULT_COUNTS=FILE   writes the number of calls of each kind to the file when the program ends
 *
 * | kind   | calls                                       | failure                               |
 * | ------ | ------------------------------------------- | ------------------------------------- |
 * | memory | malloc, calloc, realloc, posix_memalign     | a null pointer (ENOMEM)               |
 * | map    | mmap of 128 KiB of memory or more           | ENOMEM                                |
 * | file   | mmap of files                               | ENOMEM                                |
 * | open   | open, openat                                | EMFILE                                |
 * | read   | read, pread, readv of regular files         | EIO                                   |
 * | write  | write, pwrite, writev, fallocate, ftruncate | ENOSPC                                |
 * | short  | as read and write                           | a part is transferred, or EINTR       |
 * | sync   | fsync, fdatasync                            | EIO                                   |
 * | rename | rename, renameat, renameat2, link, linkat   | EIO                                   |
 * | thread | pthread_create                              | EAGAIN                                |
 * | clock  | clock_gettime                               | the time of day jumps by ten years    |
 * | accept | accept4                                     | EMFILE                                |
 * | kill   | all calls above for files                   | the process is killed                 |
 *
 * The standard library of Rust aborts if a thread gets no small map for its signal stack.
 * Writes to standard output and standard error do not fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { MEMORY, MAP, FILE_MAP, OPEN, READ, WRITE, SHORT, SYNC, RENAME, THREAD, CLOCK, ACCEPT, KILL, KINDS };
static const char *const NAMES[KINDS] = {"memory", "map", "file", "open", "read", "write",
                                         "short", "sync", "rename", "thread", "clock", "accept", "kill"};

static atomic_ulong counts[KINDS];
static int injected = KINDS;
static unsigned long first;
static int stays;

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("FAULT");
    if (!text) return;
    for (int kind = 0; kind < KINDS; kind++) {
        size_t length = strlen(NAMES[kind]);
        if (strncmp(text, NAMES[kind], length) == 0 && text[length] == ':') {
            char *end;
            first = strtoul(text + length + 1, &end, 10);
            stays = *end == '+';
            for (int other = 0; other < KINDS; other++) atomic_store(&counts[other], 0);
            injected = kind;
        }
    }
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FAULT_COUNTS");
    injected = KINDS;
    if (!path) return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int kind = 0; kind < KINDS; kind++) {
        char line[64];
        int length = snprintf(line, sizeof line, "%s %lu\n", NAMES[kind], (unsigned long)atomic_load(&counts[kind]));
        syscall(SYS_write, file, line, (size_t)length);
    }
    syscall(SYS_close, file);
}

/* Counts a call, and returns whether it must fail. Kills the process if this is its last call. */
static int fails(enum kind kind) {
    int is_of_files = kind == FILE_MAP || kind == OPEN || kind == READ || kind == WRITE || kind == SYNC || kind == RENAME;
    if (is_of_files && atomic_fetch_add(&counts[KILL], 1) + 1 == first && injected == KILL) {
        syscall(SYS_kill, getpid(), SIGKILL);
    }
    unsigned long number = atomic_fetch_add(&counts[kind], 1) + 1;
    return injected == (int)kind && (number == first || (stays && number > first));
}

/* Sets the error of a failed call. */
static int failed(int error) {
    errno = error;
    return -1;
}

static int is_regular(int file) {
    struct stat status;
    return file > 2 && syscall(SYS_fstat, file, &status) == 0 && S_ISREG(status.st_mode);
}

/* The allocator of the C library has second names, so that no lookup is needed. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes) {
    if (fails(MEMORY)) return errno = ENOMEM, NULL;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    if (fails(MEMORY)) return errno = ENOMEM, NULL;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    if (fails(MEMORY)) return errno = ENOMEM, NULL;
    return __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    if (fails(MEMORY)) return ENOMEM;
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int rights, int flags, int file, off_t offset) {
    int is_small = flags & MAP_ANONYMOUS && bytes < 128 << 10;
    if (!is_small && fails(flags & MAP_ANONYMOUS ? MAP : FILE_MAP)) return errno = ENOMEM, MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, rights, flags, file, offset);
}

void *mmap64(void *at, size_t bytes, int rights, int flags, int file, off64_t offset) {
    return mmap(at, bytes, rights, flags, file, offset);
}

static int open_file(int folder, const char *path, int flags, unsigned mode) {
    if (fails(OPEN)) return failed(EMFILE);
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(flags)                                                                                \
    unsigned mode = 0;                                                                             \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, unsigned);                                                             \
        va_end(rest);                                                                              \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return open_file(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return open_file(folder, path, flags, mode);
}

/* Reduces the length of a transfer. Returns -1 if the call is interrupted. */
static int shortened(size_t *bytes) {
    if (!fails(SHORT)) return 0;
    if (atomic_load(&counts[SHORT]) % 3 == 0) return failed(EINTR);
    *bytes = (*bytes + 1) / 2;
    return 0;
}

ssize_t read(int file, void *memory, size_t bytes) {
    if (is_regular(file)) {
        if (fails(READ)) return failed(EIO);
        if (shortened(&bytes)) return -1;
    }
    return syscall(SYS_read, file, memory, bytes);
}

ssize_t pread(int file, void *memory, size_t bytes, off_t offset) {
    if (is_regular(file)) {
        if (fails(READ)) return failed(EIO);
        if (shortened(&bytes)) return -1;
    }
    return syscall(SYS_pread64, file, memory, bytes, offset);
}

ssize_t pread64(int file, void *memory, size_t bytes, off64_t offset) {
    return pread(file, memory, bytes, offset);
}

ssize_t readv(int file, const struct iovec *parts, int count) {
    if (is_regular(file) && fails(READ)) return failed(EIO);
    return syscall(SYS_readv, file, parts, count);
}

ssize_t write(int file, const void *memory, size_t bytes) {
    if (is_regular(file)) {
        if (fails(WRITE)) return failed(ENOSPC);
        if (shortened(&bytes)) return -1;
    }
    return syscall(SYS_write, file, memory, bytes);
}

ssize_t pwrite(int file, const void *memory, size_t bytes, off_t offset) {
    if (is_regular(file)) {
        if (fails(WRITE)) return failed(ENOSPC);
        if (shortened(&bytes)) return -1;
    }
    return syscall(SYS_pwrite64, file, memory, bytes, offset);
}

ssize_t pwrite64(int file, const void *memory, size_t bytes, off64_t offset) {
    return pwrite(file, memory, bytes, offset);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (is_regular(file) && fails(WRITE)) return failed(ENOSPC);
    return syscall(SYS_writev, file, parts, count);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    if (fails(WRITE)) return failed(ENOSPC);
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, bytes, flags);
}

int fallocate(int file, int mode, off_t offset, off_t bytes) {
    if (fails(WRITE)) return failed(ENOSPC);
    return (int)syscall(SYS_fallocate, file, mode, offset, bytes);
}

int fallocate64(int file, int mode, off64_t offset, off64_t bytes) {
    return fallocate(file, mode, offset, bytes);
}

int ftruncate(int file, off_t bytes) {
    if (fails(WRITE)) return failed(ENOSPC);
    return (int)syscall(SYS_ftruncate, file, bytes);
}

int ftruncate64(int file, off64_t bytes) {
    return ftruncate(file, bytes);
}

int fsync(int file) {
    if (fails(SYNC)) return failed(EIO);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    if (fails(SYNC)) return failed(EIO);
    return (int)syscall(SYS_fdatasync, file);
}

int rename(const char *from, const char *to) {
    if (fails(RENAME)) return failed(EIO);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    if (fails(RENAME)) return failed(EIO);
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (fails(RENAME)) return failed(EIO);
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int link(const char *from, const char *to) {
    if (fails(RENAME)) return failed(EIO);
    return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    if (fails(RENAME)) return failed(EIO);
    return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *data) {
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (fails(THREAD)) return EAGAIN;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, run, data);
}

int accept4(int socket, struct sockaddr *address, socklen_t *length, int flags) {
    if (fails(ACCEPT)) return failed(EMFILE);
    return (int)syscall(SYS_accept4, socket, address, length, flags);
}

#define TEN_YEARS 315576000L

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (fails(CLOCK) && result == 0) {
        /* The monotonic clock only jumps forward, as after a suspension of the machine. */
        long jump = atomic_load(&counts[CLOCK]) % 2 ? TEN_YEARS : -TEN_YEARS;
        time->tv_sec += clock == CLOCK_REALTIME ? jump : TEN_YEARS;
    }
    return result;
}
