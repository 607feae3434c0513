/* The head of `simcse`, one file with a Python of its own: unpacks what stands behind it once, and runs it.
 *
 * FILE = this program, RUNTIME, ARCHIVE, TRAILER
 *   RUNTIME  ustar: the interpreter and the few modules that it reads ARCHIVE with, unpacked here
 *   ARCHIVE  tar.zst: all the rest, unpacked by unpack.py
 *   TRAILER  one line, see read_trailer(); written by build.py
 *
 * Both go to CACHE/binary/NAME, where NAME has the version and the digest of what is in it. The folder is made under
 * another name by whoever holds the lock, and renamed when it is complete. Linked statically: it needs no library.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRAILER = 256, BLOCK = 512 };
enum { ERRNO = 127 }; /* exit codes of the unpacker from here on are errno plus this; see unpack.py */

static const char LOADER[] = "/lib64/ld-linux-x86-64.so.2";
static volatile sig_atomic_t stopped; /* by this signal */
static volatile pid_t unpacker;

struct payload {
    const char *runtime;
    long long offset, runtime_size, archive_size, unpacked_size;
    unsigned crc; /* of RUNTIME; ARCHIVE has its own */
    int glibc;    /* 2.GLIBC is the oldest that it runs with */
    char name[128];
};

static char *text(const char *format, ...) {
    char *result;
    va_list values;
    va_start(values, format);
    if (vasprintf(&result, format, values) < 0)
        abort();
    va_end(values);
    return result;
}

static void fail(const char *message) {
    fprintf(stderr, "simcse: %s\n", message);
    exit(1);
}

static void fail_damaged(void) { fail("this file is damaged or incomplete; copy or download it again"); }

static uint32_t crc32(const char *data, long long size) {
    uint32_t crc = ~0u;
    for (long long i = 0; i < size; i++) {
        crc ^= (unsigned char)data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
    }
    return ~crc;
}

/* Map the file and find what it carries. The trailer has its own checksum, so that no half of a file is believed. */
static struct payload read_trailer(int file) {
    struct payload found;
    struct stat status;
    unsigned check = 0;
    int length = 0;
    if (file < 0 || fstat(file, &status))
        fail("cannot read this program's own file");
    const char *image = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED || status.st_size < TRAILER)
        fail_damaged();
    char line[TRAILER + 1] = {0};
    memcpy(line, image + status.st_size - TRAILER, TRAILER);
    int n = sscanf(line, "simcse-binary %lld %lld %lld %lld %x %d %127s %n%x", &found.offset, &found.runtime_size,
                   &found.archive_size, &found.unpacked_size, &found.crc, &found.glibc, found.name, &length, &check);
    if (n != 8 || crc32(line, length) != check ||
        found.offset + found.runtime_size + found.archive_size + TRAILER != status.st_size)
        fail_damaged();
    found.runtime = image + found.offset;
    return found;
}

static int make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* Return NULL if nobody else can put files into the folder, else what is wrong. */
static const char *fault(const char *path) {
    struct stat status;
    if (lstat(path, &status))
        return strerror(errno);
    if (!S_ISDIR(status.st_mode))
        return "is not a folder";
    if (status.st_uid != geteuid())
        return "belongs to another user";
    return status.st_mode & 022 ? "others can write there" : NULL;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Return the folder CACHE/binary of the first cache folder that has NAME already or can take it. */
static char *find_root(const char *name) {
    char *tried = "", *places[3];
    int n = 0, n_private;
    const char *chosen = variable("SIMCSE_CACHE");
    if (chosen)
        places[n++] = text("%s", chosen);
    else if (variable("XDG_CACHE_HOME"))
        places[n++] = text("%s/simcse", variable("XDG_CACHE_HOME"));
    else if (variable("HOME"))
        places[n++] = text("%s/.cache/simcse", variable("HOME"));
    n_private = n;
    if (!chosen && variable("TMPDIR"))
        places[n++] = text("%s/simcse-%u", variable("TMPDIR"), geteuid());
    if (!chosen)
        places[n++] = text("/tmp/simcse-%u", geteuid());
    for (int i = 0; i < n; i++) {
        char *root = text("%s/binary", places[i]);
        const char *wrong = make_folders(root) ? fault(root) : strerror(errno);
        if (!wrong && i >= n_private) /* where everybody can write, ours must be ours from the top */
            wrong = fault(places[i]);
        if (!wrong && access(text("%s/%s", root, name), F_OK) && access(root, W_OK))
            wrong = strerror(errno);
        if (!wrong) {
            if (i >= n_private)
                setenv("SIMCSE_CACHE", places[i], 1); /* for the program: there is no better one for it either */
            char *absolute = realpath(root, NULL);
            return absolute ? absolute : root;
        }
        tried = text("%s\n  %s: %s", tried, root, wrong);
    }
    fail(text("no folder to unpack into; set SIMCSE_CACHE to one of yours%s", tried));
    return NULL;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk) {
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void remove_folder(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* Write the regular files and folders of a ustar archive; return 0 or the error. */
static int write_runtime(const struct payload *payload, const char *folder) {
    const char *at = payload->runtime, *end = at + payload->runtime_size;
    if (mkdir(folder, 0700))
        return errno;
    while (end - at >= BLOCK && *at) {
        long long size = strtoll(at + 124, NULL, 8);
        char *path = at[345] ? text("%s/%.155s/%.100s", folder, at + 345, at) : text("%s/%.100s", folder, at);
        if (at[156] == '5') {
            if (mkdir(path, 0700))
                return errno;
            size = 0;
        } else {
            int out = open(path, O_WRONLY | O_CREAT | O_EXCL, (mode_t)strtol(at + 100, NULL, 8) & 0700);
            if (out < 0)
                return errno;
            for (long long done = 0, n; done < size; done += n)
                if ((n = write(out, at + BLOCK + done, size - done)) < 0)
                    return errno;
            if (close(out))
                return errno;
        }
        at += BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
    }
    return 0;
}

/* Return the minor version of this machine's glibc 2: -1 without one, 0 if it cannot be told. */
static int newest_glibc(void) {
    char *folder = realpath(LOADER, NULL);
    int newest = 0;
    struct stat status;
    if (!folder)
        return -1;
    *strrchr(folder, '/') = 0;
    int file = open(text("%s/libc.so.6", folder), O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status))
        return 0;
    const char *image = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED)
        return 0;
    const char *end = image + status.st_size - 16; /* the names of its versions are far from the end */
    for (const char *at = image; at < end && (at = memmem(at, end - at, "GLIBC_2.", 8)); at += 8)
        if (atoi(at + 8) > newest)
            newest = atoi(at + 8);
    return newest;
}

static void check_glibc(int needed) {
    int found = newest_glibc();
    const char *has = found < 0 ? text("no glibc (there is no %s)", LOADER) : text("glibc 2.%d", found);
    if (found && found < needed)
        fail(text("this machine has %s, this program needs glibc 2.%d or newer; install simcse-cli with pip instead",
                  has, needed));
}

static void check_room(const char *root, long long needed) {
    struct statvfs room;
    if (statvfs(root, &room) || !room.f_blocks)
        return; /* not known */
    long long found = (long long)room.f_bavail * room.f_frsize;
    if (found < needed)
        fail(text("%s has %lld MB of free space, this program takes %lld MB; set SIMCSE_CACHE to a folder with room",
                  root, found / 1000000, needed / 1000000));
}

static void stop(int number) {
    stopped = number;
    if (unpacker > 0)
        kill(unpacker, SIGKILL);
}

/* Let the interpreter that stands in `part` unpack the archive beside itself; return 0, the error, or -1 if it does
   not run. */
static int run_unpacker(const struct payload *payload, const char *part, int file, int lock) {
    char *python = text("%s/bin/python3", part);
    char *arguments[] = {python, text("%s/unpack.py", part), text("%d", file),
                         text("%lld", payload->offset + payload->runtime_size),
                         text("%lld", payload->archive_size), (char *)part, NULL};
    int status;
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        signal(SIGINT, SIG_IGN); /* which a terminal sends to both: this process ends the child */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(ERRNO + EINTR);
        if (getenv("LD_ORIGIN_PATH"))
            setenv("LD_ORIGIN_PATH", text("%s/bin", part), 1);
        fcntl(file, F_SETFD, 0);
        fcntl(lock, F_SETFD, 0); /* while it writes nobody else does, even if this process is killed */
        execv(python, arguments);
        _exit(ERRNO + errno);
    }
    if (child < 0)
        return errno;
    unpacker = child;
    if (stopped)
        stop(stopped);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return errno;
    unpacker = 0;
    if (!WIFEXITED(status))
        return EINTR;
    int code = WEXITSTATUS(status);
    return code > ERRNO ? code - ERRNO : -code;
}

static void unpack(const struct payload *payload, const char *root, const char *folder, int file, int quiet) {
    char *part = text("%s/.unpacking", root);
    int lock = open(text("%s/.lock", root), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX))
        fail(text("cannot lock %s: %s; set SIMCSE_CACHE to a folder elsewhere", root, strerror(errno)));
    if (access(text("%s/bin/python3", folder), F_OK)) { /* else another start was first */
        if (crc32(payload->runtime, payload->runtime_size) != payload->crc)
            fail_damaged();
        if (!quiet)
            fprintf(stderr, "simcse: unpacking into %s, once\n", folder);
        remove_folder(part);
        remove_folder(folder);
        check_glibc(payload->glibc);
        check_room(root, payload->unpacked_size);
        for (int i = 0, numbers[] = {SIGHUP, SIGINT, SIGTERM}; i < 3; i++)
            if (signal(numbers[i], stop) == SIG_IGN)
                signal(numbers[i], SIG_IGN);
        int error = write_runtime(payload, part);
        if (!error && !stopped)
            error = run_unpacker(payload, part, file, lock);
        if (!error && !stopped && rename(part, folder))
            error = errno;
        if (error || stopped)
            remove_folder(part);
        if (stopped) {
            fprintf(stderr, "simcse: stopped while it was unpacked; nothing is kept\n");
            signal(stopped, SIG_DFL);
            raise(stopped);
        }
        if (error == EBADMSG)
            fail_damaged();
        if (error < 0)
            fail(text("the interpreter in this file does not run here (exit code %d); it needs glibc 2.%d or newer",
                      -error, payload->glibc));
        if (error)
            fail(text("cannot unpack into %s: %s\nIt takes %lld MB where programs may run; set SIMCSE_CACHE to a "
                      "folder with room", root, strerror(error), payload->unpacked_size / 1000000));
    }
    close(lock);
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write, not a silent end */
    unsetenv("LD_LIBRARY_PATH"); /* a library of another installation could replace one of ours */
    int quiet = 0, file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int has_proc = file >= 0;
    if (!has_proc)
        file = open((const char *)getauxval(AT_EXECFN), O_RDONLY | O_CLOEXEC);
    struct payload payload = read_trailer(file);
    char *root = find_root(payload.name);
    char *folder = text("%s/%s", root, payload.name), *python = text("%s/bin/python3", folder);
    char **arguments = calloc(argc + 3, sizeof *arguments);
    memcpy(arguments, (char *[]){python, "-m", "simcse_cli"}, 3 * sizeof *arguments);
    for (int i = 1; i < argc; i++) {
        arguments[i + 2] = argv[i];
        quiet |= !strcmp(argv[i], "-q") || !strcmp(argv[i], "--quiet");
    }
    if (!has_proc) /* the loader asks for $ORIGIN there; see ld.so(8) */
        setenv("LD_ORIGIN_PATH", text("%s/bin", folder), 1);
    if (access(python, F_OK))
        unpack(&payload, root, folder, file, quiet);
    execv(python, arguments);
    fail(text("cannot run %s: %s", python, strerror(errno)));
}
