/* Stands in for libcupti without a GPU: the four functions of its activity interface that hand over buffers.
 *
 * Records are given as bytes, one after another, with the size of each; fake_run puts them into buffers that it requests, on a
 * thread of its own, as CUPTI's worker does. A buffer without room for a record is handed over, and the next one requested; where none is
 * given, records are dropped and counted. What is not full waits for a flush. Sizes of records are what CUPTI's iterator knows
 * them by: here from a table by kind that the test fills in. */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef void (*requested_callback)(uint8_t **, size_t *, size_t *);
typedef void (*completed_callback)(void *, uint32_t, uint8_t *, size_t, size_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static requested_callback requested;
static completed_callback completed;
static uint8_t *buffer;
static size_t size, valid, dropped;
static size_t sizes[128];
static int refuse, flush_code, registered, flushes;
static int64_t incomplete; /* flushes that leave the buffer, as if a kernel in it still ran */

void fake_reset(void) {
    buffer = NULL;
    size = valid = dropped = 0;
    refuse = flush_code = registered = flushes = 0;
    incomplete = 0;
    memset(sizes, 0, sizeof sizes);
}
void fake_size(int kind, size_t bytes) { sizes[kind] = bytes; }
void fake_refuse(int code) { refuse = code; }
void fake_flush_code(int code) { flush_code = code; }
void fake_incomplete(int64_t times) { incomplete = times; }
int fake_registered(void) { return registered; }
int fake_flushes(void) { return flushes; }

static void hand_over(void) {
    uint8_t *full = buffer;
    size_t bytes = valid;
    buffer = NULL;
    valid = 0;
    if (full) completed(NULL, 0, full, size, bytes);
}

struct given {
    const uint8_t *records;
    const size_t *lengths;
    size_t count;
};

static void *run(void *argument) {
    const struct given *given = argument;
    const uint8_t *record = given->records;
    for (size_t i = 0; i < given->count; record += given->lengths[i++]) {
        pthread_mutex_lock(&lock);
        size_t most;
        if (buffer && valid + given->lengths[i] > size) hand_over();
        if (!buffer) requested(&buffer, &size, &most);
        if (buffer) {
            memcpy(buffer + valid, record, given->lengths[i]);
            valid += given->lengths[i];
        } else {
            dropped++;
        }
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int fake_run(const uint8_t *records, const size_t *lengths, size_t count, int threads) {
    struct given given = {records, lengths, count};
    pthread_t started[16];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, run, &given)) return -1;
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return 0;
}

/* A buffer of somebody else's comes back to whoever is registered now. */
void fake_stranger(uint8_t *memory, size_t bytes) { completed(NULL, 0, memory, bytes, bytes); }

int cuptiActivityRegisterCallbacks(requested_callback request, completed_callback complete) {
    if (refuse) return refuse;
    requested = request;
    completed = complete;
    registered++;
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *memory, size_t bytes, uint8_t **record) {
    int32_t kind;
    uint8_t *next = memory;
    if (*record) {
        memcpy(&kind, *record, sizeof kind);
        next = *record + sizes[kind];
    }
    if (next == memory + bytes) return 12;
    memcpy(&kind, next, sizeof kind);
    if (kind <= 0 || kind >= 128 || !sizes[kind] || next + sizes[kind] > memory + bytes) return 21;
    *record = next;
    return 0;
}

int cuptiActivityFlushAll(uint32_t forced) {
    pthread_mutex_lock(&lock);
    flushes++;
    if (!forced && incomplete > 0) incomplete--;
    else hand_over();
    pthread_mutex_unlock(&lock);
    return flush_code;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context;
    (void)stream;
    *count = dropped;
    dropped = 0;
    return 0;
}
