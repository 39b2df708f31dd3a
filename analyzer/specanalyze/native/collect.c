/* Rows of one window of a rank, taken apart: device rows and launch calls to growing narrow columns, host rows by their place.
 *
 * What it meets for the first time (a name, a stream, a thread) it does not number itself: it stops at that row and says so, the
 * caller adds it to the table, and it goes on. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define MISSING INT64_MIN
#define NO_ID INT32_MIN
#define FIRST_ROOM 4096
#define MOST_LONG 4096

enum { DONE = 0, NEW_LOOK, NEW_STREAM, NEW_THREAD, ODD, NO_MEMORY };
enum { HOST = 0, CALL = 1, DEVICE = 2 };

typedef struct {
    size_t rows, calls, row_room, call_room, invalid, longs;
    int64_t base; /* ids are kept as the difference to this one */
    int has_base, has_ran, has_node;
    int64_t *start;
    uint32_t *length;
    uint16_t *stream, *look;
    int32_t *id;
    int32_t *ran, *node; /* captured graph and node of each row, -1: unknown; NULL: no batch so far had the column */
    int64_t *call_start;
    int32_t *call_id;
    uint16_t *call_thread;
    uint8_t *call_graph;
    size_t long_row[MOST_LONG]; /* rows whose length takes more than 32 bits */
    int64_t long_length[MOST_LONG];
} collected;

/* An integer column; NULL: it has none. Bit `offset` + i of `valid` says whether row i has a value; without `valid` MISSING says so. */
typedef struct {
    const int64_t *values;
    const uint8_t *valid;
    int64_t offset;
} column;

/* A batch of rows. */
typedef struct {
    size_t rows;
    const int32_t *kind, *name, *op; /* codes; -1: none. op may be NULL */
    const int8_t *group;             /* of each kind: HOST, CALL, DEVICE, or -1 to leave out */
    const uint8_t *graph;            /* of each name + 1 */
    int32_t *look_of;                /* of (op + 1, name + 1, kind): number, -1 where it has none yet */
    int64_t kinds, names, ops;
    column start, length, window, stream, device, pid, tid, id, ran, node;
    int64_t one_device, one_pid, wanted; /* values of all rows where there is no column; the window that is wanted */
    int64_t most_start, most_length, earliest, latest;
    const int64_t *streams, *threads; /* pairs */
    int64_t stream_count, thread_count;
    uint32_t *host, *device_row; /* places in the batch, room for all rows; device_row may be NULL */
    size_t hosts, device_rows;
    size_t at; /* where to go on */
} batch;

collected *collect_new(void) { return calloc(1, sizeof(collected)); }

static int widen(void **column, size_t room, size_t width) {
    void *longer = realloc(*column, room * width);
    if (!longer) return 0;
    *column = longer;
    return 1;
}

static int more_rows(collected *c) {
    size_t room = c->row_room ? c->row_room + c->row_room / 2 : FIRST_ROOM;
    if (!widen((void **)&c->start, room, sizeof *c->start) || !widen((void **)&c->length, room, sizeof *c->length) ||
        !widen((void **)&c->stream, room, sizeof *c->stream) || !widen((void **)&c->look, room, sizeof *c->look) ||
        !widen((void **)&c->id, room, sizeof *c->id) || (c->has_ran && !widen((void **)&c->ran, room, sizeof *c->ran)) ||
        (c->has_node && !widen((void **)&c->node, room, sizeof *c->node)))
        return 0;
    c->row_room = room;
    return 1;
}

static int more_calls(collected *c) {
    size_t room = c->call_room ? c->call_room + c->call_room / 2 : FIRST_ROOM;
    if (!widen((void **)&c->call_start, room, sizeof *c->call_start) ||
        !widen((void **)&c->call_id, room, sizeof *c->call_id) ||
        !widen((void **)&c->call_thread, room, sizeof *c->call_thread) ||
        !widen((void **)&c->call_graph, room, sizeof *c->call_graph))
        return 0;
    c->call_room = room;
    return 1;
}

/* Index of a pair, looked for first where the last one was found; -1 where there is none. */
static inline int64_t pair(const int64_t *pairs, int64_t count, int64_t *last, int64_t first, int64_t second) {
    int64_t at = *last;
    if (at < count && pairs[2 * at] == first && pairs[2 * at + 1] == second) return at;
    for (at = 0; at < count; at++)
        if (pairs[2 * at] == first && pairs[2 * at + 1] == second) return *last = at;
    return -1;
}

static inline int64_t value(const column *c, size_t i, int64_t otherwise) {
    if (!c->values) return otherwise;
    if (c->valid) {
        int64_t bit = c->offset + (int64_t)i;
        if (!(c->valid[bit >> 3] >> (bit & 7) & 1)) return otherwise;
    }
    return c->values[i] == MISSING ? otherwise : c->values[i];
}

static inline int identify(collected *c, const column *ids, size_t i, int32_t *id) {
    int64_t found = value(ids, i, -1);
    if (found == -1) {
        *id = NO_ID;
        return 1;
    }
    if (!c->has_base) {
        c->has_base = 1;
        c->base = found;
    }
    int64_t apart = (int64_t)((uint64_t)found - (uint64_t)c->base);
    if (apart <= INT32_MIN || apart > INT32_MAX) return 0;
    *id = (int32_t)apart;
    return 1;
}

/* Begin a column that the rows before did not have. */
static int begin(collected *c, int *has, int32_t **column) {
    *has = 1;
    if (!c->row_room) return 1;
    *column = malloc(c->row_room * sizeof **column);
    if (!*column) return 0;
    for (size_t i = 0; i < c->rows; i++) (*column)[i] = -1;
    return 1;
}

/* A value of 32 bits, -1 where it is unknown; 0 where it has more. */
static inline int narrow(const column *values, size_t i, int32_t *found) {
    int64_t wide = value(values, i, -1);
    *found = (int32_t)wide;
    return wide >= INT32_MIN && wide <= INT32_MAX;
}

static inline int within(int32_t code, int64_t count) { return code >= -1 && code < count; }

/* Take the rows of a batch from b->at on; DONE, or why it stopped at b->at (ODD: nothing collected is of use any more). */
int collect_rows(collected *c, batch *b) {
    int64_t last_stream = 0, last_thread = 0;
    if (b->ran.values && !c->has_ran && !begin(c, &c->has_ran, &c->ran)) return NO_MEMORY;
    if (b->node.values && !c->has_node && !begin(c, &c->has_node, &c->node)) return NO_MEMORY;
    for (; b->at < b->rows; b->at++) {
        size_t i = b->at;
        int64_t start = value(&b->start, i, MISSING), length = value(&b->length, i, MISSING);
        if (b->window.values && value(&b->window, i, MISSING) != b->wanted) continue;
        if (start > b->most_start || start < -b->most_start || length > b->most_length) return ODD;
        if (length < 0 && length != MISSING) return ODD;
        if (b->kind[i] < 0 || !within(b->kind[i], b->kinds) || !within(b->name[i], b->names)) return ODD;
        if (start < b->earliest) b->earliest = start;
        if (start > b->latest) b->latest = start;
        int group = b->group[b->kind[i]];
        if (group == DEVICE) {
            if (length == MISSING) {
                c->invalid++;
                continue;
            }
            if (b->op && !within(b->op[i], b->ops)) return ODD;
            int64_t key = ((b->op ? b->op[i] + 1 : 0) * (b->names + 1) + b->name[i] + 1) * b->kinds + b->kind[i];
            int32_t look = b->look_of[key];
            if (look < 0) return NEW_LOOK;
            int64_t on = value(&b->device, i, b->one_device), number = value(&b->stream, i, -1);
            if (on > INT32_MAX || on < INT32_MIN) return ODD;
            int64_t stream = pair(b->streams, b->stream_count, &last_stream, on, number);
            if (stream < 0) return NEW_STREAM;
            int32_t id, ran, node;
            if (!identify(c, &b->id, i, &id)) return ODD;
            if (!narrow(&b->ran, i, &ran) || !narrow(&b->node, i, &node)) return ODD;
            if (c->rows == c->row_room && !more_rows(c)) return NO_MEMORY;
            if (length > UINT32_MAX) {
                if (c->longs == MOST_LONG) return ODD;
                c->long_row[c->longs] = c->rows;
                c->long_length[c->longs++] = length;
                length = UINT32_MAX;
            }
            c->start[c->rows] = start;
            c->length[c->rows] = (uint32_t)length;
            c->look[c->rows] = (uint16_t)look;
            c->stream[c->rows] = (uint16_t)stream;
            if (c->has_ran) c->ran[c->rows] = ran;
            if (c->has_node) c->node[c->rows] = node;
            c->id[c->rows++] = id;
            if (b->device_row) b->device_row[b->device_rows++] = (uint32_t)i;
        } else if (group == CALL) {
            int64_t thread = pair(b->threads, b->thread_count, &last_thread, value(&b->pid, i, b->one_pid), value(&b->tid, i, 0));
            if (thread < 0) return NEW_THREAD;
            int32_t id;
            if (!identify(c, &b->id, i, &id)) return ODD;
            if (c->calls == c->call_room && !more_calls(c)) return NO_MEMORY;
            c->call_start[c->calls] = start;
            c->call_id[c->calls] = id;
            c->call_thread[c->calls] = (uint16_t)thread;
            c->call_graph[c->calls++] = b->graph[b->name[i] + 1];
        } else if (group == HOST) {
            b->host[b->hosts++] = (uint32_t)i;
        }
    }
    return DONE;
}

size_t collect_count(const collected *c, int what) {
    return what == 0 ? c->rows : what == 1 ? c->calls : what == 2 ? c->invalid : c->longs;
}

/* A column: start, length, stream, look, id, ran, node; call start, call id, call thread, call graph. */
static void **column_of(collected *c, int which) {
    switch (which) {
    case 0: return (void **)&c->start;
    case 1: return (void **)&c->length;
    case 2: return (void **)&c->stream;
    case 3: return (void **)&c->look;
    case 4: return (void **)&c->id;
    case 5: return (void **)&c->ran;
    case 6: return (void **)&c->node;
    case 7: return (void **)&c->call_start;
    case 8: return (void **)&c->call_id;
    case 9: return (void **)&c->call_thread;
    default: return (void **)&c->call_graph;
    }
}

/* Give a column away: the caller frees it with collect_free_column. NULL where it is empty. */
void *collect_take(collected *c, int which) {
    static const size_t width[] = {8, 4, 2, 2, 4, 4, 4, 8, 4, 2, 1};
    void **column = column_of(c, which), *taken = *column;
    size_t count = which < 7 ? c->rows : c->calls;
    *column = NULL;
    if (!count || !taken) {
        free(taken);
        return NULL;
    }
    void *fitting = realloc(taken, count * width[which]);
    return fitting ? fitting : taken;
}

const size_t *collect_long_rows(const collected *c) { return c->long_row; }
const int64_t *collect_long_lengths(const collected *c) { return c->long_length; }
void collect_free_column(void *column) { free(column); }

void collect_free(collected *c) {
    if (!c) return;
    for (int i = 0; i < 11; i++) free(*column_of(c, i));
    free(c);
}
