/* One rank's window in a few passes over its device rows, which lie in order of start: joined extents of its launch calls,
 * and the exact partition, summed as it is made, so that no stretch of it is ever stored.
 *
 * Lengths are uint32 (wide = 0) or int64 (wide = 1). A call of -1 is none; a range of -1 is none. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PHASES 32
#define OVERLAP 3 /* RULES R10: IMPOSSIBLE_OVERLAP of activities.py */
#define LEVELS 3

static inline int64_t length_of(const void *length, int wide, size_t i) {
    return wide ? ((const int64_t *)length)[i] : (int64_t)((const uint32_t *)length)[i];
}

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sort rows by start, stably; columns of the given widths (bytes) move along. For rows that are nearly in order: gives up
 * (returns 0, with the rows in some order) when it takes more than 16 moves a row. */
int timeline_settle(size_t rows, int64_t *start, int columns, void **column, const int *width) {
    size_t moves = 16 * rows + 1024;
    char kept[16][8];
    for (size_t i = 1; i < rows; i++) {
        int64_t mine = start[i];
        if (start[i - 1] <= mine) continue;
        size_t to = i - 1;
        while (to > 0 && start[to - 1] > mine) to--;
        size_t count = i - to;
        if (count > moves) return 0;
        moves -= count;
        memmove(start + to + 1, start + to, count * sizeof *start);
        start[to] = mine;
        for (int c = 0; c < columns; c++) {
            char *at = column[c];
            size_t w = (size_t)width[c];
            memcpy(kept[c], at + i * w, w);
            memmove(at + (to + 1) * w, at + to * w, count * w);
            memcpy(at + to * w, kept[c], w);
        }
    }
    return 1;
}

/* A row whose end lies behind the latest start of its stream. */
typedef struct {
    size_t row;
    int64_t start, end, next; /* next: the first later start of its stream */
    int later;                /* starts behind its own that it has run past */
} open_row;

#define MOST_OPEN 16

typedef struct {
    int count;
    open_row rows[MOST_OPEN];
} open_rows;

/* Cut lengths that run past OVERLAP or more later starts of their own stream at the first of these (RULES R10). Returns how many;
 * -1 - how many where it stops, because more rows of one stream run at once than it keeps track of, or for want of memory. */
ptrdiff_t timeline_cut(size_t rows, const int64_t *start, void *length, int wide, const uint16_t *stream, size_t streams) {
    open_rows *all = calloc(streams ? streams : 1, sizeof *all);
    ptrdiff_t cut = 0;
    if (!all) return -1;
    for (size_t i = 0; i < rows; i++) {
        open_rows *mine = &all[stream[i]];
        int kept = 0;
        for (int k = 0; k < mine->count; k++) {
            open_row *r = &mine->rows[k];
            if (r->end <= start[i]) continue;
            if (start[i] > r->start) {
                if (!r->later++) r->next = start[i];
                if (r->later == OVERLAP) {
                    if (wide) ((int64_t *)length)[r->row] = r->next - r->start;
                    else ((uint32_t *)length)[r->row] = (uint32_t)(r->next - r->start);
                    cut++;
                    continue;
                }
            }
            if (kept != k) mine->rows[kept] = *r;
            kept++;
        }
        mine->count = kept;
        int64_t ns = length_of(length, wide, i);
        if (!ns) continue;
        if (kept == MOST_OPEN) {
            cut = -1 - cut;
            break;
        }
        mine->rows[mine->count++] = (open_row){i, start[i], start[i] + ns, 0, 0};
    }
    free(all);
    return cut;
}

/* Segment (disjoint, by start) that covers each instant, into `found`; instants of other threads and those that none covers are
 * left as they are. Instants mostly come in order, so a segment is looked for from where the last one was. */
void timeline_covering(size_t instants, const int64_t *instant, const uint16_t *thread, const uint8_t *asked, size_t segments,
                       const int64_t *start, const int64_t *end, const int64_t *owner, int32_t *found) {
    size_t at = 0; /* segments that start before or at the last instant */
    for (size_t i = 0; i < instants; i++) {
        if (!asked[thread[i]]) continue;
        if (at && start[at - 1] > instant[i]) { /* back: halve */
            size_t low = 0, high = at;
            while (low < high) {
                size_t middle = (low + high) / 2;
                if (start[middle] <= instant[i]) low = middle + 1;
                else high = middle;
            }
            at = low;
        }
        while (at < segments && start[at] <= instant[i]) at++;
        if (at && instant[i] < end[at - 1]) found[i] = (int32_t)owner[at - 1];
    }
}

/* First start, last end and number of each call's rows; returns the last end of a row launched inside a range. */
int64_t timeline_extents(size_t rows, const int64_t *start, const void *length, int wide, const int32_t *call,
                         const int32_t *call_range, int64_t *first, int64_t *last, int32_t *count) {
    int64_t latest = INT64_MIN;
    for (size_t i = 0; i < rows; i++) {
        int32_t c = call[i];
        if (c < 0) continue;
        int64_t end = start[i] + length_of(length, wide, i);
        if (start[i] < first[c]) first[c] = start[i];
        if (end > last[c]) last[c] = end;
        count[c]++;
        if (call_range[c] >= 0 && end > latest) latest = end;
    }
    return latest;
}

typedef struct {
    size_t rows;
    const int64_t *start;
    const void *length;
    const int32_t *call;
    const uint8_t *bucket;
    const uint32_t *order; /* rows by start, equal starts by stream; NULL where they lie in that order */
    const int64_t *call_start, *call_first; /* of all calls */
    const int32_t *call_range;
    const uint8_t *call_graph;
    size_t waits; /* calls that have rows, by start */
    const int32_t *wait;
    size_t spans; /* stretches of replays */
    const int64_t *span_start, *span_end;
    const int32_t *span_call;
    const uint8_t *range_phase;
    size_t level_count[LEVELS]; /* innermost ranges, best level first */
    const int64_t *level_start[LEVELS], *level_end[LEVELS];
    const int64_t *level_range[LEVELS];
    const uint8_t *tier; /* of each bucket: 0 compute, 1 communication, 2 memory */
    int64_t begin, end;
    int32_t wide, buckets, between, outside, unattributed, gap, launch, host;
} window;

enum { TIERS = 3, SPANS = 3, WAITS = 4, RANGES = 5, LAYERS = 8 };

/* The stretch of a layer that a cursor stands on. */
typedef struct {
    size_t at; /* of the next one */
    int64_t start, end, reached;
    int64_t owner;
    int done;
} cursor;

static void advance(const window *w, int layer, cursor *c) {
    if (layer < TIERS) {
        for (; c->at < w->rows; c->at++) {
            size_t row = w->order ? w->order[c->at] : c->at;
            if (w->tier[w->bucket[row]] != layer) continue;
            int64_t end = w->start[row] + length_of(w->length, w->wide, row);
            if (end <= c->reached) continue;
            c->start = larger(w->start[row], c->reached);
            if (c->start >= end) continue;
            c->end = c->reached = end;
            c->owner = (int64_t)row;
            c->at++;
            return;
        }
    } else if (layer == SPANS) {
        if (c->at < w->spans) {
            c->start = w->span_start[c->at];
            c->end = w->span_end[c->at];
            c->owner = w->span_call[c->at++];
            return;
        }
    } else if (layer == WAITS) {
        for (; c->at < w->waits; c->at++) {
            int32_t call = w->wait[c->at];
            if (w->call_first[call] <= c->reached) continue;
            c->start = larger(w->call_start[call], c->reached);
            if (c->start >= w->call_first[call]) continue;
            c->end = c->reached = w->call_first[call];
            c->owner = call;
            c->at++;
            return;
        }
    } else if (c->at < w->level_count[layer - RANGES]) {
        c->start = w->level_start[layer - RANGES][c->at];
        c->end = w->level_end[layer - RANGES][c->at];
        c->owner = w->level_range[layer - RANGES][c->at++];
        return;
    }
    c->done = 1;
}

static inline int64_t phase_of(const window *w, int64_t range) { return range < 0 ? w->outside : w->range_phase[range]; }

/* What the partition keeps beside its sums; a NULL is not kept. */
typedef struct {
    void *exposed;      /* by row, of the width of lengths: ns that it got */
    int64_t *gap;       /* by row: ns of the graph gap that ends with its first stretch */
    int32_t *gap_range; /* by row: the range of that gap's call */
    size_t instants;    /* in order */
    const int64_t *instant;
    const uint8_t *counts; /* of each phase: whether it counts before an instant */
    int64_t *before;       /* by instant: ns of the phases that count before it */
    size_t stretches;      /* of the partition, so far; neighbours of one phase, bucket and range are one */
    int64_t *stretch_start; /* of each; it ends where the next one starts, the last one with the window */
    uint8_t *stretch_phase, *stretch_bucket;
} kept;

/* Give every instant of the window to one phase and bucket. totals: phases x buckets; sums: ranges x buckets;
 * graph_phase, graph_range: the part of the bucket `launch` that graph launches made. All start as zeros, as in `k`. */
void timeline_partition(const window *w, int64_t *totals, int64_t *sums, int64_t *graph_phase, int64_t *graph_range,
                        kept *k) {
    int64_t last_phase = -1, last_bucket = -1, last_range = -1; /* of the stretch before this one */
    int64_t waited = 0, counted = 0; /* the gap right before this stretch; time that counts */
    int32_t waited_in = -1;
    size_t mark = 0;
    cursor layers[LAYERS];
    memset(layers, 0, sizeof layers);
    for (int i = 0; i < LAYERS; i++) {
        layers[i].reached = INT64_MIN;
        advance(w, i, &layers[i]);
    }
    int64_t now = w->begin;
    while (now < w->end) {
        int64_t next = w->end;
        int layer = 0;
        for (; layer < LAYERS; layer++) {
            cursor *c = &layers[layer];
            while (!c->done && c->end <= now) advance(w, layer, c);
            if (c->done) continue;
            if (c->start <= now) break;
            if (c->start < next) next = c->start;
        }
        int64_t phase = w->between, bucket = w->host, range = -1;
        if (layer < LAYERS) {
            int64_t owner = layers[layer].owner;
            next = smaller(next, layers[layer].end);
            if (layer < TIERS) {
                int32_t call = w->call[owner];
                range = call < 0 ? -1 : w->call_range[call];
                phase = call < 0 ? w->unattributed : phase_of(w, range);
                bucket = w->bucket[owner];
                if (k->exposed) {
                    if (w->wide) ((int64_t *)k->exposed)[owner] += next - now;
                    else ((uint32_t *)k->exposed)[owner] += (uint32_t)(next - now);
                }
                if (k->gap && waited) {
                    k->gap[owner] = waited;
                    k->gap_range[owner] = waited_in;
                }
            } else if (layer < RANGES) {
                range = w->call_range[owner];
                phase = phase_of(w, range);
                bucket = layer == SPANS ? w->gap : w->launch;
                if (layer == WAITS && w->call_graph[owner]) {
                    graph_phase[phase] += next - now;
                    if (range >= 0) graph_range[range] += next - now;
                }
            } else {
                range = owner;
                phase = phase_of(w, range);
            }
        }
        waited = layer == SPANS ? next - now : 0;
        waited_in = (int32_t)range;
        for (; mark < k->instants && k->instant[mark] < next; mark++)
            k->before[mark] = counted + (k->counts[phase] ? larger(k->instant[mark] - now, 0) : 0);
        if (k->counts && k->counts[phase]) counted += next - now;
        totals[phase * w->buckets + bucket] += next - now;
        if (range >= 0) sums[range * w->buckets + bucket] += next - now;
        if (k->stretch_start && (phase != last_phase || bucket != last_bucket || range != last_range)) {
            k->stretch_start[k->stretches] = now;
            k->stretch_phase[k->stretches] = (uint8_t)phase;
            k->stretch_bucket[k->stretches++] = (uint8_t)bucket;
            last_phase = phase, last_bucket = bucket, last_range = range;
        }
        now = next;
    }
    for (; mark < k->instants; mark++) k->before[mark] = counted;
}

/* Length of a union, fed with intervals in order of start. */
static inline void unite(int64_t start, int64_t end, int64_t *reached, int64_t *sum) {
    start = larger(start, *reached);
    if (end > start) *sum += end - start;
    *reached = larger(*reached, end);
}

/* Sums over rows. busy, talking: union of a phase's rows, and of its communication, inside the window; whole, count: union over
 * the whole recording and number of rows; present: whether the phase has a row in the window; look_ns, look_count: by what a
 * row looks like (name, kind, operation) and, in the second half, those that the node map decided. Returns the largest lead of
 * a row over its call, INT64_MIN without any. */
int64_t timeline_rows(const window *w, const void *look, int look_width, const uint8_t *by_map, size_t looks, int64_t *busy,
                      int64_t *talking, int64_t *whole, int64_t *count, uint8_t *present, int64_t *look_ns,
                      int64_t *look_count) {
    int64_t busy_to[MAX_PHASES], talking_to[MAX_PHASES], whole_to[MAX_PHASES], lead = INT64_MIN;
    for (int p = 0; p < MAX_PHASES; p++) busy_to[p] = talking_to[p] = whole_to[p] = INT64_MIN;
    for (size_t i = 0; i < w->rows; i++) {
        int64_t start = w->start[i], ns = length_of(w->length, w->wide, i), end = start + ns;
        int32_t call = w->call[i];
        int64_t phase = call < 0 ? w->unattributed : phase_of(w, w->call_range[call]);
        if (call >= 0) lead = larger(lead, w->call_start[call] - start);
        unite(start, end, &whole_to[phase], &whole[phase]);
        count[phase]++;
        if (start < w->end && (end > w->begin || start >= w->begin)) present[phase] = 1;
        start = smaller(larger(start, w->begin), w->end);
        end = smaller(larger(end, w->begin), w->end);
        unite(start, end, &busy_to[phase], &busy[phase]);
        if (w->tier[w->bucket[i]] == 1) unite(start, end, &talking_to[phase], &talking[phase]);
        size_t seen = look_width == 2 ? ((const uint16_t *)look)[i] : ((const uint32_t *)look)[i];
        if (by_map && by_map[i]) seen += looks;
        look_ns[seen] += ns;
        look_count[seen]++;
    }
    return lead;
}
