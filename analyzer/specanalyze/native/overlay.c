/* One timeline from layers of disjoint intervals, sorted by start: each instant to the first layer that covers it. */

#include <stddef.h>
#include <stdint.h>

#define MAX_LAYERS 32

/* starts, ends, owners, counts: one array a layer, first layer first. The results need room for twice all intervals.
 * What no layer covers is left out. Returns how many stretches there are, -1 for too many layers. */
ptrdiff_t overlay(int layers, const int64_t **starts, const int64_t **ends, const int64_t **owners, const size_t *counts,
                  int64_t begin, int64_t end, int64_t *out_start, int64_t *out_end, int64_t *out_owner) {
    size_t at[MAX_LAYERS] = {0};
    ptrdiff_t made = 0;
    if (layers > MAX_LAYERS) return -1;
    while (begin < end) {
        int64_t next = end; /* where the answer may change: the first start above the layer that covers this instant */
        int layer = 0;
        for (; layer < layers; layer++) {
            while (at[layer] < counts[layer] && ends[layer][at[layer]] <= begin) at[layer]++;
            if (at[layer] == counts[layer]) continue;
            int64_t start = starts[layer][at[layer]];
            if (start <= begin) break;
            if (start < next) next = start;
        }
        if (layer < layers) {
            if (ends[layer][at[layer]] < next) next = ends[layer][at[layer]];
            out_start[made] = begin;
            out_end[made] = next;
            out_owner[made++] = owners[layer][at[layer]];
        }
        begin = next;
    }
    return made;
}
