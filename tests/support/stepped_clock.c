/* A library to preload into a process whose wall clock a test sets.
 *
 * There is no time namespace for CLOCK_REALTIME, and setting the machine's clock would disturb
 * everything else on it. STEPPED_CLOCK names a file with two numbers of nanoseconds: what
 * the test adds to the wall clock, and what the process was given last. Monotonic clocks are as
 * they were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static volatile int64_t nowhere[2];
static volatile int64_t *offsets = nowhere; /* wanted, given */
static int (*original)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("STEPPED_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *shared = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        offsets = shared;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (original == NULL)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = original(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t offset = offsets[0];
        int64_t ns = now->tv_sec * NS + now->tv_nsec + offset;
        now->tv_sec = ns / NS;
        now->tv_nsec = ns % NS;
        offsets[1] = offset;
    }
    return status;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    (void)zone;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *there)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (there != NULL)
        *there = now.tv_sec;
    return now.tv_sec;
}
