/* The floors of the store's bench: the same bytes, moved by the least code that can move them.
 *
 *   floor fdatasync FILE BYTES COUNT   pwrite of BYTES, then fdatasync, COUNT times, one behind the
 *                                      other into FILE, which has its blocks already
 *   floor read FILE CHUNK              read() of the whole of FILE in pieces, as dd does
 *   floor copy FILE CHUNK              memcpy of the whole of FILE, mapped, in pieces
 *   floor keys COUNT SLOTS             COUNT puts of a 20-byte entry into a chain of one of SLOTS
 *
 * Each prints one JSON object. Times are CPU seconds of this process and seconds on the wall.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int opened(const char *path, int flags, size_t *size) {
    struct stat found;
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) < 0) fail(path);
    *size = found.st_size;
    return fd;
}

static void run_fdatasync(const char *path, size_t bytes, size_t count) {
    size_t size;
    int fd = opened(path, O_RDWR, &size);
    char *data = malloc(bytes);
    double *took = malloc(count * sizeof *took);
    if (!data || !took || bytes * count > size) fail("fdatasync");
    memset(data, 'x', bytes);
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < count; i++) {
        double begin = now(CLOCK_MONOTONIC);
        if (pwrite(fd, data, bytes, i * bytes) != (ssize_t)bytes || fdatasync(fd)) fail(path);
        took[i] = now(CLOCK_MONOTONIC) - begin;
    }
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    qsort(took, count, sizeof *took, ascending);
    printf("{\"count\": %zu, \"cpu_s\": %.9f, \"wall_s\": %.9f, \"p50_us\": %.3f, \"p99_us\": %.3f}\n",
           count, cpu, wall, took[count / 2] * 1e6, took[count * 99 / 100] * 1e6);
}

static void run_read(const char *path, size_t chunk) {
    size_t size, bytes = 0;
    int fd = opened(path, O_RDONLY, &size);
    char *data = malloc(chunk);
    ssize_t got;
    if (!data) fail("malloc");
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    while ((got = read(fd, data, chunk)) > 0) bytes += got;
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"bytes\": %zu, \"cpu_s\": %.9f, \"wall_s\": %.9f}\n", bytes, cpu, wall);
}

static void run_copy(const char *path, size_t chunk) {
    size_t size;
    int fd = opened(path, O_RDONLY, &size);
    char *data = malloc(chunk);
    char *map = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (!data || map == MAP_FAILED) fail(path);
    uint64_t seen = 0;
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t at = 0; at < size; at += chunk) {
        memcpy(data, map + at, size - at < chunk ? size - at : chunk);
        seen += (unsigned char)data[0];    /* or the copy would be left out */
    }
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"bytes\": %zu, \"cpu_s\": %.9f, \"wall_s\": %.9f, \"seen\": %llu}\n",
           size, cpu, wall, (unsigned long long)seen);
}

static void run_keys(size_t count, size_t slots) {
    uint32_t *heads = mmap(NULL, slots * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *entries = mmap(NULL, (count + 1) * 20, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heads == MAP_FAILED || entries == MAP_FAILED) fail("mmap");
    uint64_t state = 88172645463325252ull;
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 1; i <= count; i++) {
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        uint32_t hash = state >> 33, seconds = 1, *head = heads + hash % slots;
        uint64_t place = i * 200;
        uint8_t *entry = entries + i * 20;
        memcpy(entry, &hash, 4); memcpy(entry + 4, &place, 8);
        memcpy(entry + 12, &seconds, 4); memcpy(entry + 16, head, 4);
        *head = i;
    }
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"count\": %zu, \"cpu_s\": %.9f, \"wall_s\": %.9f}\n", count, cpu, wall);
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "fdatasync"))
        run_fdatasync(argv[2], strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10));
    else if (argc == 4 && !strcmp(argv[1], "read")) run_read(argv[2], strtoull(argv[3], 0, 10));
    else if (argc == 4 && !strcmp(argv[1], "copy")) run_copy(argv[2], strtoull(argv[3], 0, 10));
    else if (argc == 4 && !strcmp(argv[1], "keys"))
        run_keys(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10));
    else { fprintf(stderr, "see the head of floor.c\n"); return 2; }
    return 0;
}
