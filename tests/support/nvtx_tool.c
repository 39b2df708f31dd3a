/* A small NVTX tool: writes each range that it is told of as a line to the file that NVTX_TOOL_OUTPUT names.
 * Loaded through NVTX_INJECTION64_PATH, as a profiler is. Numbers are those of NVTX 3's callback tables (nvtxTypes.h). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };
enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

typedef void (*function)(void);
typedef struct {
    size_t size;
    int (*module_functions)(int module, function ***table, unsigned *size);
} callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union { uint64_t u; int64_t i; double d; } payload;
    int32_t message_type;
    const char *message;
} attributes;

static FILE *output;

static void *domain_create(const char *name) { return strdup(name); }
static void *register_string(void *domain, const char *text) { return strdup(text); }
static void name_category(void *domain, uint32_t number, const char *name) {
    fprintf(output, "category %s %s\n", (const char *)domain, name);
}
static int push(void *domain, const attributes *event) {
    const char *text = event->message_type == MESSAGE_ASCII || event->message_type == MESSAGE_REGISTERED ? event->message : "?";
    fprintf(output, "push %s %s %lld\n", (const char *)domain, text, (long long)event->payload.i);
    fflush(output);
    return 0;
}
static int pop(void *domain) {
    fprintf(output, "pop %s\n", (const char *)domain);
    fflush(output);
    return 0;
}

int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t)) {
    const callbacks *found = get_table(TABLE_CALLBACKS);
    function **table;
    unsigned size;
    output = fopen(getenv("NVTX_TOOL_OUTPUT"), "w");
    if (output == NULL || found == NULL || !found->module_functions(MODULE_CORE2, &table, &size)) return 0;
    *table[PUSH] = (function)push;
    *table[POP] = (function)pop;
    *table[NAME_CATEGORY] = (function)name_category;
    *table[REGISTER_STRING] = (function)register_string;
    *table[DOMAIN_CREATE] = (function)domain_create;
    return 1;
}
