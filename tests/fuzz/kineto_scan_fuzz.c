/* Fuzzes the compiled scanner by itself: memory (under AddressSanitizer and UBSan, or valgrind), and what it promises.
 *
 *   cc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-coverage=trace-pc -DOWN_DRIVER \
 *      tests/fuzz/kineto_scan_fuzz.c -o scan_fuzz
 *   ASAN_OPTIONS=max_malloc_fill_size=1000000000:malloc_fill_byte=190 ./scan_fuzz CORPUS SECONDS [SEED]
 *
 * With clang, -fsanitize=fuzzer,address,undefined without OWN_DRIVER makes it a libFuzzer target. The driver below keeps an
 * input when it reaches an edge that none before it did, as libFuzzer does.
 */

#define _GNU_SOURCE
#define FIRST_ROOM 4
#define FIRST_SLOTS 4
#define FIRST_TOKENS 1
#define FIRST_BYTES 1
#include "../../analyzer/specanalyze/native/kineto_scan.c"

#include <stdio.h>

/* As kineto_scan.py gives them. */
static const char *const KEYS[] = {"correlation", "device", "stream", "bytes", "In msg nelems", "Seq", "graph id",
                                   "graph node id", "grid", "block", "Collective name", "dtype", "Process Group Name",
                                   "Process Group Ranks"};
static const char *const CATEGORIES[] = {"\"user_annotation\"", "\"cpu_op\"", "\"cuda_runtime\"", "\"cuda_driver\"",
                                         "\"hip_runtime\"", "\"hip_driver\"", "\"kernel\"", "\"gpu_memcpy\"", "\"gpu_memset\""};
#define NUMBERS 8
#define TEXTS 6
#define NEVER_WRITTEN ((int64_t)0xBEBEBEBEBEBEBEBEull) /* malloc_fill_byte */

#define REQUIRE(condition)                                                                                        \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "broken promise, line %d: %s\n", __LINE__, #condition);                              \
            abort();                                                                                              \
        }                                                                                                         \
    } while (0)

static uint64_t mixed(uint64_t sum, uint64_t value) { return (sum ^ value) * 0x9E3779B97F4A7C15ull + 1; }

/* Everything the Python side can see of rows `first` and later; token indexes stand for their text. */
static uint64_t seen(const scanner *s, size_t first) {
    uint64_t sum = 0;
    for (int i = 0; i < TIMES + IDS + NUMBERS; i++)
        for (size_t row = first; row < s->rows; row++) {
            int64_t value = scanner_numbers(s, i) ? scanner_numbers(s, i)[row] : MISSING;
            REQUIRE(value != NEVER_WRITTEN);
            sum = mixed(sum, (uint64_t)value);
        }
    for (int i = 0; i < 2 + TEXTS; i++)
        for (size_t row = first; row < s->rows; row++) {
            int32_t code = scanner_codes(s, i) ? scanner_codes(s, i)[row] : -1;
            if (i == 0) {
                REQUIRE(code >= 0 && code <= s->categories);
                sum = mixed(sum, (uint64_t)code);
                continue;
            }
            REQUIRE(code >= -1 && (code < 0 || (size_t)code < scanner_tokens(s, i)));
            if (code < 0) {
                sum = mixed(sum, 7);
                continue;
            }
            size_t length = 0;
            const char *token = scanner_token(s, i, (size_t)code, &length);
            REQUIRE(length > 0);
            for (size_t at = 0; at < length; at++) sum = mixed(sum, (unsigned char)token[at]);
        }
    for (size_t row = first; row < s->rows; row++) {
        REQUIRE(scanner_in_words(s)[row] <= 1);
        sum = mixed(sum, scanner_in_words(s)[row]);
    }
    return sum;
}

/* No token is twice in a table. */
static void distinct(const scanner *s) {
    for (int i = 0; i < 2 + TEXTS; i++)
        for (size_t a = 0; a < scanner_tokens(s, i); a++)
            for (size_t b = a + 1; b < scanner_tokens(s, i); b++) {
                size_t n = 0, m = 0;
                const char *x = scanner_token(s, i, a, &n), *y = scanner_token(s, i, b, &m);
                REQUIRE(n != m || memcmp(x, y, n));
            }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char plain[] =
        "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":1.5,\"dur\":2,\"args\":{\"stream\":7,\"grid\":[1,2,3]}}]";
    char *text = malloc(size ? size : 1); /* of exactly its size: a byte read behind it is seen */
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    scanner *s = scanner_new(NUMBERS, TEXTS, (const char **)KEYS, 9, (const char **)CATEGORIES);
    REQUIRE(s && !scanner_append(s, plain, sizeof plain - 1) && scanner_rows(s) == 1);
    size_t known[2 + TEXTS];
    for (int i = 0; i < 2 + TEXTS; i++) known[i] = scanner_tokens(s, i);
    uint64_t before = seen(s, 0);
    int result = scanner_append(s, text, size);
    size_t rows = scanner_rows(s);
    if (result) { /* refused: nothing is kept */
        REQUIRE(rows == 1 && seen(s, 0) == before);
        for (int i = 0; i < 2 + TEXTS; i++) REQUIRE(scanner_tokens(s, i) == known[i]);
    } else {
        distinct(s);
        uint64_t once = seen(s, 1);
        REQUIRE(!scanner_append(s, text, size) && scanner_rows(s) == 2 * rows - 1 && seen(s, rows) == once);
        scanner_forget(s, 1, known); /* and forgotten, all is as before */
        REQUIRE(seen(s, 0) == before);
        REQUIRE(!scanner_append(s, text, size) && scanner_rows(s) == rows && seen(s, 1) == once);
        distinct(s);
    }
    REQUIRE(!scanner_append(s, plain, sizeof plain - 1));
    seen(s, 0);
    scanner_free(s);
    free(text);
    return 0;
}

#ifdef OWN_DRIVER

#include <dirent.h>
#include <signal.h>
#include <time.h>

#define EDGES (1 << 16)
#define KEPT (1 << 16)
#define LONGEST 6000

static uint8_t reached[EDGES], known_edge[EDGES][8];
static uintptr_t previous;

__attribute__((no_sanitize_coverage, no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uint8_t *count = &reached[(here ^ (previous >> 1)) & (EDGES - 1)];
    if (*count < 255) ++*count;
    previous = here;
}

static uint64_t dice_state;
static uint32_t dice(uint32_t below) {
    dice_state ^= dice_state << 13, dice_state ^= dice_state >> 7, dice_state ^= dice_state << 17;
    return below ? (uint32_t)((dice_state >> 11) % below) : 0;
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} input;
static input kept[KEPT];
static size_t many;

static const char *const WORDS[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud83d\\ude00", "\\ud800", "\\udfff", "\\u00e9", "\\\"", "\\\\", "\\u12",
    "null", "true", "false", "-", "0", "-0", "01", "1e3", "1E400", "0.0005", "0.0015", "1.", ".5", "-0.0004", "NaN", "Infinity",
    "999999999999999999", "-999999999999999999", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
    "18446744073709551615", "18446744073709551616", "999999999999999.999", "9999999999999999.5", "123456789012345.6789",
    "0.00000000000000000000000000000000000000000000000001", "1234567890123456789012345678901234567890123456789012345678901234567890",
    "\"ph\":", "\"cat\":", "\"name\":", "\"pid\":", "\"tid\":", "\"ts\":", "\"dur\":", "\"args\":", "\"X\"", "\"i\"", "\"I\"", "\"M\"",
    "\"kernel\"", "\"cuda_runtime\"", "\"user_annotation\"", "\"correlation\":", "\"stream\":", "\"grid\":", "\"Seq\":",
    "\"Process Group Ranks\":", "\"In msg nelems\":", "\"graph node id\":", "[1,2,3]", "{\"a\":1}", "\x00", "\x1f", "\x7f", "\x80",
    "\xc3\xa9", "\xc0\x80", "\xed\xa0\x80", "\xf0\x9f\x98\x80", "\xf4\x90\x80\x80", "\xff", " ", "\n", "\t", "\xef\xbb\xbf",
    "{\"ph\":\"X\",\"cat\":\"kernel\",\"ts\":1,\"dur\":1}", "[[[[[[[[[[[[[[[[", "{\"a\":{\"a\":{\"a\":", "]]]]]]]]]]]]]]]]"};

static size_t spliced(uint8_t *out, size_t size, size_t at, size_t gone, const void *put, size_t length) {
    if (at > size) at = size;
    if (gone > size - at) gone = size - at;
    if (size - gone + length > LONGEST) return size;
    memmove(out + at + length, out + at + gone, size - at - gone);
    memcpy(out + at, put, length);
    return size - gone + length;
}

/* From one input another: words of the format, bytes, pieces moved, doubled, left out, or taken from a second input. */
static size_t mutated(uint8_t *out, size_t size) {
    static uint8_t piece[LONGEST + 1];
    for (uint32_t n = 1 + dice(dice(4) ? 3 : 12); n; n--) {
        size_t at = dice((uint32_t)size + 1), length = dice(dice(3) ? 16 : (uint32_t)size + 1);
        switch (dice(8)) {
        case 0: case 1: {
            const char *word = WORDS[dice(sizeof WORDS / sizeof *WORDS)];
            size = spliced(out, size, at, dice(2) ? 0 : dice(12), word, *word ? strlen(word) : 1);
            break;
        }
        case 2: {
            uint8_t byte = (uint8_t)dice(256);
            size = spliced(out, size, at, 1, &byte, 1);
            break;
        }
        case 3: size = spliced(out, size, at, length, "", 0); break;
        case 4: /* double or move a piece */
            if (length > size - at) length = size - at;
            memcpy(piece, out + at, length);
            size = spliced(out, size, dice((uint32_t)size + 1), 0, piece, length);
            break;
        case 5: { /* a piece of another input */
            const input *other = &kept[dice((uint32_t)many)];
            size_t from = dice((uint32_t)other->size + 1);
            if (length > other->size - from) length = other->size - from;
            size = spliced(out, size, at, dice(2) ? 0 : length, other->bytes + from, length);
            break;
        }
        case 6: /* a number, or a value, for another */
            for (size_t i = at; i < size; i++)
                if (out[i] == ':') {
                    size_t stop = i + 1;
                    while (stop < size && out[stop] != ',' && out[stop] != '}') stop++;
                    const char *word = WORDS[dice(sizeof WORDS / sizeof *WORDS)];
                    size = spliced(out, size, i + 1, stop - i - 1, word, *word ? strlen(word) : 1);
                    break;
                }
            break;
        default:
            if (size && at < size) out[at] ^= (uint8_t)(1u << dice(8));
        }
    }
    return size;
}

static int is_new(void) {
    int fresh = 0;
    for (int i = 0; i < EDGES; i++) {
        if (!reached[i]) continue;
        int bucket = reached[i] < 4 ? reached[i] - 1 : reached[i] < 8 ? 3 : reached[i] < 16 ? 4 : reached[i] < 32 ? 5 : reached[i] < 128 ? 6 : 7;
        if (!known_edge[i][bucket]) fresh = known_edge[i][bucket] = 1;
    }
    return fresh;
}

static void keep(const uint8_t *bytes, size_t size) {
    if (many == KEPT) return;
    kept[many].bytes = malloc(size ? size : 1);
    if (!kept[many].bytes) return;
    memcpy(kept[many].bytes, bytes, size);
    kept[many++].size = size;
}

static void saved(const char *folder, const char *name, const uint8_t *bytes, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(bytes, 1, size, file);
    fclose(file);
}

/* What an abort was about. */
static uint8_t last[2 * LONGEST];
static size_t last_size;
static const char *corpus;

#if defined(__SANITIZE_ADDRESS__)
void __asan_set_death_callback(void (*callback)(void));
#else
static void __asan_set_death_callback(void (*callback)(void)) { (void)callback; }
#endif

static void saved_last(void) { saved(corpus, "../crash", last, last_size); }
static void aborted(int sign) {
    saved_last();
    signal(sign, SIG_DFL);
    raise(sign);
}

static void run_one(const uint8_t *bytes, size_t size) {
    memset(reached, 0, sizeof reached);
    previous = 0;
    LLVMFuzzerTestOneInput(bytes, size);
}

int main(int count, char **arguments) {
    static uint8_t text[2 * LONGEST];
    if (count < 3) return 2;
    DIR *folder = opendir(corpus = arguments[1]);
    if (!folder) return 2;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", arguments[1], entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!file) continue;
        size_t size = fread(text, 1, LONGEST, file);
        fclose(file);
        run_one(text, size);
        is_new();
        keep(text, size);
    }
    closedir(folder);
    __asan_set_death_callback(saved_last);
    signal(SIGABRT, aborted);
    size_t seeds = many;
    dice_state = 88172645463325252ull + (count > 3 ? strtoull(arguments[3], NULL, 10) : 0);
    time_t stop = time(NULL) + atoi(arguments[2]);
    unsigned long long runs = 0;
    while (many && (runs & 255 || time(NULL) < stop)) {
        const input *from = &kept[dice(3) ? dice((uint32_t)many) : (uint32_t)(many - 1 - dice((uint32_t)(many < 64 ? many : 64)))];
        memcpy(text, from->bytes, from->size);
        size_t size = mutated(text, from->size);
        memcpy(last, text, size), last_size = size;
        run_one(text, size);
        runs++;
        if (is_new()) {
            char name[32];
            snprintf(name, sizeof name, "new-%06zu", many);
            saved(arguments[1], name, text, size);
            keep(text, size);
        }
    }
    printf("%llu inputs, %zu seeds, %zu kept for new edges: nothing found\n", runs, seeds, many - seeds);
    return 0;
}

#endif
