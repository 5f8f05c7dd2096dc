// libnccl-profiler-taskd.so as NCCL would use it: every callback of every version of the plugin interface.
#include "nccl_profiler.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using nccl::Descriptor;
using testing::Record;
using testing::SegmentView;

constexpr int kOff = nccl::kEventCollective | nccl::kEventPointToPoint;
constexpr int kOn = kOff | nccl::kEventKernelChannel;
constexpr uint64_t kHash = 0xabc;
constexpr char kGroup[] = "tp:0000000000000abc";

void* Symbol(int version) {
  void* plugin = dlopen(TASKD_NCCL_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
  return plugin == nullptr ? nullptr : dlsym(plugin, ("ncclProfiler_v" + std::to_string(version)).c_str());
}

// NCCL's numbers of them (ncclFunc_t, ncclDataType_t), which v1 has instead of texts.
constexpr const char* kFunctions[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                      "AllReduce", "SendRecv", "Send",      "Recv"};
constexpr const char* kTypes[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                  "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                  "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

template <size_t kCount>
uint8_t Number(const char* const (&names)[kCount], const char* name) {
  for (size_t i = 0; i < kCount; ++i) {
    if (name != nullptr && std::string(names[i]) == name) return static_cast<uint8_t>(i);
  }
  return 200;
}

// One communicator in NCCL: rank 1 of 8.
class Communicator {
 public:
  explicit Communicator(int version, const char* name = "tp") : version_(version) {
    void* symbol = Symbol(version);
    if (symbol == nullptr) {
      ADD_FAILURE() << dlerror();
      return;
    }
    if (version <= 3) {
      profiler_ = *static_cast<const nccl::ProfilerV2*>(symbol);
      EXPECT_EQ(profiler_.init(&context_, &mask_), 0);
    } else if (version == 4) {
      const auto& profiler = *static_cast<const nccl::ProfilerV4*>(symbol);
      EXPECT_EQ(profiler.init(&context_, &mask_, name, kHash, 2, 8, 1, nullptr), 0);
      Take(profiler);
    } else {
      const auto& profiler = *static_cast<const nccl::ProfilerV5*>(symbol);
      EXPECT_EQ(profiler.init(&context_, kHash, &mask_, name, 2, 8, 1, nullptr), 0);
      Take(profiler);
    }
    EXPECT_STREQ(profiler_.name, "TaskD");
    EXPECT_NE(context_, nullptr);
  }
  ~Communicator() { EXPECT_EQ(profiler_.finalize(context_), 0); }

  void* Start(uint32_t type, Descriptor descriptor) {
    // What NCCL does not write it does not promise to clear.
    descriptor.type64 = version_ >= 5 ? type : 0xabababababababab;
    if (version_ < 5) descriptor.type8 = static_cast<uint8_t>(type);
    void* handle = &descriptor;
    EXPECT_EQ(profiler_.start_event(context_, &handle, &descriptor), 0);
    return handle;
  }
  void Stop(void* handle) { EXPECT_EQ(profiler_.stop_event(handle), 0); }
  void State(void* handle, int state) { EXPECT_EQ(profiler_.record_event_state(handle, state, nullptr), 0); }

  void* Collective(const char* function, const char* type, size_t count, uint64_t sequence, uint8_t channels = 1) {
    Descriptor descriptor = {};
    descriptor.rank = 1;
    if (version_ == 1) {
      descriptor.collective_v1 = {"tp",    kHash, sequence, Number(kFunctions, function), nullptr,
                                  nullptr, count, 0,        Number(kTypes, type)};
    } else if (version_ == 2) {
      descriptor.collective_v2 = {"tp", kHash, sequence, function, nullptr, nullptr, count, 0, type, 77, channels};
    } else if (version_ == 3) {
      descriptor.collective_v3 = {"tp", kHash, sequence, function, nullptr, nullptr, count, 0, type, channels};
    } else {
      descriptor.collective = {sequence, function, nullptr, nullptr, count, 0, type, channels};
    }
    return Start(nccl::kEventCollective, descriptor);
  }
  void* PointToPoint(const char* function, const char* type, size_t count, int peer, uint8_t channels = 1) {
    Descriptor descriptor = {};
    descriptor.rank = 1;
    if (version_ == 1) {
      descriptor.point_to_point_v1 = {"tp",  kHash, Number(kFunctions, function), nullptr, Number(kTypes, type),
                                      count, peer};
    } else if (version_ <= 3) {
      descriptor.point_to_point_v2 = {"tp", kHash, function, nullptr, type, count, peer};
    } else {
      descriptor.point_to_point = {function, nullptr, type, count, peer, channels};
    }
    return Start(nccl::kEventPointToPoint, descriptor);
  }
  void* Channel(void* parent) {
    Descriptor descriptor = {};
    descriptor.parent = parent;
    return Start(nccl::kEventKernelChannel, descriptor);
  }

  int& mask() { return mask_; }
  void* context() const { return context_; }
  const nccl::ProfilerV2& profiler() const { return profiler_; }
  int version() const { return version_; }
  bool says_ranks() const { return version_ >= 4; }

 private:
  template <typename Profiler>
  void Take(const Profiler& profiler) {
    profiler_ = {profiler.name,    nullptr, profiler.start_event, profiler.stop_event, profiler.record_event_state,
                 profiler.finalize};
  }

  const int version_;
  nccl::ProfilerV2 profiler_ = {};
  void* context_ = nullptr;
  int mask_ = 0;
};

// "+" a start, "-" an end.
std::string Story(SegmentView& segment) {
  std::string story;
  for (const Record& record : segment.Records()) {
    if (record.type == ring::kRecordRangeStart) story += "+";
    if (record.type == ring::kRecordRangeEnd) story += "-";
  }
  return story;
}

std::string Name(const Communicator& communicator, const std::string& before, const std::string& after) {
  return "{" + before + ",\"groupName\": \"" + kGroup + "\"," + after.substr(0, after.find('|')) +
         (communicator.says_ranks() ? ",\"ranks\": \"8\"" : "") + ",\"rank\": \"1\"" +
         after.substr(after.find('|') + 1) + "}";
}

void SwitchOn() {
  taskd_mark("first");
  SegmentView().SetGate(ring::kGateCommunication);
}

FRESH_TEST(NcclProfilerTest, VersionsAreThere) {
  for (int version = 1; version <= 7; ++version) EXPECT_NE(Symbol(version), nullptr) << version;
  EXPECT_EQ(Symbol(0), nullptr);
  EXPECT_EQ(Symbol(8), nullptr);
}

void CollectiveOfVersion(int version) {
  SwitchOn();
  Communicator communicator(version);
  const bool kernels = version >= 3;
  EXPECT_EQ(communicator.mask() & kOn, kernels ? kOn : kOff);
  void* operation = communicator.Collective("AllReduce", "ncclBfloat16", 1024, 17, 2);
  ASSERT_NE(operation, nullptr);
  SegmentView segment;
  EXPECT_EQ(Story(segment), kernels ? "" : "+");
  communicator.Stop(operation);
  if (kernels) {
    EXPECT_EQ(Story(segment), "");  // enqueued
    void* first = communicator.Channel(operation);
    EXPECT_EQ(Story(segment), "+");
    communicator.State(first, 22);
    communicator.Stop(first);
    void* second = communicator.Channel(operation);
    communicator.Stop(second);
  }
  EXPECT_EQ(Story(segment), "+-");
  const std::vector<Record> records = segment.Records();
  const Record& start = records[1];  // after "first"
  EXPECT_EQ(start.name, Name(communicator, R"("count": "1024","streamId": "0","dataType": "bfp16")",
                             R"("opName": "ncclAllReduce"|,"seq": "17")"));
  EXPECT_EQ(start.domain, ring::kDomainCommunication);
  EXPECT_EQ(start.kind, ring::kKindCommunication);
  EXPECT_TRUE(start.flags & ring::kFlagStream);
  EXPECT_EQ(records.back().id, start.id);
}
FRESH_TEST(NcclProfilerTest, CollectiveV1) { CollectiveOfVersion(1); }
FRESH_TEST(NcclProfilerTest, CollectiveV2) { CollectiveOfVersion(2); }
FRESH_TEST(NcclProfilerTest, CollectiveV4) { CollectiveOfVersion(4); }
FRESH_TEST(NcclProfilerTest, CollectiveV5) { CollectiveOfVersion(5); }
FRESH_TEST(NcclProfilerTest, CollectiveV6) { CollectiveOfVersion(6); }
FRESH_TEST(NcclProfilerTest, CollectiveV7) { CollectiveOfVersion(7); }

// v3 does not say how many channels there will be: an operation ends when none is left running.
FRESH_TEST(NcclProfilerTest, CollectiveV3) {
  SwitchOn();
  Communicator communicator(3);
  void* operation = communicator.Collective("AllGather", "ncclFloat16", 5, 0, 32);
  void* first = communicator.Channel(operation);
  void* second = communicator.Channel(operation);
  communicator.Stop(first);
  SegmentView segment;
  EXPECT_EQ(Story(segment), "+");
  communicator.Stop(second);
  EXPECT_EQ(Story(segment), "+-");
}

void PointToPointOfVersion(int version) {
  SwitchOn();
  Communicator communicator(version);
  void* send = communicator.PointToPoint("Send", "ncclInt8", 4096, 3);
  void* receive = communicator.PointToPoint("Recv", "ncclInt8", 4096, 5);
  communicator.Stop(send);
  communicator.Stop(receive);
  if (version >= 3) {
    void* sends = communicator.Channel(send);
    void* receives = communicator.Channel(receive);
    communicator.Stop(receives);
    communicator.Stop(sends);
  }
  SegmentView segment;
  const std::vector<Record> records = segment.Records();
  ASSERT_EQ(records.size(), 5u);
  const char fields[] = R"("count": "4096","streamId": "0","dataType": "int8")";
  EXPECT_EQ(records[1].name, Name(communicator, fields, R"("opName": "ncclSend"|,"srcRank": "1","destRank": "3")"));
  EXPECT_EQ(records[2].name, Name(communicator, fields, R"("opName": "ncclRecv"|,"srcRank": "5","destRank": "1")"));
}
FRESH_TEST(NcclProfilerTest, PointToPointV1) { PointToPointOfVersion(1); }
FRESH_TEST(NcclProfilerTest, PointToPointV2) { PointToPointOfVersion(2); }
FRESH_TEST(NcclProfilerTest, PointToPointV3) { PointToPointOfVersion(3); }
FRESH_TEST(NcclProfilerTest, PointToPointV4) { PointToPointOfVersion(4); }
FRESH_TEST(NcclProfilerTest, PointToPointV5) { PointToPointOfVersion(5); }
FRESH_TEST(NcclProfilerTest, PointToPointV6) { PointToPointOfVersion(6); }
FRESH_TEST(NcclProfilerTest, PointToPointV7) { PointToPointOfVersion(7); }

// No kernel channels: the host's time.
FRESH_TEST(NcclProfilerTest, CopyEngineCollective) {
  SwitchOn();
  Communicator old(5);
  EXPECT_EQ(old.mask(), kOn);
  Communicator communicator(6);
  EXPECT_EQ(communicator.mask(), kOn | nccl::kEventCopyEngineCollective);
  Descriptor descriptor = {};
  descriptor.collective = {4, "AllGather", nullptr, nullptr, 8, 0, "ncclFloat32", 0};
  void* operation = communicator.Start(nccl::kEventCopyEngineCollective, descriptor);
  ASSERT_NE(operation, nullptr);
  EXPECT_EQ(old.Start(nccl::kEventCopyEngineCollective, descriptor), nullptr);
  communicator.Stop(operation);
  SegmentView segment;
  EXPECT_EQ(Story(segment), "+-");
}

FRESH_TEST(NcclProfilerTest, OffRecordsNothingAndAsksForNoKernels) {
  SwitchOn();
  SegmentView segment;
  segment.SetGate(ring::kGateAllKinds & ~ring::kGateCommunication);
  Communicator communicator(5);
  EXPECT_EQ(communicator.mask(), kOff);
  EXPECT_EQ(communicator.Collective("AllReduce", "ncclFloat32", 1, 0), nullptr);
  EXPECT_EQ(communicator.PointToPoint("Send", "ncclFloat32", 1, 0), nullptr);
  EXPECT_EQ(communicator.Channel(nullptr), nullptr);
  communicator.Stop(nullptr);
  EXPECT_EQ(Story(segment), "");

  segment.SetGate(ring::kGateCommunication);
  EXPECT_NE(communicator.Collective("AllReduce", "ncclFloat32", 1, 1), nullptr);
  EXPECT_EQ(communicator.mask(), kOn);
  segment.SetGate(0);
  EXPECT_EQ(communicator.Collective("AllReduce", "ncclFloat32", 1, 2), nullptr);
  EXPECT_EQ(communicator.mask(), kOff);
}

FRESH_TEST(NcclProfilerTest, SwitchedOffWhileAnOperationRuns) {
  SwitchOn();
  Communicator communicator(5);
  void* operation = communicator.Collective("AllReduce", "ncclFloat32", 1, 0, 2);
  void* first = communicator.Channel(operation);
  SegmentView segment;
  segment.SetGate(0);
  void* second = communicator.Channel(operation);
  communicator.Stop(first);
  EXPECT_EQ(Story(segment), "+");
  communicator.Stop(second);
  EXPECT_EQ(Story(segment), "+-");
}

// NCCL was not yet asked for kernel events when the operation was called.
FRESH_TEST(NcclProfilerTest, OperationWithoutChannelsIsLeftOut) {
  SwitchOn();
  Communicator communicator(5);
  communicator.Stop(communicator.Collective("AllReduce", "ncclFloat32", 1, 0));
  SegmentView segment;
  EXPECT_EQ(Story(segment), "");
}

// Some versions of NCCL leave an operation out whose group has no handle.
FRESH_TEST(NcclProfilerTest, ParentsHaveHandles) {
  SwitchOn();
  Communicator communicator(7);
  for (uint32_t type :
       {nccl::kEventGroup, nccl::kEventGroupApi, nccl::kEventCollectiveApi, nccl::kEventPointToPointApi}) {
    void* handle = communicator.Start(type, {});
    EXPECT_NE(handle, nullptr) << type;
    communicator.State(handle, 23);
    communicator.Stop(handle);
    EXPECT_EQ(communicator.Channel(handle), nullptr);
  }
  SegmentView segment;
  EXPECT_EQ(Story(segment), "");
  segment.SetGate(0);
  EXPECT_EQ(communicator.Start(nccl::kEventGroup, {}), nullptr);
}

FRESH_TEST(NcclProfilerTest, OtherEventsAreIgnored) {
  SwitchOn();
  Communicator communicator(7);
  for (uint32_t bit : {3, 4, 5, 7, 11, 13, 14, 15, 30}) EXPECT_EQ(communicator.Start(1u << bit, {}), nullptr) << bit;
  communicator.State(nullptr, 19);
  SegmentView segment;
  EXPECT_EQ(Story(segment), "");
}

FRESH_TEST(NcclProfilerTest, LateHandlesAreIgnored) {
  SwitchOn();
  Communicator communicator(5);
  void* old = communicator.Collective("AllReduce", "ncclFloat32", 1, 0);
  void* channel = communicator.Channel(old);
  for (int i = 0; i < 5000; ++i) communicator.Collective("AllReduce", "ncclFloat32", 1, 1);
  SegmentView segment;
  const std::string before = Story(segment);
  communicator.Stop(channel);
  EXPECT_EQ(communicator.Channel(old), nullptr);
  communicator.Stop(old);
  EXPECT_EQ(Story(segment), before);
}

FRESH_TEST(NcclProfilerTest, ChannelsOnSeveralThreads) {
  SwitchOn();
  Communicator communicator(5);
  constexpr int kThreads = 4;
  for (int round = 0; round < 200; ++round) {
    void* operation = communicator.Collective("AllReduce", "ncclFloat32", 1, 0, kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] { communicator.Stop(communicator.Channel(operation)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  SegmentView segment;
  std::string story = Story(segment);
  EXPECT_EQ(std::count(story.begin(), story.end(), '+'), 200);
  EXPECT_EQ(std::count(story.begin(), story.end(), '-'), 200);
}

FRESH_TEST(NcclProfilerTest, StrangeNames) {
  SwitchOn();
  const std::string name = "a\"b\\c\n" + std::string(300, 'x');
  for (const char* text : {name.c_str(), "", static_cast<const char*>(nullptr)}) {
    Communicator communicator(5, text);
    void* operation = communicator.Collective(nullptr, nullptr, ~size_t{0}, ~uint64_t{0});
    communicator.Stop(communicator.Channel(operation));
  }
  SegmentView segment;
  std::vector<std::string> names;
  for (const Record& record : segment.Records()) {
    if (record.type == ring::kRecordRangeStart) names.push_back(record.name);
  }
  ASSERT_EQ(names.size(), 3u);
  EXPECT_NE(names[0].find("\"groupName\": \"a_b_c_xxx"), std::string::npos) << names[0];
  EXPECT_NE(names[1].find("\"groupName\": \"nccl:0000000000000abc\""), std::string::npos) << names[1];
  EXPECT_EQ(names[1], names[2]);
  for (const std::string& text : names) {
    EXPECT_TRUE(text.ends_with("\"seq\": \"18446744073709551615\"}")) << text;
    EXPECT_LE(text.size(), ring::kMaxNameBytes);
  }
}

// Every function and type that v1 has a number for, and numbers of later ones.
FRESH_TEST(NcclProfilerTest, NumbersOfV1) {
  SwitchOn();
  Communicator communicator(1);
  for (const char* function : kFunctions) communicator.Stop(communicator.Collective(function, "ncclInt8", 1, 0));
  for (const char* type : kTypes) communicator.Stop(communicator.Collective("Reduce", type, 1, 0));
  communicator.Stop(communicator.Collective("NewFunction", "ncclNewType", 1, 0));
  std::string functions;
  std::string types;
  for (const Record& record : SegmentView().Records()) {
    if (record.type != ring::kRecordRangeStart) continue;
    const auto value = [&record](const std::string& key) {
      const size_t begin = record.name.find("\"" + key + "\": \"") + key.size() + 5;
      return record.name.substr(begin, record.name.find('"', begin) - begin) + " ";
    };
    functions += value("opName");
    types += value("dataType");
  }
  EXPECT_TRUE(
      functions.starts_with("ncclBroadcast ncclReduce ncclAllGather ncclReduceScatter ncclAllReduce ncclSendRecv "
                            "ncclSend ncclRecv ncclReduce "))
      << functions;
  EXPECT_TRUE(functions.ends_with("ncclReduce ncclUnknown ")) << functions;
  EXPECT_TRUE(types.ends_with("int8 int8 uint8 int32 uint32 int64 uint64 fp16 fp32 fp64 bfp16 fp8e4m3 fp8e5m2 na "))
      << types;
}

// contract: NCCL's guide for plugin authors: only init may fail, and every handle is the plugin's own matter.
void EveryCallbackOfVersion(int version) {
  SwitchOn();
  SegmentView segment;
  for (uint32_t gate :
       {uint32_t{ring::kGateCommunication}, uint32_t{ring::kGateAllKinds}, uint32_t{ring::kGateForward}, uint32_t{0}}) {
    segment.SetGate(gate);
    Communicator communicator(version);
    const nccl::ProfilerV2& profiler = communicator.profiler();
    const bool on = (gate & ring::kGateCommunication) != 0;
    EXPECT_EQ((communicator.mask() & nccl::kEventKernelChannel) != 0, on && version >= 3);
    EXPECT_EQ(communicator.mask() & ~(kOn | nccl::kEventCopyEngineCollective), 0);
    std::vector<void*> handles = {nullptr};
    for (int bit = 0; bit < (version >= 5 ? 20 : 8); ++bit) {
      const uint32_t type = 1u << bit;
      Descriptor empty = {};
      void* handle = type == nccl::kEventCollective     ? communicator.Collective("AllReduce", "ncclInt8", 1, 0)
                     : type == nccl::kEventPointToPoint ? communicator.PointToPoint("Send", "ncclInt8", 1, 0)
                                                        : communicator.Start(type, empty);
      EXPECT_TRUE(on || handle == nullptr) << bit;
      handles.push_back(handle);
    }
    EXPECT_EQ(on, handles[2] != nullptr && handles[3] != nullptr);
    for (void* handle : handles) {
      for (int state = 0; state < 40; ++state) communicator.State(handle, state);
      communicator.Stop(communicator.Channel(handle));
      communicator.Stop(handle);
      communicator.Stop(handle);  // again
    }
    // No type, several types, all types.
    for (uint32_t type : {0u, 3u, ~0u}) communicator.Stop(communicator.Start(type, {}));
    // A communicator whose init failed.
    Descriptor descriptor = {};
    void* handle = &descriptor;
    EXPECT_EQ(profiler.start_event(nullptr, &handle, &descriptor), 0);
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(profiler.start_event(communicator.context(), nullptr, &descriptor), 0);
    EXPECT_EQ(profiler.start_event(communicator.context(), &handle, nullptr), 0);
    EXPECT_EQ(profiler.finalize(nullptr), 0);
  }
  const std::string story = Story(segment);
  EXPECT_EQ(std::count(story.begin(), story.end(), '+'), std::count(story.begin(), story.end(), '-'));
}
FRESH_TEST(NcclProfilerTest, EveryCallbackV1) { EveryCallbackOfVersion(1); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV2) { EveryCallbackOfVersion(2); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV3) { EveryCallbackOfVersion(3); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV4) { EveryCallbackOfVersion(4); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV5) { EveryCallbackOfVersion(5); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV6) { EveryCallbackOfVersion(6); }
FRESH_TEST(NcclProfilerTest, EveryCallbackV7) { EveryCallbackOfVersion(7); }

// Many communicators, each with its own thread that calls and one that sees the channels, while the switch turns.
FRESH_TEST(NcclProfilerTest, CommunicatorsThreadsAndSwitching) {
  SwitchOn();
  Symbol(7);  // loaded before there are threads, as NCCL does under its lock; ThreadSanitizer does not know dlopen's
  std::atomic<bool> done{false};
  std::thread switching([&done] {
    SegmentView segment;
    for (uint32_t i = 0; !done; ++i) segment.SetGate(i % 2 == 0 ? 0u : uint32_t{ring::kGateCommunication});
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number] {
      Communicator communicator(1 + number % 7);
      std::vector<void*> handles(500);
      for (void*& handle : handles) {
        handle = communicator.Collective("AllReduce", "ncclFloat32", 1, 0, 2);
        communicator.Stop(handle);
      }
      std::thread progress([&] {
        for (void* handle : handles) {
          void* first = communicator.Channel(handle);
          void* second = communicator.Channel(handle);
          communicator.Stop(first);
          communicator.Stop(second);
        }
      });
      for (int i = 0; i < 500; ++i) communicator.Stop(communicator.PointToPoint("Recv", "ncclFloat32", 1, 2));
      progress.join();
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  switching.join();
  SegmentView segment;
  std::string problem;
  segment.Records(&problem);
  EXPECT_EQ(problem, "");
  segment.SetGate(ring::kGateCommunication);
  Communicator after(7);
  void* handle = after.Collective("AllReduce", "ncclFloat32", 77, 0);
  after.Stop(after.Channel(handle));
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
}

FRESH_TEST(NcclProfilerTest, InitFailsWithoutAPlace) {
  const auto& profiler = *static_cast<const nccl::ProfilerV5*>(Symbol(5));
  int mask = 0;
  void* context = nullptr;
  EXPECT_NE(profiler.init(nullptr, 1, &mask, "x", 1, 1, 0, nullptr), 0);
  EXPECT_NE(profiler.init(&context, 1, nullptr, "x", 1, 1, 0, nullptr), 0);
}

}  // namespace
}  // namespace taskd::worker
