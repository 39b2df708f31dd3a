/* Ranges as newer NCCL writes them: domain NCCL, a typed payload on each call. Built against NVTX 3's headers, run under nsys.
 * Schema ids, field names and layout are those of NCCL's src/include/nvtx_payload_schemas.h. */
#define NVTX_EXT_PAYLOAD_COMPATID 0x0103 /* what Nsight Systems 2022 to 2024 know */
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <stddef.h>

typedef struct {
    uint64_t comm;
    size_t bytes;
    int op;
} all_reduce;

enum { ALL_REDUCE = NVTX_PAYLOAD_SCHEMA_ID_STATIC_START + 4 };

int main(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("NCCL");
    nvtxPayloadSchemaEntry_t entries[] = {
        {0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID", NULL, 0, offsetof(all_reduce, comm)},
        {0, NVTX_PAYLOAD_ENTRY_TYPE_SIZE, "Message size [bytes]", NULL, 0, offsetof(all_reduce, bytes)},
        {0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "Reduction operation", NULL, 0, offsetof(all_reduce, op)},
    };
    nvtxPayloadSchemaAttr_t schema = {0};
    schema.fieldMask = ~0ull;
    schema.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
    schema.entries = entries;
    schema.numEntries = 3;
    schema.payloadStaticSize = sizeof(all_reduce);
    schema.schemaId = ALL_REDUCE;
    nvtxPayloadSchemaRegister(domain, &schema);
    for (int i = 0; i < 3; i++) {
        all_reduce call = {0xfedcba9876543210ull, (size_t)1024 << i, 0};
        nvtxPayloadData_t data = {ALL_REDUCE, sizeof call, &call};
        nvtxEventAttributes_t event = {0};
        event.version = NVTX_VERSION;
        event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        event.messageType = NVTX_MESSAGE_TYPE_ASCII;
        event.message.ascii = "ncclAllReduce";
        event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
        event.reserved0 = 1; /* one payload */
        event.payload.ullValue = (uint64_t)(uintptr_t)&data;
        nvtxDomainRangePushEx(domain, &event);
        nvtxDomainRangePop(domain);
    }
    return 0;
}
