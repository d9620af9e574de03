/*
 * A disk that takes its time: loaded before the C library, it delays writes to files and syncs of them.
 *
 * SLOW_DISK names a file of two unsigned 32-bit numbers, microseconds per write and per sync, which is mapped, so that
 * a test can make a running process slow and quick again. Sockets, pipes and the standard streams are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const volatile uint32_t *delays_us;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SLOW_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof(uint32_t), PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED)
        delays_us = found;
    if (fd >= 0)
        close(fd);
}

static void wait_for(int fd, int which)
{
    struct stat status;
    uint32_t us = delays_us ? delays_us[which] : 0;
    if (!us || fd <= STDERR_FILENO || fstat(fd, &status) || (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)))
        return;
    struct timespec left = {us / 1000000, (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left))
        ;
}

#define SLOWED(kind, which, name, parameters, arguments)                     \
    kind name parameters                                                     \
    {                                                                        \
        static kind(*real) parameters;                                       \
        if (!real)                                                           \
            real = (kind(*) parameters)dlsym(RTLD_NEXT, #name);              \
        wait_for(fd, which);                                                 \
        return real arguments;                                               \
    }

SLOWED(ssize_t, 0, write, (int fd, const void *data, size_t size), (fd, data, size))
SLOWED(ssize_t, 0, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
SLOWED(ssize_t, 0, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
SLOWED(ssize_t, 0, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
SLOWED(ssize_t, 0, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
SLOWED(ssize_t, 0, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
SLOWED(int, 1, fsync, (int fd), (fd))
SLOWED(int, 1, fdatasync, (int fd), (fd))
SLOWED(int, 1, sync_file_range, (int fd, off64_t at, off64_t size, unsigned int flags), (fd, at, size, flags))
