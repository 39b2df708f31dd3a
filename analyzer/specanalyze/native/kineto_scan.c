/* Rows of a Kineto trace to columns, without an object per row.
 *
 * Takes JSON lists of rows, one piece of text after another, and appends the rows that are events to growing columns.
 * It knows only the plain case: what it is not sure to read exactly as the decoder of kineto_columns.py would (broken
 * JSON, a number in an unusual form, a value of an unexpected type) makes it refuse the whole piece, of which nothing is
 * then kept, and the caller decodes that piece the other way. So there is one place that decides what odd text means.
 *
 * Whole numbers and times become int64 (MISSING where there is none); every other value is kept as the index of its raw
 * JSON token in a table of distinct tokens, which the caller decodes once each.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MISSING INT64_MIN
#define TIMES 2 /* ts, dur: microseconds in decimal text, kept in ns */
#define IDS 2   /* pid, tid: whole numbers, or words */
#define MAX_FIELDS 32
#define MAX_DEPTH 256
#define MAX_KEY 64
#ifndef FIRST_ROOM /* tests make these small, so that every piece of text outgrows them */
#define FIRST_ROOM (1 << 14)
#define FIRST_SLOTS 256
#define FIRST_TOKENS 64
#define FIRST_BYTES 4096
#endif

enum { PLAIN = 0, ODD = 1, NO_MEMORY = 2 };

typedef struct {
    const char *text;
    size_t length;
} token;

typedef struct {
    uint64_t hash;
    size_t at; /* in bytes */
    uint32_t length;
} entry;

/* Distinct tokens: entries in order of appearance, slots hold 1 + index. */
typedef struct {
    entry *entries;
    size_t count, room;
    uint32_t *slots;
    size_t mask;
    char *bytes;
    size_t used, size;
} tokens;

typedef struct {
    char key[MAX_KEY];
    size_t length;
    int next; /* next field with a key of this length, -1 */
} argument;

typedef struct {
    int numbers, texts; /* arguments that are whole numbers; that are kept as tokens */
    argument arguments[MAX_FIELDS];
    int of_length[MAX_KEY];
    int categories; /* the first tokens of the table of categories are those of events */
    int64_t *number[TIMES + IDS + MAX_FIELDS];
    int32_t *code[2 + MAX_FIELDS]; /* kind, name, texts */
    uint8_t *in_words;             /* pid is text */
    tokens table[2 + MAX_FIELDS];
    size_t rows, room;
} scanner;

/* One row while it is read. */
typedef struct {
    int odd; /* a value that only matters if the row is an event */
    token phase, category, name;
    int64_t number[TIMES + IDS + MAX_FIELDS];
    token text[MAX_FIELDS];
    int in_words;
} row;

typedef struct {
    const char *at, *end;
} cursor;

static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 0x9E3779B97F4A7C15ull ^ length, word;
    while (length >= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
        hash ^= hash >> 32;
        text += 8;
        length -= 8;
    }
    word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    return hash ^ (hash >> 32);
}

static int widen(tokens *table) {
    size_t slots = table->slots ? 2 * (table->mask + 1) : FIRST_SLOTS;
    uint32_t *fresh = calloc(slots, sizeof *fresh);
    if (!fresh) return 0;
    for (size_t i = 0; i < table->count; i++) {
        size_t slot = table->entries[i].hash & (slots - 1);
        while (fresh[slot]) slot = (slot + 1) & (slots - 1);
        fresh[slot] = (uint32_t)i + 1;
    }
    free(table->slots);
    table->slots = fresh;
    table->mask = slots - 1;
    return 1;
}

/* Index of a token, -1 without memory. */
static int32_t intern(tokens *table, token value) {
    if (!table->slots || 2 * (table->count + 1) > table->mask) {
        if (!widen(table)) return -1;
    }
    uint64_t hash = hash_of(value.text, value.length);
    size_t slot = hash & table->mask;
    for (; table->slots[slot]; slot = (slot + 1) & table->mask) {
        entry *known = &table->entries[table->slots[slot] - 1];
        if (known->hash == hash && known->length == value.length &&
            !memcmp(table->bytes + known->at, value.text, value.length))
            return (int32_t)table->slots[slot] - 1;
    }
    if (value.length > UINT32_MAX || table->count >= INT32_MAX - 1) return -1;
    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : FIRST_TOKENS;
        entry *longer = realloc(table->entries, room * sizeof *longer);
        if (!longer) return -1;
        table->entries = longer;
        table->room = room;
    }
    if (table->used + value.length > table->size) {
        size_t size = 2 * (table->used + value.length) + FIRST_BYTES;
        char *longer = realloc(table->bytes, size);
        if (!longer) return -1;
        table->bytes = longer;
        table->size = size;
    }
    memcpy(table->bytes + table->used, value.text, value.length);
    table->entries[table->count] = (entry){hash, table->used, (uint32_t)value.length};
    table->used += value.length;
    table->slots[slot] = (uint32_t)++table->count;
    return (int32_t)table->count - 1;
}

/* Forget the tokens after the first `count`. */
static void shorten(tokens *table, size_t count) {
    if (table->count == count) return;
    table->used = table->entries[count].at;
    table->count = count;
    memset(table->slots, 0, (table->mask + 1) * sizeof *table->slots);
    for (size_t i = 0; i < count; i++) {
        size_t slot = table->entries[i].hash & table->mask;
        while (table->slots[slot]) slot = (slot + 1) & table->mask;
        table->slots[slot] = (uint32_t)i + 1;
    }
}

static inline void space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

static inline int take(cursor *c, char sign) {
    space(c);
    if (c->at >= c->end || *c->at != sign) return 0;
    c->at++;
    return 1;
}

static int hexadecimal(char sign) {
    return (sign >= '0' && sign <= '9') || (sign >= 'a' && sign <= 'f') || (sign >= 'A' && sign <= 'F');
}

/* Whether any byte of a word is a quote, a backslash or a control character (exact: bytes above 127 never count). */
static inline int stops(uint64_t word) {
    const uint64_t ones = 0x0101010101010101ull, high = 0x8080808080808080ull;
    uint64_t quote = word ^ (ones * '"'), back = word ^ (ones * '\\');
    uint64_t low = (word - ones * 0x20) & ~word;
    return (((quote - ones) & ~quote) | ((back - ones) & ~back) | low) & high ? 1 : 0;
}

/* Whether bytes are UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
static int is_utf8(const char *text, size_t length) {
    const unsigned char *at = (const unsigned char *)text, *end = at + length;
    while (at < end) {
        unsigned char first = *at++;
        if (first < 0x80) continue;
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - at < more) return 0;
        unsigned char second = *at;
        if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
            (first == 0xF4 && second > 0x8F))
            return 0;
        for (; more; more--)
            if ((*at++ & 0xC0) != 0x80) return 0;
    }
    return 1;
}

/* A string, the cursor at its opening quote; `escaped` where it holds a backslash. */
static int string(cursor *c, token *value, int *escaped) {
    const char *begin = c->at++, *at = c->at;
    uint64_t word, seen = 0;
    *escaped = 0;
    for (;;) {
        while (at + 8 <= c->end && (memcpy(&word, at, 8), !stops(word))) seen |= word, at += 8;
        while (at < c->end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20) seen |= (unsigned char)*at++;
        if (at >= c->end) return ODD;
        if (*at == '"') break;
        if (*at != '\\' || c->end - at < 2) return ODD;
        *escaped = 1;
        if (at[1] == 'u') {
            if (c->end - at < 6) return ODD;
            for (int i = 2; i < 6; i++)
                if (!hexadecimal(at[i])) return ODD;
            if ((at[2] == 'd' || at[2] == 'D') && at[3] >= '8') return ODD; /* half of a surrogate pair, or a whole one */
            at += 6;
        } else {
            if (!memchr("\"\\/bfnrt", at[1], 8)) return ODD;
            at += 2;
        }
    }
    c->at = at + 1;
    value->text = begin;
    value->length = (size_t)(c->at - begin);
    return seen & 0x8080808080808080ull && !is_utf8(begin, value->length) ? ODD : PLAIN;
}

static int digit(char sign) { return sign >= '0' && sign <= '9'; }

static int number(cursor *c) {
    if (c->at < c->end && *c->at == '-') c->at++;
    if (c->at >= c->end || !digit(*c->at)) return ODD;
    if (*c->at == '0') c->at++;
    else while (c->at < c->end && digit(*c->at)) c->at++;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (c->at >= c->end || !digit(*c->at)) return ODD;
        while (c->at < c->end && digit(*c->at)) c->at++;
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        if (c->at >= c->end || !digit(*c->at)) return ODD;
        while (c->at < c->end && digit(*c->at)) c->at++;
    }
    return c->at < c->end && digit(*c->at) ? ODD : PLAIN; /* 012 */
}

static int word(cursor *c, const char *text, size_t length) {
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, text, length)) return ODD;
    c->at += length;
    return PLAIN;
}

/* Any value; checks that it is JSON. */
static int skip(cursor *c, int depth) {
    token ignored;
    int escaped;
    space(c);
    if (c->at >= c->end || depth > MAX_DEPTH) return ODD;
    switch (*c->at) {
    case '"': return string(c, &ignored, &escaped);
    case 't': return word(c, "true", 4);
    case 'f': return word(c, "false", 5);
    case 'n': return word(c, "null", 4);
    case '[':
        c->at++;
        if (take(c, ']')) return PLAIN;
        do {
            if (skip(c, depth + 1)) return ODD;
        } while (take(c, ','));
        return take(c, ']') ? PLAIN : ODD;
    case '{':
        c->at++;
        if (take(c, '}')) return PLAIN;
        do {
            space(c);
            if (c->at >= c->end || *c->at != '"' || string(c, &ignored, &escaped) || !take(c, ':') || skip(c, depth + 1))
                return ODD;
        } while (take(c, ','));
        return take(c, '}') ? PLAIN : ODD;
    default: return number(c);
    }
}

/* A whole number of up to 18 digits, or null; anything else is skipped and marks the row odd. */
static int whole(cursor *c, int64_t *value, int *odd) {
    space(c);
    const char *begin = c->at;
    int negative = c->at < c->end && *c->at == '-';
    const char *at = begin + negative, *first = at;
    int64_t sum = 0;
    while (at < c->end && digit(*at) && at - first < 18) sum = 10 * sum + (*at++ - '0');
    int stop = at < c->end ? *at : 0;
    if (at > first && (*first != '0' || at == first + 1) && !digit((char)stop) && stop != '.' && stop != 'e' && stop != 'E') {
        c->at = at;
        *value = negative ? -sum : sum;
        return PLAIN;
    }
    *value = MISSING;
    if (stop != 'n' || at != begin) *odd = 1;
    return skip(c, 0);
}

/* Microseconds in decimal text to ns, half to even beyond the third decimal; null; else the row is odd. */
static int microseconds(cursor *c, int64_t *value, int *odd) {
    space(c);
    const char *begin = c->at;
    int negative = c->at < c->end && *c->at == '-';
    const char *at = begin + negative, *first = at;
    int64_t sum = 0;
    while (at < c->end && digit(*at) && at - first < 15) sum = 10 * sum + (*at++ - '0');
    if (at > first && (*first != '0' || at == first + 1)) {
        int decimals = 0, half = 0, beyond = 0; /* half: first digit behind the third; beyond: any other than 0 after it */
        if (at < c->end && *at == '.') {
            at++;
            if (at >= c->end || !digit(*at)) return ODD;
            for (; at < c->end && digit(*at); at++, decimals++) {
                if (decimals < 3) sum = 10 * sum + (*at - '0');
                else if (decimals == 3) half = *at - '0';
                else if (*at != '0') beyond = 1;
            }
        }
        for (; decimals < 3; decimals++) sum *= 10;
        if (half > 5 || (half == 5 && (beyond || (sum & 1)))) sum++;
        int stop = at < c->end ? *at : 0;
        if (!digit((char)stop) && stop != 'e' && stop != 'E' && stop != '.') {
            c->at = at;
            *value = negative ? -sum : sum;
            return PLAIN;
        }
    }
    *value = MISSING;
    if (at != begin || at >= c->end || *at != 'n') *odd = 1;
    c->at = begin;
    return skip(c, 0);
}

/* A string, or null (length 0); anything else marks the row odd. */
static int text(cursor *c, token *value, int *odd) {
    int escaped = 0;
    space(c);
    value->length = 0;
    if (c->at < c->end && *c->at == '"') return string(c, value, &escaped);
    if (c->at >= c->end || *c->at != 'n') *odd = 1;
    return skip(c, 0);
}

static int key(cursor *c, token *value) {
    int escaped;
    space(c);
    if (c->at >= c->end || *c->at != '"' || string(c, value, &escaped) || escaped) return ODD;
    value->text++; /* without its quotes */
    value->length -= 2;
    return take(c, ':') ? PLAIN : ODD;
}

static void no_arguments(const scanner *s, row *r) {
    for (int i = 0; i < s->numbers; i++) r->number[TIMES + IDS + i] = MISSING;
    for (int i = 0; i < s->texts; i++) r->text[i].length = 0;
}

static int arguments(const scanner *s, cursor *c, row *r) {
    no_arguments(s, r);
    space(c);
    if (c->at >= c->end || *c->at != '{') {
        if (c->at >= c->end || *c->at != 'n') r->odd = 1;
        return skip(c, 0);
    }
    c->at++;
    if (take(c, '}')) return PLAIN;
    do {
        token name;
        if (key(c, &name)) return ODD;
        int field = name.length < MAX_KEY ? s->of_length[name.length] : -1;
        while (field >= 0 && memcmp(s->arguments[field].key, name.text, name.length)) field = s->arguments[field].next;
        if (field < 0) {
            if (skip(c, 1)) return ODD;
        } else if (field < s->numbers) {
            if (whole(c, &r->number[TIMES + IDS + field], &r->odd)) return ODD;
        } else {
            space(c);
            token *value = &r->text[field - s->numbers];
            value->text = c->at;
            if (skip(c, 1)) return ODD;
            value->length = *value->text == 'n' ? 0 : (size_t)(c->at - value->text);
        }
    } while (take(c, ','));
    return take(c, '}') ? PLAIN : ODD;
}

static int is(token value, const char *text) {
    return value.length == strlen(text) && !memcmp(value.text, text, value.length);
}

/* pid or tid: a whole number, or words that no reader takes for a number (they start with a letter, or are empty). */
static int identifier(cursor *c, int64_t *value, int *in_words, int *odd) {
    space(c);
    *in_words = 0;
    if (c->at >= c->end || *c->at != '"') return whole(c, value, odd);
    token words;
    int escaped;
    *value = MISSING;
    if (string(c, &words, &escaped)) return ODD;
    char first = words.length > 2 ? words.text[1] : 'a';
    if (!((first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z'))) *odd = 1;
    *in_words = 1;
    return PLAIN;
}

static int members(const scanner *s, cursor *c, row *r) {
    static const token nothing = {"", 0};
    int ignored;
    r->odd = r->in_words = 0;
    r->phase = r->category = r->name = nothing;
    for (int i = 0; i < TIMES + IDS; i++) r->number[i] = MISSING;
    no_arguments(s, r);
    if (!take(c, '{')) return ODD;
    if (take(c, '}')) return PLAIN;
    do {
        token name;
        int bad;
        if (key(c, &name)) return ODD;
        if (is(name, "ph")) bad = text(c, &r->phase, &r->odd);
        else if (is(name, "cat")) bad = text(c, &r->category, &r->odd);
        else if (is(name, "name")) bad = text(c, &r->name, &r->odd);
        else if (is(name, "ts")) bad = microseconds(c, &r->number[0], &r->odd);
        else if (is(name, "dur")) bad = microseconds(c, &r->number[1], &r->odd);
        else if (is(name, "pid")) bad = identifier(c, &r->number[TIMES], &r->in_words, &r->odd);
        else if (is(name, "tid")) bad = identifier(c, &r->number[TIMES + 1], &ignored, &r->odd);
        else if (is(name, "args")) bad = arguments(s, c, r);
        else bad = skip(c, 0);
        if (bad) return ODD;
    } while (take(c, ','));
    return take(c, '}') ? PLAIN : ODD;
}

/* Room for more rows; columns without any value yet stay NULL. */
static int grow(scanner *s) {
    size_t room = s->room ? s->room + s->room / 4 : FIRST_ROOM;
    for (int i = 0; i < TIMES + IDS + s->numbers; i++) {
        int64_t *longer = s->number[i] ? realloc(s->number[i], room * sizeof *longer) : NULL;
        if (s->number[i] && !longer) return 0;
        s->number[i] = longer;
    }
    for (int i = 0; i < 2 + s->texts; i++) {
        int32_t *longer = s->code[i] ? realloc(s->code[i], room * sizeof *longer) : NULL;
        if (s->code[i] && !longer) return 0;
        s->code[i] = longer;
    }
    uint8_t *longer = realloc(s->in_words, room);
    if (!longer) return 0;
    s->in_words = longer;
    s->room = room;
    return 1;
}

/* The first value of a column: all rows before have none. */
static int64_t *first_number(const scanner *s) {
    int64_t *column = malloc(s->room * sizeof *column);
    for (size_t i = 0; column && i < s->rows; i++) column[i] = MISSING;
    return column;
}

static int32_t *first_code(const scanner *s) {
    int32_t *column = malloc(s->room * sizeof *column);
    for (size_t i = 0; column && i < s->rows; i++) column[i] = -1;
    return column;
}

/* Append the row if it is an event. */
static int append(scanner *s, const row *r) {
    int32_t kind;
    if (is(r->phase, "\"X\"")) {
        if (!r->category.length) return r->odd; /* no category: no event */
        kind = intern(&s->table[0], r->category);
        if (kind < 0) return NO_MEMORY;
        if (kind >= s->categories) return memchr(r->category.text, '\\', r->category.length) ? ODD : PLAIN;
    } else if (is(r->phase, "\"i\"") || is(r->phase, "\"I\"")) {
        kind = s->categories; /* a mark */
    } else {
        /* A phase with an escape, or that is no string, might still mean X. */
        return r->phase.length ? (memchr(r->phase.text, '\\', r->phase.length) ? ODD : PLAIN) : r->odd;
    }
    if (r->odd) return ODD;
    if (s->rows == s->room && !grow(s)) return NO_MEMORY;
    for (int i = 0; i < TIMES + IDS + s->numbers; i++) {
        if (!s->number[i]) {
            if (r->number[i] == MISSING) continue;
            if (!(s->number[i] = first_number(s))) return NO_MEMORY;
        }
        s->number[i][s->rows] = r->number[i];
    }
    if (!s->code[0] && !(s->code[0] = first_code(s))) return NO_MEMORY;
    s->code[0][s->rows] = kind;
    for (int i = 0; i < 1 + s->texts; i++) {
        token value = i ? r->text[i - 1] : r->name;
        int32_t code = value.length ? intern(&s->table[1 + i], value) : -1;
        if (value.length && code < 0) return NO_MEMORY;
        if (!s->code[1 + i]) {
            if (code < 0) continue;
            if (!(s->code[1 + i] = first_code(s))) return NO_MEMORY;
        }
        s->code[1 + i][s->rows] = code;
    }
    s->in_words[s->rows++] = (uint8_t)r->in_words;
    return PLAIN;
}

/* keys: the arguments' names, those of whole numbers first. categories: their JSON tokens. */
scanner *scanner_new(int numbers, int texts, const char **keys, int categories, const char **tokens_of) {
    if (numbers + texts > MAX_FIELDS) return NULL;
    scanner *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->numbers = numbers;
    s->texts = texts;
    for (int i = 0; i < MAX_KEY; i++) s->of_length[i] = -1;
    for (int i = 0; i < numbers + texts; i++) {
        size_t length = strlen(keys[i]);
        if (length >= MAX_KEY) {
            free(s);
            return NULL;
        }
        memcpy(s->arguments[i].key, keys[i], length);
        s->arguments[i].length = length;
        s->arguments[i].next = s->of_length[length];
        s->of_length[length] = i;
    }
    s->categories = categories;
    for (int i = 0; i < categories; i++) intern(&s->table[0], (token){tokens_of[i], strlen(tokens_of[i])});
    return s;
}

/* Append the events of a JSON list of rows: PLAIN, or ODD or NO_MEMORY with nothing kept. */
int scanner_append(scanner *s, const char *list, size_t length) {
    cursor c = {list, list + length};
    size_t rows = s->rows, known[2 + MAX_FIELDS];
    int result = ODD;
    row r;
    for (int i = 0; i < 2 + s->texts; i++) known[i] = s->table[i].count;
    if (take(&c, '[')) {
        if (take(&c, ']')) result = PLAIN;
        else {
            do {
                result = members(s, &c, &r);
                if (!result) result = append(s, &r);
            } while (!result && take(&c, ','));
            if (!result && !take(&c, ']')) result = ODD;
        }
        space(&c);
        if (!result && c.at != c.end) result = ODD;
    }
    if (result) {
        s->rows = rows;
        for (int i = 0; i < 2 + s->texts; i++) shorten(&s->table[i], known[i]);
    }
    return result;
}

/* Forget the rows and tokens behind the given counts (one a table). */
void scanner_forget(scanner *s, size_t rows, const size_t *known) {
    s->rows = rows;
    for (int i = 0; i < 2 + s->texts; i++) shorten(&s->table[i], known[i]);
}

size_t scanner_rows(const scanner *s) { return s->rows; }

/* A column, NULL where no row has a value. */
const int64_t *scanner_numbers(const scanner *s, int field) { return s->number[field]; }
const int32_t *scanner_codes(const scanner *s, int field) { return s->code[field]; }
const uint8_t *scanner_in_words(const scanner *s) { return s->in_words; }
size_t scanner_tokens(const scanner *s, int field) { return s->table[field].count; }

const char *scanner_token(const scanner *s, int field, size_t index, size_t *length) {
    const entry *found = &s->table[field].entries[index];
    *length = found->length;
    return s->table[field].bytes + found->at;
}

void scanner_free(scanner *s) {
    if (!s) return;
    for (int i = 0; i < TIMES + IDS + s->numbers; i++) free(s->number[i]);
    for (int i = 0; i < 2 + s->texts; i++) {
        free(s->code[i]);
        free(s->table[i].entries);
        free(s->table[i].slots);
        free(s->table[i].bytes);
    }
    free(s->in_words);
    free(s);
}
