// Device activities in a torch profile of a machine without a GPU: a profiler plugin of Kineto's that hands over what a test gave it.
//
// Everything after that is torch's own: the events, their text and the exported JSON. The text of an activity is what Kineto's
// CuptiActivity.h (1a72dcae for kernels, 461a26cd typed and for copies) puts together for a CUDA build; where the installed
// headers have the typed fields, the text is written by them.

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#if __has_include(<kineto/TypedMetadataJson.h>)
#include <kineto/MetadataFieldCatalog.h>
#include <kineto/TypedMetadataJson.h>
#define TYPED 1
#endif

using namespace libkineto;

namespace {

struct Given {
  int64_t stream;
  int64_t correlation;
  uint64_t graph;
  uint64_t node;
  int64_t bytes;
  int with_ids;
};

const TraceSpan& span() {
  static const TraceSpan one(0, 0, "none");
  return one;
}

// One activity that tells of itself what CUPTI's does.
struct Activity : GenericTraceActivity {
  Activity(ActivityType type, const std::string& name, const Given& given)
      : GenericTraceActivity(span(), type, name), given(given) {}

  bool on_device() const {
    return activityType != ActivityType::CUDA_RUNTIME;
  }

#ifdef TYPED
  void visitTypedMetadata(ITypedMetadataVisitor& visitor) const override {
    namespace fields = CudaMetadataFields;
    const auto correlation = static_cast<uint64_t>(given.correlation);
    if (!on_device()) {
      visitor.visit(fields::kCbid, uint64_t{311});
      visitor.visit(fields::kCorrelation, correlation);
      return;
    }
    const bool kernel = activityType == ActivityType::CONCURRENT_KERNEL;
    if (kernel) {
      visitor.visit(fields::kQueued, uint64_t{0});
    }
    visitor.visit(fields::kDevice, int64_t{0});
    visitor.visit(fields::kContext, uint64_t{1});
    visitor.visit(fields::kStream, given.stream);
    visitor.visit(fields::kCorrelation, correlation);
    if (kernel) {
      visitor.visit(fields::kRegistersPerThread, uint64_t{32});
      visitor.visit(fields::kSharedMemory, int64_t{0});
      visitor.visit(fields::kBlocksPerSm, 0.03);
      visitor.visit(fields::kWarpsPerSm, 0.12);
      visitor.visit(fields::kGrid, std::vector<int64_t>{4, 1, 1});
      visitor.visit(fields::kBlock, std::vector<int64_t>{128, 1, 1});
      visitor.visit(fields::kEstAchievedOccupancyPercent, int64_t{0});
      visitor.visit(fields::kOccupancy, [](auto& inside) {
        inside.visit(fields::kActiveBlocksPerMultiprocessor, int64_t{16});
        inside.visit(fields::kLimitingFactors, std::string("WARPS|BLOCKS"));
      });
    } else {
      visitor.visit(fields::kBytes, static_cast<uint64_t>(given.bytes));
      visitor.visit(fields::kMemoryBandwidthGbps, 1.5);
    }
    if (given.with_ids) {
      visitor.visit(fields::kGraphId, given.graph);
      visitor.visit(fields::kGraphNodeId, given.node);
    }
    if (kernel) {
      visitor.visit(fields::kPriority, int64_t{0});
    }
    visitor.visit(fields::kChannel, uint64_t{8});
    visitor.visit(fields::kChannelType, int64_t{1});
  }

  const std::string metadataJson() const override {
    libkineto::internal::JsonTypedMetadataVisitor visitor;
    visitTypedMetadata(visitor);
    return std::move(visitor).json();
  }
#else
  const std::string metadataJson() const override {
    if (!on_device()) {
      return fmt::format("\n      \"cbid\": 311, \"correlation\": {}", given.correlation);
    }
    const bool kernel = activityType == ActivityType::CONCURRENT_KERNEL;
    std::string text = fmt::format(
        "\n      \"device\": 0, \"context\": 1,\n      \"stream\": {}, \"correlation\": {}", given.stream, given.correlation);
    text += kernel ? ",\n      \"grid\": [4, 1, 1],\n      \"block\": [128, 1, 1],\n      \"est. achieved occupancy %\": 0"
                   : fmt::format(",\n      \"bytes\": {}, \"memory bandwidth (GB/s)\": 1.5", given.bytes);
    if (kernel && given.with_ids) { // copies had no ids then
      text += fmt::format(",\n      \"graph id\": {}, \"graph node id\": {}", given.graph, given.node);
    }
    return text;
  }
#endif

  Given given;
};

std::vector<std::unique_ptr<Activity>>& waiting() {
  static std::vector<std::unique_ptr<Activity>> them;
  return them;
}

// A profile points at its activities for as long as it lives.
std::vector<std::unique_ptr<Activity>>& handed_over() {
  static std::vector<std::unique_ptr<Activity>> them;
  return them;
}

struct Session : IActivityProfilerSession {
  void start() override {}
  void stop() override {}
  std::vector<std::string> errors() override {
    return {};
  }
  void processTrace(ActivityLogger& logger) override {
    for (auto& one : waiting()) {
      logger.handleActivity(*one); // its own log() would keep a plain copy
      handed_over().push_back(std::move(one));
    }
    waiting().clear();
  }
  std::unique_ptr<DeviceInfo> getDeviceInfo() override {
    return nullptr;
  }
  std::vector<ResourceInfo> getResourceInfos() override {
    return {};
  }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override {
    return nullptr;
  }
};

struct Profiler : IActivityProfiler {
  const std::string& name() const override {
    static const std::string own = "device activities of a test";
    return own;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL};
    return types;
  }
  std::unique_ptr<IActivityProfilerSession> configure(const std::set<ActivityType>&, const Config&) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>&, const Config&)
      override {
    return std::make_unique<Session>();
  }
};

} // namespace

extern "C" {

void device_activities_register() {
  api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

// kind: 0 kernel, 1 copy, 2 fill, 3 runtime call (then stream is the thread)
void device_activities_give(
    int kind,
    const char* name,
    int64_t start,
    int64_t duration,
    int64_t stream,
    int64_t correlation,
    uint64_t graph,
    uint64_t node,
    int64_t bytes,
    int with_ids) {
  static const ActivityType types[] = {
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET, ActivityType::CUDA_RUNTIME};
  auto made = std::make_unique<Activity>(types[kind], name, Given{stream, correlation, graph, node, bytes, with_ids});
  made->startTime = start;
  made->endTime = start + duration;
  made->id = static_cast<int32_t>(correlation);
  made->device = kind == 3 ? processId() : 0;
  made->resource = static_cast<int32_t>(stream);
  made->threadId = static_cast<int32_t>(stream);
  waiting().push_back(std::move(made));
}

int device_activities_typed() {
#ifdef TYPED
  return 1;
#else
  return 0;
#endif
}
}
