/* CUPTI's activity buffers without Python: gives CUPTI memory, takes it back, and sorts the records by kind.
 *
 * CUPTI asks for buffers and returns them on threads of its own choice, the serving thread among them: both callbacks do no more
 * than move a buffer under a mutex. When a window ends, a thread of this file flushes CUPTI, copies each wanted kind's records
 * into one block, and copies each distinct name. Nothing here knows Python, so none of it waits for the interpreter lock.
 *
 * libcupti's functions come as addresses (its signatures are public: cuptiActivityRegisterCallbacks and so on), and sizes of
 * records from Python, so neither CUPTI's headers nor the library are needed to compile this. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SLOTS 1024  /* buffers at most */
#define SPARE 4     /* of them kept for the next window of a recording */
#define KINDS 8     /* kinds of record at most */
#define LAYOUTS 8   /* layouts a kind at most */
#define NAME_BYTES (1 << 16) /* of one name at most */
#define PAGE 4096

#define CUPTI_END 12  /* CUPTI_ERROR_MAX_LIMIT_REACHED: no more records in the buffer */
#define CUPTI_CUT 21  /* CUPTI_ERROR_INVALID_KIND: what follows is incomplete or no record */
#define OUT_OF_BUFFER (-1) /* a record that lies outside its buffer, or not behind the one before */
#define OUT_OF_MEMORY (-2)
#define BUSY (-3) /* the window before is still being flushed */

typedef void (*requested_callback)(uint8_t **, size_t *, size_t *);
typedef void (*completed_callback)(void *, uint32_t, uint8_t *, size_t, size_t);

struct cupti {
    int (*register_callbacks)(requested_callback, completed_callback);
    int (*next_record)(uint8_t *, size_t, uint8_t **);
    int (*flush_all)(uint32_t);
    int (*dropped_records)(void *, uint32_t, size_t *);
};

/* What Python asks of one kind. Layouts: size of a record and where in it the pointer to its name is, -1 for none; the one
 * that is meant first. */
struct wanted {
    int32_t kind, layouts;
    int64_t size[LAYOUTS], name_at[LAYOUTS];
};

/* What became of one kind. */
struct found {
    int64_t count;    /* records copied */
    int64_t distance; /* least number of bytes from one of its records to what follows; 0 without any */
    int64_t layout;   /* which of the layouts fits; -1 for none, then nothing is copied */
    uint8_t *block;   /* the records, one after another */
};

/* A window's records. Python reads the fields up to the names; see native/cupti_collector.py. */
struct window {
    int64_t flush_result, walk_result; /* CUPTI's codes, or ours above; 0 is good */
    int64_t records;                   /* in the buffers */
    int64_t other;                     /* of a kind nobody asked for */
    int64_t over;                      /* left out because there are more than max_records */
    int64_t invalid;                   /* buffers that ended in something that is no record */
    int64_t dropped;                   /* by CUPTI, for want of buffers; -1 where it does not say */
    int64_t declined, foreign, outstanding; /* requests refused; buffers of others; buffers that CUPTI still has */
    int64_t buffers, flush_ns, read_ns;
    int64_t kept;  /* records copied, of all kinds */
    uint8_t *which; /* their place in the list of kinds, in the order of the buffers */
    struct found found[KINDS];
    int64_t names;       /* distinct pointers to names */
    uint64_t *name_at;   /* the pointers */
    int64_t *name_end;   /* where each text ends in name_text; its begin is the end of the one before */
    uint8_t *name_text;
    /* ours */
    int32_t kinds, ready, abandoned;
    int64_t max_records, patience_ns;
    struct wanted wanted[KINDS];
};

enum { EMPTY, FREE, GIVEN, DONE, READ };
struct slot {
    uint8_t *memory;
    size_t size, valid;
    int state;
    uint64_t order; /* in which they came back */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* of anything below; on the monotonic clock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cupti cupti;
static struct slot slots[SLOTS];
static size_t buffer_bytes;
static int64_t limit, in_use, outstanding, declined, foreign;
static uint64_t completions;
static int flushing, hurry, spare = SPARE;

static void prepare_once(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void wait_until(int64_t when_ns) {
    struct timespec when = {when_ns / 1000000000, when_ns % 1000000000};
    pthread_cond_timedwait(&changed, &lock, &when);
}

/* ---- what CUPTI calls */

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = NULL;
    *size = 0;
    *most = 0; /* as many records as fit */
    pthread_mutex_lock(&lock);
    struct slot *empty = NULL, *slot = NULL;
    for (int i = 0; i < SLOTS && in_use < limit; i++) {
        if (slots[i].state == FREE && slots[i].size == buffer_bytes) {
            slot = &slots[i];
            break;
        }
        if (slots[i].state == EMPTY && !empty) empty = &slots[i];
    }
    if (!slot && empty) {
        void *memory = NULL;
        if (!posix_memalign(&memory, PAGE, buffer_bytes)) {
            slot = empty;
            slot->memory = memory;
            slot->size = buffer_bytes;
        }
    }
    if (slot) {
        slot->state = GIVEN;
        slot->valid = 0;
        in_use++;
        outstanding++;
        *buffer = slot->memory;
        *size = slot->size;
    } else {
        declined++; /* CUPTI drops records and counts them */
    }
    pthread_mutex_unlock(&lock);
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context;
    (void)stream;
    (void)size;
    pthread_mutex_lock(&lock);
    struct slot *slot = NULL;
    for (int i = 0; i < SLOTS && !slot; i++)
        if (slots[i].state == GIVEN && slots[i].memory == buffer) slot = &slots[i];
    if (slot) {
        slot->valid = valid < slot->size ? valid : slot->size;
        slot->order = completions++;
        slot->state = DONE;
        outstanding--;
    } else {
        foreign++; /* given by whoever had CUPTI before us: not ours to read, nor to free */
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- the pool; with the lock held */

static void give_up(struct slot *slot) {
    slot->state = FREE;
    in_use--;
}

/* Memory of spare buffers goes back, but for a few. What CUPTI still has stays: it may write there. */
static void trim(void) {
    int kept = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].state != FREE) continue;
        if (slots[i].size == buffer_bytes && kept < spare) {
            kept++;
            continue;
        }
        free(slots[i].memory);
        memset(&slots[i], 0, sizeof slots[i]);
    }
}

/* ---- reading buffers; without the lock */

static int by_order(const void *left, const void *right) {
    uint64_t a = (*(struct slot *const *)left)->order, b = (*(struct slot *const *)right)->order;
    return (a > b) - (a < b);
}

/* Calls visit for each record with the bytes up to what follows it, which are at least its own. */
static int walk(struct slot **list, int64_t count, struct window *window,
                void (*visit)(struct window *, const uint8_t *, int64_t)) {
    for (int64_t i = 0; i < count; i++) {
        uint8_t *begin = list[i]->memory, *end = begin + list[i]->valid, *record = NULL, *before = NULL;
        if (begin == end) continue;
        for (;;) {
            int result = cupti.next_record(begin, list[i]->valid, &record);
            if (result) {
                if (before) visit(window, before, end - before);
                if (result == CUPTI_CUT) window->invalid++;
                else if (result != CUPTI_END) return result;
                break;
            }
            if (record < begin || record + sizeof(int32_t) > end || (before && record <= before)) return OUT_OF_BUFFER;
            if (before) visit(window, before, record - before);
            before = record;
        }
    }
    return 0;
}

static int place_of(const struct window *window, const uint8_t *record) {
    int32_t kind;
    memcpy(&kind, record, sizeof kind);
    for (int i = 0; i < window->kinds; i++)
        if (window->wanted[i].kind == kind) return i;
    return -1;
}

static void measure(struct window *window, const uint8_t *record, int64_t distance) {
    int place = place_of(window, record);
    window->records++;
    if (place < 0) {
        window->other++;
        return;
    }
    struct found *found = &window->found[place];
    if (!found->distance || distance < found->distance) found->distance = distance;
    if (window->kept < window->max_records) {
        window->kept++;
        found->count++;
    } else {
        window->over++;
    }
}

static void copy(struct window *window, const uint8_t *record, int64_t distance) {
    (void)distance;
    int place = place_of(window, record);
    if (place < 0 || window->kept == window->max_records) return;
    struct found *found = &window->found[place];
    int64_t size = window->wanted[place].size[found->layout];
    memcpy(found->block + found->count++ * size, record, size);
    window->which[window->kept++] = (uint8_t)place;
}

/* The layout that is meant, unless the records are of another one's very size; smaller records than meant need a smaller one.
 * Later layouts only append fields, so that a smaller one reads what it has. */
static int64_t fitting(const struct wanted *wanted, int64_t distance) {
    int64_t best = -1;
    for (int i = 0; i < wanted->layouts; i++)
        if (wanted->size[i] == distance) return i;
    if (wanted->layouts && wanted->size[0] <= distance) return 0;
    for (int i = 0; i < wanted->layouts; i++)
        if (wanted->size[i] <= distance && (best < 0 || wanted->size[i] > wanted->size[best])) best = i;
    return best;
}

/* Text at an address that need not be one; its length without the closing 0, -1 where it can't be read. */
static int64_t text_at(uint64_t address, uint8_t *into) {
    int64_t length = 0;
    while (length < NAME_BYTES) {
        size_t wanted = PAGE - (address + length) % PAGE; /* a page is readable as a whole, or not */
        if (wanted > (size_t)(NAME_BYTES - length)) wanted = NAME_BYTES - length;
        struct iovec to = {into + length, wanted}, from = {(void *)(uintptr_t)(address + length), wanted};
        ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (got < 0 && (errno == EPERM || errno == ENOSYS)) { /* a container that forbids it: trust CUPTI */
            length = strnlen((const char *)(uintptr_t)address, NAME_BYTES);
            memcpy(into, (const void *)(uintptr_t)address, length);
            return length;
        }
        if (got <= 0) return -1;
        uint8_t *end = memchr(into + length, 0, got);
        if (end) return end - into;
        length += got;
    }
    return length;
}

/* Each distinct pointer to a name, with its text: the pointers' texts may go when CUPTI is detached. */
static int copy_names(struct window *window) {
    int64_t room = 1024, texts_room = 1 << 16, used = 0;
    uint64_t *table = calloc(2 * room, sizeof *table);
    window->name_at = malloc(room * sizeof *window->name_at);
    window->name_end = malloc(room * sizeof *window->name_end);
    window->name_text = malloc(texts_room);
    uint8_t *text = malloc(NAME_BYTES);
    int failed = !table || !window->name_at || !window->name_end || !window->name_text || !text;
    for (int k = 0; k < window->kinds && !failed; k++) {
        struct found *found = &window->found[k];
        if (!found->count || found->layout < 0) continue;
        int64_t size = window->wanted[k].size[found->layout], offset = window->wanted[k].name_at[found->layout];
        for (int64_t i = 0; i < found->count && offset >= 0 && !failed; i++) {
            uint64_t address;
            memcpy(&address, found->block + i * size + offset, sizeof address);
            if (!address) continue;
            uint64_t at = (address * 0x9E3779B97F4A7C15u) >> 20;
            while (table[at %= 2 * room] && table[at] != address) at++;
            if (table[at]) continue;
            int64_t length = text_at(address, text);
            if (length < 0) length = 0;
            if (used + length > texts_room) {
                while (used + length > texts_room) texts_room *= 2;
                uint8_t *larger = realloc(window->name_text, texts_room);
                if (!larger) { failed = 1; break; }
                window->name_text = larger;
            }
            memcpy(window->name_text + used, text, length);
            used += length;
            table[at] = address;
            window->name_at[window->names] = address;
            window->name_end[window->names++] = used;
            if (window->names < room) continue;
            uint64_t *more_at = realloc(window->name_at, 2 * room * sizeof *more_at);
            if (more_at) window->name_at = more_at;
            int64_t *more_end = realloc(window->name_end, 2 * room * sizeof *more_end);
            if (more_end) window->name_end = more_end;
            uint64_t *larger = calloc(4 * room, sizeof *larger);
            if (!more_at || !more_end || !larger) { free(larger); failed = 1; break; }
            room *= 2;
            for (int64_t j = 0; j < window->names; j++) {
                uint64_t to = (window->name_at[j] * 0x9E3779B97F4A7C15u) >> 20;
                while (larger[to %= 2 * room]) to++;
                larger[to] = window->name_at[j];
            }
            free(table);
            table = larger;
        }
    }
    free(table);
    free(text);
    return failed ? OUT_OF_MEMORY : 0;
}

static int sort_records(struct slot **list, int64_t count, struct window *window) {
    int result = walk(list, count, window, measure);
    int64_t readable = 0, invalid = window->invalid;
    if (result) return result;
    for (int i = 0; i < window->kinds; i++) {
        struct found *found = &window->found[i];
        found->layout = found->distance ? fitting(&window->wanted[i], found->distance) : 0;
        if (found->layout < 0 || !found->count) continue;
        readable += found->count;
        found->block = malloc(found->count * window->wanted[i].size[found->layout]);
        if (!found->block) return OUT_OF_MEMORY;
    }
    if (readable < window->kept) return 0; /* Python says which kind it is */
    window->which = malloc(readable + 1);
    if (!window->which) return OUT_OF_MEMORY;
    window->max_records = readable; /* the second walk keeps what the first one counted */
    window->kept = 0;
    for (int i = 0; i < window->kinds; i++) window->found[i].count = 0;
    result = walk(list, count, window, copy);
    window->invalid = invalid;
    return result ? result : copy_names(window);
}

/* ---- the end of a window */

static void free_window(struct window *window) {
    for (int i = 0; i < KINDS; i++) free(window->found[i].block);
    free(window->which);
    free(window->name_at);
    free(window->name_end);
    free(window->name_text);
    free(window);
}

static void *finish(void *given) {
    struct window *window = given;
    struct slot **list = malloc(SLOTS * sizeof *list);
    int64_t begun = now_ns(), count = 0;
    size_t dropped = 0;
    /* First what is complete, for as long as it may take the device to finish what it was given; then all. */
    for (int64_t pause = 2000000, end = begun + window->patience_ns;; pause *= 2) {
        window->flush_result = cupti.flush_all(0);
        pthread_mutex_lock(&lock);
        int64_t until = now_ns() + pause;
        while (!window->flush_result && outstanding && !hurry && now_ns() < until && now_ns() < end) wait_until(until);
        int enough = window->flush_result || !outstanding || hurry || now_ns() >= end;
        pthread_mutex_unlock(&lock);
        if (enough) break;
    }
    window->flush_result = cupti.flush_all(1); /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
    window->dropped = cupti.dropped_records(NULL, 0, &dropped) ? -1 : (int64_t)dropped;
    int64_t flushed = now_ns();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && list; i++) {
        if (slots[i].state != DONE) continue;
        slots[i].state = READ;
        list[count++] = &slots[i];
    }
    pthread_mutex_unlock(&lock);
    if (list) qsort(list, count, sizeof *list, by_order);
    window->walk_result = list ? sort_records(list, count, window) : OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; i < count; i++) give_up(list[i]);
    trim();
    window->buffers = count;
    window->declined = declined;
    window->foreign = foreign;
    window->outstanding = outstanding;
    window->flush_ns = flushed - begun;
    window->read_ns = now_ns() - flushed;
    window->ready = 1;
    flushing = hurry = 0;
    if (window->abandoned) free_window(window);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(list);
    return NULL;
}

/* ---- what Python calls, with the interpreter lock released */

/* A window begins: CUPTI's buffers are ours from now on. CUPTI's code, or BUSY after patience_ns. */
EXPORT int cupti_buffers_begin(const struct cupti *functions, size_t bytes, int64_t most, int64_t patience_ns) {
    pthread_once(&once, prepare_once);
    pthread_mutex_lock(&lock);
    hurry = 1;
    pthread_cond_broadcast(&changed);
    for (int64_t end = now_ns() + patience_ns; flushing && now_ns() < end;) wait_until(end);
    int busy = flushing;
    if (!busy) {
        hurry = 0;
        cupti = *functions;
        buffer_bytes = bytes;
        limit = most < SLOTS ? most : SLOTS;
        declined = foreign = 0;
        spare = SPARE;
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].state == DONE) give_up(&slots[i]); /* of a window that nobody ended */
        trim();
    }
    pthread_mutex_unlock(&lock);
    if (busy) return BUSY;
    size_t ignored;
    cupti.dropped_records(NULL, 0, &ignored); /* counts from here */
    return cupti.register_callbacks(buffer_requested, buffer_completed);
}

/* The window ends: its records are fetched by a thread. NULL where none can be started. */
EXPORT struct window *cupti_buffers_end(const struct wanted *wanted, int kinds, int64_t max_records, int64_t patience_ns) {
    struct window *window = calloc(1, sizeof *window);
    pthread_attr_t attributes;
    pthread_t thread;
    if (!window || kinds > KINDS) {
        free(window);
        return NULL;
    }
    window->kinds = kinds;
    window->max_records = max_records;
    window->patience_ns = patience_ns;
    memcpy(window->wanted, wanted, kinds * sizeof *wanted);
    pthread_mutex_lock(&lock);
    int busy = flushing;
    flushing = 1;
    pthread_mutex_unlock(&lock);
    if (busy) {
        free(window);
        return NULL;
    }
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, finish, window);
    pthread_attr_destroy(&attributes);
    if (!failed) return window;
    pthread_mutex_lock(&lock);
    flushing = 0;
    pthread_mutex_unlock(&lock);
    free(window);
    return NULL;
}

/* Whether the window's records are there; waits for them. In a hurry what still runs on the device is not waited for. */
EXPORT int cupti_buffers_wait(struct window *window, int64_t patience_ns, int at_once) {
    pthread_mutex_lock(&lock);
    if (at_once && !window->ready) {
        hurry = 1;
        pthread_cond_broadcast(&changed);
    }
    for (int64_t end = now_ns() + patience_ns; !window->ready && now_ns() < end;) wait_until(end);
    int ready = window->ready;
    pthread_mutex_unlock(&lock);
    return ready;
}

/* Free a window's records; of one that is not ready its thread does it. */
EXPORT void cupti_buffers_release(struct window *window) {
    pthread_mutex_lock(&lock);
    int ready = window->ready;
    window->abandoned = 1;
    pthread_mutex_unlock(&lock);
    if (ready) free_window(window);
}

/* No window follows for a while: what was kept for it is freed, now or when the window that is being fetched is through. */
EXPORT void cupti_buffers_rest(void) {
    pthread_mutex_lock(&lock);
    spare = 0;
    trim();
    pthread_mutex_unlock(&lock);
}
