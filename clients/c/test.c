/*
 * Program of the tests. Its argument: `marks` sends known marks; `flood` sends more than fit into a
 * socket that has no reader, and one after the end of stdin; `cost` prints the ns per mark.
 */
#define _POSIX_C_SOURCE 200809L
#include "profiler_mark.h"

#include <locale.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#define THREADS 4
#define REGIONS 50

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void pause_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static void *overlapping(void *parent) {
    struct profiler_details more = {0};
    more.parent = *(const uint64_t *)parent;
    for (int i = 0; i < REGIONS; i++) {
        uint64_t region = profiler_start_with("thread", &more);
        pause_ms(1);
        profiler_end(region);
    }
    return NULL;
}

static int marks(void) {
    pthread_t threads[THREADS];
    struct profiler_attrs attrs = PROFILER_ATTRS;
    struct profiler_details more = {0};
    struct profiler_details failed = {0};
    char longer[5000];
    uint64_t fit, inner;
    int i;

    profiler_attr_int(&attrs, "epoch", -3);
    profiler_attr_double(&attrs, "rate", 0.5);
    profiler_attr_double(&attrs, "infinite", 1e308 * 10);
    profiler_attr_text(&attrs, "file \"x\"", "a\\b\n\x01");
    profiler_attr_json(&attrs, "shape", "[2,3]");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    if (profiler_attr_text(&attrs, "long", longer)) return 1;

    more.kind = "epoch";
    more.group = "training";
    more.attrs = attrs.text;
    more.tags = "[\"gpu\"]";
    more.used = "[\"in\"]";
    fit = profiler_start_with("fit", &more);
    more = (struct profiler_details){.parent = fit};
    inner = profiler_start_with("fit", &more);
    for (i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, overlapping, &inner);
    for (i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    /* Ends the outer region first. */
    profiler_end(fit);
    failed.status = "error";
    failed.generated = "[\"out\"]";
    profiler_end_with(inner, &failed);

    /* Quotes, control characters, UTF-8 and bytes that are not UTF-8. */
    profiler_event("a\"b\\c\td \xC3\xA9\xF0\x9F\x98\x80 \xFF\xC3");
    longer[4] = 0;
    profiler_event(longer);
    longer[4] = 'x';
    profiler_event(longer);
    setlocale(LC_ALL, "");
    profiler_phase("before", 0.25);
    profiler_phase("negative", -1);
    profiler_gauge("memory", 1.5e9, "bytes");
    profiler_gauge("ratio", -0.125, NULL);
    profiler_gauge("nothing", 1e308 * 10, NULL);

    uint64_t parent = profiler_start("parent");
    pid_t child = fork();
    if (child == 0) {
        more = (struct profiler_details){.parent = parent};
        profiler_end(profiler_start_with("child", &more));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    profiler_end(parent);
    return 0;
}

static void flood(void) {
    int i;
    for (i = 0; i < 1000; i++) profiler_event("flood");
    while (getchar() != EOF) {}
    if (fork() == 0) {
        profiler_event("child");
        _exit(0);
    }
    wait(NULL);
    profiler_event("last");
}

static void cost(void) {
    enum { SPARSE = 2000, DENSE = 100000000 };
    int count = profiler_enabled() ? SPARSE : DENSE, i;
    double spent = 0, begin = now();
    for (i = 0; i < count; i++) {
        /* A program computes between its marks, and the profiler has limits. */
        if (count == SPARSE) {
            while (now() - begin < 1e-3) {}
            begin = now();
        }
        profiler_end(profiler_start("cost"));
        if (count == SPARSE) spent += now() - begin;
    }
    if (count == DENSE) spent = now() - begin;
    printf("%.2f\n", spent * 1e9 / count / 2);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "cost") == 0) cost();
    else if (strcmp(what, "flood") == 0) flood();
    else return marks();
    return 0;
}
