// NVTX marks and ranges, through a client that does what NVTX's headers do: it loads the library that
// NVTX_INJECTION64_PATH names and calls what that left in its slots.
#include "nvtx.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using nvtx::EventAttributes;
using testing::Record;
using testing::SegmentView;

void NotStarted() { ADD_FAILURE() << "NVTX's own function was called"; }

// One NVTX instance: a library that was built with NVTX.
template <int kNumber>
class Instance {
 public:
  // As at the first NVTX call. What the tool returned; the slots that it left alone are null afterwards.
  static int Start() {
    for (unsigned i = 0; i < kCoreSlots; ++i) core_[i] = NotStarted, core_table_[i] = i == 0 ? nullptr : &core_[i];
    for (unsigned i = 0; i < kCore2Slots; ++i) core2_[i] = NotStarted, core2_table_[i] = i == 0 ? nullptr : &core2_[i];
    void* library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    if (library == nullptr) return -1;
    auto* initialize = reinterpret_cast<nvtx::InitializeInjection>(dlsym(library, "InitializeInjectionNvtx2"));
    if (initialize == nullptr) return -2;
    const int result = initialize(GetExportTable);
    for (nvtx::Function& slot : core_) slot = slot == NotStarted ? nullptr : slot;
    for (nvtx::Function& slot : core2_) slot = slot == NotStarted ? nullptr : slot;
    return result;
  }

  template <typename Signature>
  static Signature* Core(nvtx::CoreFunction function) {
    return reinterpret_cast<Signature*>(core_[function]);
  }
  template <typename Signature>
  static Signature* Core2(nvtx::Core2Function function) {
    return reinterpret_cast<Signature*>(core2_[function]);
  }

  static void Mark(const char* name) { Core<void(const char*)>(nvtx::kMarkA)(name); }
  static int Push(const char* name) { return Core<int(const char*)>(nvtx::kRangePushA)(name); }
  static int Pop() { return Core<int()>(nvtx::kRangePop)(); }
  static nvtx::RangeId RangeStart(const char* name) {
    return Core<nvtx::RangeId(const char*)>(nvtx::kRangeStartA)(name);
  }
  static void RangeEnd(nvtx::RangeId id) { Core<void(nvtx::RangeId)>(nvtx::kRangeEnd)(id); }
  static nvtx::Domain CreateDomain(const char* name) {
    return Core2<nvtx::Domain(const char*)>(nvtx::kDomainCreateA)(name);
  }
  static nvtx::String Register(nvtx::Domain domain, const char* text) {
    return Core2<nvtx::String(nvtx::Domain, const char*)>(nvtx::kDomainRegisterStringA)(domain, text);
  }
  static int DomainPush(nvtx::Domain domain, const EventAttributes& event) {
    return Core2<int(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainRangePushEx)(domain, &event);
  }
  static int DomainPop(nvtx::Domain domain) { return Core2<int(nvtx::Domain)>(nvtx::kDomainRangePop)(domain); }

  static inline unsigned core_entries_ = 16;
  static inline bool has_core2_ = true;
  static inline uint32_t tool_version_ = 0;

 private:
  static constexpr unsigned kCoreSlots = 16;
  static constexpr unsigned kCore2Slots = 16;

  static int GetModule(int module, nvtx::FunctionTable* table, unsigned* entries) {
    if (module == nvtx::kModuleCore) {
      *table = core_table_;
      *entries = core_entries_;
      return 1;
    }
    if (module == nvtx::kModuleCore2 && has_core2_) {
      *table = core2_table_;
      *entries = kCore2Slots;
      return 1;
    }
    return 0;
  }
  static const void* GetExportTable(uint32_t table) {
    static const nvtx::CallbackTable callbacks = {sizeof(callbacks), GetModule};
    static const nvtx::VersionTable version = {sizeof(version), 3, 0, [](uint32_t tool) { tool_version_ = tool; }};
    if (table == nvtx::kExportCallbacks) return &callbacks;
    return table == nvtx::kExportVersion ? &version : nullptr;
  }

  static inline nvtx::Function core_[kCoreSlots];
  static inline nvtx::Function core2_[kCore2Slots];
  static inline nvtx::Function* core_table_[kCoreSlots];
  static inline nvtx::Function* core2_table_[kCore2Slots];
};

using Nvtx = Instance<0>;

void Inject() { setenv("NVTX_INJECTION64_PATH", TASKD_SDK_PATH, 1); }

EventAttributes Event() {
  EventAttributes event = {};
  event.version = 3;
  event.size = sizeof(event);
  return event;
}

EventAttributes Event(const char* name) {
  EventAttributes event = Event();
  event.message_type = nvtx::kMessageAscii;
  event.message.ascii = name;
  return event;
}

EventAttributes Event(nvtx::String string) {
  EventAttributes event = Event();
  event.message_type = nvtx::kMessageRegistered;
  event.message.registered = string;
  return event;
}

std::string DomainName(SegmentView& segment, const Record& record) {
  return segment.header().domain_names[record.domain];
}

// "+name" of a start, "-name" of an end, "name" of a mark.
std::vector<std::string> Story(SegmentView& segment) {
  std::vector<std::string> story;
  const std::vector<Record> records = segment.Records();
  for (const Record& record : records) {
    if (record.type == ring::kRecordRangeStart) story.push_back("+" + record.name);
    if (record.type == ring::kRecordMark) story.push_back(record.name);
    if (record.type != ring::kRecordRangeEnd) continue;
    std::string name = "?";
    for (const Record& start : records) {
      if (start.id == record.id && start.type == ring::kRecordRangeStart) name = start.name;
    }
    story.push_back("-" + name);
  }
  return story;
}

using Lines = std::vector<std::string>;

FRESH_TEST(NvtxTest, KindsOfTorchRanges) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  EXPECT_NE(Nvtx::tool_version_, 0u);
  EXPECT_TRUE(testing::SegmentDescriptors().empty());  // nothing before the first mark
  const struct {
    const char* name;
    ring::Kind kind;
  } names[] = {{"step 17", ring::kKindStep},          {"forward", ring::kKindForward},
               {"dataloader", ring::kKindDataLoader}, {"save_checkpoint", ring::kKindSaveCheckpoint},
               {"my_range", ring::kKindOther},        {"step by step", ring::kKindOther}};
  for (const auto& name : names) {
    Nvtx::Push(name.name);
    SegmentView segment;
    EXPECT_EQ(segment.Last().name, name.name);
    EXPECT_EQ(segment.Last().kind, name.kind) << name.name;
    EXPECT_EQ(segment.Last().domain, ring::kDomainDefault);
    const uint64_t id = segment.Last().id;
    Nvtx::Pop();
    EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
    EXPECT_EQ(segment.Last().id, id);
  }
}

FRESH_TEST(NvtxTest, PushAndPopNest) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  EXPECT_LT(Nvtx::Pop(), 0);
  EXPECT_EQ(Nvtx::Push("a"), 0);
  EXPECT_EQ(Nvtx::Push("b"), 1);
  EXPECT_EQ(Nvtx::Pop(), 1);
  EXPECT_EQ(Nvtx::Push("c"), 1);
  EXPECT_EQ(Nvtx::Pop(), 1);
  EXPECT_EQ(Nvtx::Pop(), 0);
  EXPECT_LT(Nvtx::Pop(), 0);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+a", "+b", "-b", "+c", "-c", "-a"}));
}

FRESH_TEST(NvtxTest, DeepRangesAreCountedAndTheUpperOnesRecorded) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  constexpr int kDeep = 1000;
  for (int i = 0; i < kDeep; ++i) EXPECT_EQ(Nvtx::Push(i == 0 ? "top" : "deep"), i);
  for (int i = kDeep; i-- > 0;) EXPECT_EQ(Nvtx::Pop(), i);
  EXPECT_LT(Nvtx::Pop(), 0);
  SegmentView segment;
  const Lines story = Story(segment);
  EXPECT_EQ(story.front(), "+top");
  EXPECT_EQ(story.back(), "-top");
  EXPECT_EQ(story.size() % 2, 0u);
}

FRESH_TEST(NvtxTest, OffIsCountedAndOnAgainInTheMiddle) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  Nvtx::Mark("first");
  SegmentView segment;
  segment.SetGate(0);
  EXPECT_EQ(Nvtx::Push("off"), 0);
  EXPECT_EQ(Nvtx::RangeStart("off"), 0u);
  segment.SetGate(ring::kGateAllKinds);
  EXPECT_EQ(Nvtx::Push("on"), 1);
  segment.SetGate(0);
  EXPECT_EQ(Nvtx::Pop(), 1);  // its start was recorded
  segment.SetGate(ring::kGateAllKinds);
  EXPECT_EQ(Nvtx::Pop(), 0);
  EXPECT_EQ(Story(segment), (Lines{"first", "+on", "-on"}));
}

FRESH_TEST(NvtxTest, OneKindOff) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  Nvtx::Mark("first");
  SegmentView segment;
  segment.SetGate(ring::kGateAllKinds & ~ring::kGateForward);
  Nvtx::Push("step 1");
  Nvtx::Push("forward");
  Nvtx::Pop();
  Nvtx::Pop();
  EXPECT_EQ(Story(segment), (Lines{"first", "+step 1", "-step 1"}));
}

FRESH_TEST(NvtxTest, EachThreadHasItsStack) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  EXPECT_EQ(Nvtx::Push("main"), 0);
  std::thread([] {
    EXPECT_LT(Nvtx::Pop(), 0);
    EXPECT_EQ(Nvtx::Push("other"), 0);
    EXPECT_EQ(Nvtx::Pop(), 0);
  }).join();
  EXPECT_EQ(Nvtx::Pop(), 0);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+main", "-main", "+other", "-other"}));  // by thread
}

FRESH_TEST(NvtxTest, StartEndAlsoByAnotherThread) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  const nvtx::RangeId id = Nvtx::RangeStart("step 3");
  EXPECT_NE(id, 0u);
  std::thread([id] { Nvtx::RangeEnd(id); }).join();
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+step 3", "-step 3"}));
}

FRESH_TEST(NvtxTest, AllKindsOfMessages) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  auto* mark_ex = Nvtx::Core<void(const EventAttributes*)>(nvtx::kMarkEx);
  auto* mark_w = Nvtx::Core<void(const wchar_t*)>(nvtx::kMarkW);
  const EventAttributes ascii = Event("ascii");
  mark_ex(&ascii);
  EventAttributes wide = Event();
  wide.message_type = nvtx::kMessageUnicode;
  wide.message.unicode = L"w\u00e4ide \U0001f600";
  mark_ex(&wide);
  const EventAttributes registered = Event(Nvtx::Register(nullptr, "registered"));
  mark_ex(&registered);
  // A handle of nobody's, no message, no attributes, attributes of a version that had no message.
  const EventAttributes foreign = Event(reinterpret_cast<nvtx::String>(uintptr_t{0xdeadbeef}));
  mark_ex(&foreign);
  const EventAttributes none = Event();
  mark_ex(&none);
  mark_ex(nullptr);
  EventAttributes small = Event("small");
  small.size = 16;
  mark_ex(&small);
  mark_w(L"step 5");
  mark_w(nullptr);
  Nvtx::Mark(nullptr);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"ascii", "w\u00e4ide \U0001f600", "registered", "unnamed", "unnamed", "step 5"}));
  EXPECT_EQ(segment.Last().kind, ring::kKindStep);
}

// A thread knows the short names that it pushed before: each record is whole all the same.
FRESH_TEST(NvtxTest, KnownNames) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  nvtx::Domain lib = Nvtx::CreateDomain("lib");
  nvtx::Domain communication = Nvtx::CreateDomain("communication");
  // Of all lengths about the limit, several of one place, and buffers that go on differently behind the name.
  const std::vector<std::string> names = {
      "",         "a",          "step 1",          "step 2",          "forward",          "forwarD",
      "eight by", "dataloader", "save_checkpoint", "save_checkpoinT", "exactly 16 bytes", "more than sixteen bytes"};
  Nvtx::Mark("first");
  SegmentView segment;
  char buffer[64];
  for (int round = 0; round < 3; ++round) {
    for (const std::string& name : names) {
      for (nvtx::Domain domain : {nvtx::Domain{nullptr}, lib, communication}) {
        memset(buffer, 'x' + round, sizeof(buffer));
        memcpy(buffer, name.c_str(), name.size() + 1);
        Nvtx::DomainPush(domain, Event(buffer));
        const Record start = segment.Last();
        EXPECT_EQ(start.type, ring::kRecordRangeStart);
        EXPECT_EQ(start.name, name);
        EXPECT_EQ(DomainName(segment, start), domain == nullptr ? "default" : domain == lib ? "lib" : "communication");
        const uint32_t kind = domain == communication     ? ring::kKindCommunication
                              : name.starts_with("step ") ? ring::kKindStep
                              : name == "forward"         ? ring::kKindForward
                              : name == "dataloader"      ? ring::kKindDataLoader
                              : name == "save_checkpoint" ? ring::kKindSaveCheckpoint
                                                          : ring::kKindOther;
        EXPECT_EQ(start.kind, kind) << name;
        EXPECT_EQ(start.tid, static_cast<uint32_t>(gettid()));
        Nvtx::DomainPop(domain);
        EXPECT_EQ(segment.Last().id, start.id);
        EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
      }
    }
  }
  std::string problem;
  EXPECT_EQ(segment.Records(&problem).size(), 1 + 2 * 3 * 3 * names.size());
  EXPECT_EQ(problem, "");
  // Known, and then off: of one kind, of all.
  segment.SetGate(ring::kGateAllKinds & ~ring::kGateForward);
  const uint64_t last = segment.Last().id;
  Nvtx::Push("forward");
  Nvtx::Pop();
  segment.SetGate(0);
  Nvtx::Push("step 1");
  Nvtx::Pop();
  EXPECT_EQ(segment.Last().id, last);
  segment.SetGate(ring::kGateAllKinds);
  Nvtx::Push("forward");
  EXPECT_EQ(segment.Last().name, "forward");
  EXPECT_EQ(segment.Last().flags, 0u);  // decided by now
}

FRESH_TEST(NvtxTest, KnownNamesAtTheEndOfAPage) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  const long page = sysconf(_SC_PAGESIZE);
  char* pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  for (const char* name : {"forward", "", "dataloader", "save_checkpoint", "a name of sixteen and more"}) {
    for (int i = 0; i < 2; ++i) {
      Nvtx::Push(name);  // known from here
      Nvtx::Pop();
      const size_t bytes = strlen(name) + 1;
      char* end = pages + page - bytes;
      memcpy(end, name, bytes);
      Nvtx::Push(end);
      EXPECT_EQ(SegmentView().Last().name, name);
      Nvtx::Pop();
    }
  }
}

// A child has another thread id, and its parent's names.
FRESH_TEST(NvtxTest, KnownNamesInAForkedChild) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  for (int i = 0; i < 2; ++i) {
    Nvtx::Push("forward");
    Nvtx::Pop();
  }
  EXPECT_EQ(testing::RunForked([] {
              Nvtx::Push("forward");  // records nothing
              Nvtx::Pop();
              if (!testing::SegmentDescriptors().empty()) return 1;
              if (taskd_worker_init(1, 0, 0) != 0) return 2;
              SegmentView segment;
              for (int i = 0; i < 3; ++i) {
                Nvtx::Push("forward");
                if (segment.Last().name != "forward" || segment.Last().tid != static_cast<uint32_t>(gettid())) return 3;
                Nvtx::Pop();
                if (segment.Last().type != ring::kRecordRangeEnd) return 4;
              }
              return 0;
            }),
            0);
}

// Ranges of another copy of the library: what the program preloads and what it injects may be two files.
FRESH_TEST(NvtxTest, InjectedFromAnotherFile) {
  const std::string copy = testing::FreshFolder() + "/libtaskd.so";
  std::filesystem::copy_file(TASKD_SDK_PATH, copy);
  setenv("NVTX_INJECTION64_PATH", copy.c_str(), 1);
  ASSERT_EQ(Nvtx::Start(), 1);
  nvtx::Domain lib = Nvtx::CreateDomain("lib");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Nvtx::Push("forward"), 0);
    EXPECT_EQ(Nvtx::DomainPush(lib, Event("x")), 0);
    EXPECT_EQ(Nvtx::DomainPop(lib), 0);
    EXPECT_EQ(Nvtx::Pop(), 0);
    Nvtx::RangeEnd(Nvtx::RangeStart("save_checkpoint"));
  }
  EXPECT_EQ(testing::SegmentDescriptors().size(), 1u);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+forward", "+x", "-x", "-forward", "+save_checkpoint", "-save_checkpoint",
                                   "+forward", "+x", "-x", "-forward", "+save_checkpoint", "-save_checkpoint"}));
  EXPECT_EQ(DomainName(segment, segment.Records()[1]), "lib");
}

FRESH_TEST(NvtxTest, LongNames) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  const std::string name(1000, 'n');
  Nvtx::Mark(name.c_str());
  SegmentView segment;
  EXPECT_EQ(segment.Last().name, name.substr(0, ring::kMaxNameBytes));
  auto* mark_ex = Nvtx::Core<void(const EventAttributes*)>(nvtx::kMarkEx);
  const EventAttributes registered = Event(Nvtx::Register(nullptr, name.c_str()));
  mark_ex(&registered);
  EXPECT_EQ(segment.Last().name, name.substr(0, ring::kMaxNameBytes));
  EXPECT_TRUE(segment.Last().flags & ring::kFlagTruncated);
  // Three bytes each: cut where a character ends.
  const std::wstring wide(1000, L'\u20ac');
  Nvtx::Core<void(const wchar_t*)>(nvtx::kMarkW)(wide.c_str());
  EXPECT_EQ(segment.Last().name.size(), ring::kMaxNameBytes / 3 * 3);
  Nvtx::CreateDomain(name.c_str());
}

FRESH_TEST(NvtxTest, MoreStringsThanAreKept) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  const EventAttributes first = Event(Nvtx::Register(nullptr, "the first"));
  nvtx::String last = nullptr;
  for (int i = 0; i < 20'000; ++i) last = Nvtx::Register(nullptr, ("string " + std::to_string(i)).c_str());
  EXPECT_EQ(last, nullptr);
  auto* mark_ex = Nvtx::Core<void(const EventAttributes*)>(nvtx::kMarkEx);
  const EventAttributes unknown = Event(last);
  mark_ex(&first);
  mark_ex(&unknown);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"the first", "unnamed"}));
}

FRESH_TEST(NvtxTest, DomainsHaveStacksOfTheirOwn) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  nvtx::Domain a = Nvtx::CreateDomain("lib a");
  nvtx::Domain b = Nvtx::CreateDomain("lib b");
  EXPECT_EQ(Nvtx::DomainPush(a, Event("a0")), 0);
  EXPECT_EQ(Nvtx::DomainPush(b, Event("b0")), 0);
  EXPECT_EQ(Nvtx::Push("d0"), 0);
  EXPECT_EQ(Nvtx::DomainPush(a, Event("a1")), 1);
  EXPECT_EQ(Nvtx::DomainPop(b), 0);
  EXPECT_LT(Nvtx::DomainPop(b), 0);
  EXPECT_EQ(Nvtx::DomainPop(a), 1);
  EXPECT_EQ(Nvtx::Pop(), 0);
  EXPECT_EQ(Nvtx::DomainPop(a), 0);
  EXPECT_EQ(Nvtx::DomainPush(nullptr, Event("d1")), 0);
  EXPECT_EQ(Nvtx::Pop(), 0);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+a0", "+b0", "+d0", "+a1", "-b0", "-a1", "-d0", "-a0", "+d1", "-d1"}));
  const std::vector<Record> records = segment.Records();
  EXPECT_EQ(DomainName(segment, records[0]), "lib a");
  EXPECT_EQ(DomainName(segment, records[1]), "lib b");
  EXPECT_EQ(DomainName(segment, records[2]), "default");
}

FRESH_TEST(NvtxTest, DomainRangesAndMarks) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  nvtx::Domain domain = Nvtx::Core2<nvtx::Domain(const wchar_t*)>(nvtx::kDomainCreateW)(L"wide");
  const EventAttributes event = Event("x");
  const nvtx::RangeId id =
      Nvtx::Core2<nvtx::RangeId(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainRangeStartEx)(domain, &event);
  Nvtx::Core2<void(nvtx::Domain, nvtx::RangeId)>(nvtx::kDomainRangeEnd)(domain, id);
  Nvtx::Core2<void(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainMarkEx)(domain, &event);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+x", "-x", "x"}));
  EXPECT_EQ(DomainName(segment, segment.Last()), "wide");
}

FRESH_TEST(NvtxTest, SeveralInstancesShareAThreadsStack) {
  Inject();
  ASSERT_EQ(Nvtx::Start(), 1);
  ASSERT_EQ(Instance<1>::Start(), 1);
  EXPECT_EQ(Nvtx::Push("outer"), 0);
  EXPECT_EQ(Instance<1>::Push("inner"), 1);
  EXPECT_EQ(Nvtx::Pop(), 1);
  EXPECT_EQ(Instance<1>::Pop(), 0);
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+outer", "+inner", "-inner", "-outer"}));
}

FRESH_TEST(NvtxTest, OldAndBrokenNvtx) {
  Inject();
  EXPECT_EQ(InitializeInjectionNvtx2(nullptr), 0);
  EXPECT_EQ(InitializeInjectionNvtx2([](uint32_t) -> const void* { return nullptr; }), 0);
  Nvtx::has_core2_ = false;
  Nvtx::core_entries_ = nvtx::kRangeStartA + 1;
  ASSERT_EQ(Nvtx::Start(), 1);
  EXPECT_NE(Nvtx::Core<void()>(nvtx::kRangeStartA), nullptr);
  EXPECT_EQ(Nvtx::Core<void()>(nvtx::kRangePushA), nullptr);
}

FRESH_TEST(NvtxTest, UsersNames) {
  Inject();
  setenv("TASKD_MARK_NAMES", "forward=my_fwd*;step=iter *;dataloader=next_batch;communication=all_reduce*", 1);
  ASSERT_EQ(Nvtx::Start(), 1);
  nvtx::Domain domain = Nvtx::CreateDomain("lib");
  Nvtx::Push("iter 12");
  Nvtx::DomainPush(domain, Event("my_fwd_3"));
  Nvtx::DomainPush(domain, Event(Nvtx::Register(domain, "all_reduce grads")));
  Nvtx::DomainPop(domain);
  Nvtx::DomainPop(domain);
  Nvtx::Pop();
  Nvtx::Mark("next_batch");
  Nvtx::DomainPush(domain, Event("its own"));
  SegmentView segment;
  const std::string json = R"({"count": "0","dataType": "na","groupName": "user","opName": "all_reduce grads"})";
  EXPECT_EQ(Story(segment),
            (Lines{"+step 12", "+forward", "+" + json, "-" + json, "-forward", "-step 12", "dataloader", "+its own"}));
  const std::vector<Record> records = segment.Records();
  EXPECT_EQ(records[0].kind, ring::kKindStep);
  EXPECT_EQ(records[1].kind, ring::kKindForward);
  EXPECT_EQ(DomainName(segment, records[1]), "default");
  EXPECT_EQ(records[2].kind, ring::kKindCommunication);
  EXPECT_TRUE(records[2].flags & ring::kFlagStream);
  EXPECT_EQ(records[6].kind, ring::kKindDataLoader);
  EXPECT_EQ(DomainName(segment, segment.Last()), "lib");
}

#ifdef TASKD_NVTX_TOOL_PATH
std::string ToolCalls() {
  void* tool = dlopen(TASKD_NVTX_TOOL_PATH, RTLD_LAZY | RTLD_NOLOAD);
  if (tool == nullptr) return "(not loaded)";
  return reinterpret_cast<const char* (*)()>(dlsym(tool, "tool_calls"))();
}

FRESH_TEST(NvtxChainTest, EveryCallGoesToBoth) {
  Inject();
  setenv("TASKD_NVTX_CHAIN", TASKD_NVTX_TOOL_PATH, 1);
  ASSERT_EQ(Nvtx::Start(), 1);
  Nvtx::Mark("m");
  EXPECT_EQ(Nvtx::Push("p"), 10);  // the other tool's levels
  EXPECT_EQ(Nvtx::Pop(), 10);
  const nvtx::RangeId id = Nvtx::RangeStart("r");
  EXPECT_EQ(id, 100u);  // the other tool's id
  Nvtx::RangeEnd(id);
  nvtx::Domain domain = Nvtx::CreateDomain("lib");
  EXPECT_EQ(domain, reinterpret_cast<nvtx::Domain>(0x1000));
  nvtx::String string = Nvtx::Register(domain, "text");
  EXPECT_EQ(string, reinterpret_cast<nvtx::String>(0x2000));
  EXPECT_EQ(Nvtx::DomainPush(domain, Event(string)), 0);
  EXPECT_EQ(Nvtx::DomainPop(domain), 0);  // which the other tool has not: ours
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"m", "+p", "-p", "+r", "-r", "+text", "-text"}));
  EXPECT_EQ(DomainName(segment, segment.Records()[5]), "lib");
  EXPECT_EQ(ToolCalls(),
            "init() mark(m) push(p) pop() start(r) end(100) domain(lib) string(text) domain_push(0x1000,0x2000) ");
}

// Payload schemas, counters, memory: not ours, and not in its way.
FRESH_TEST(NvtxChainTest, ExtensionsAreTheOtherTools) {
  Inject();
  int module = 0;
  EXPECT_EQ(InitializeInjectionNvtxExtension(&module), 0);
  setenv("TASKD_NVTX_CHAIN", TASKD_NVTX_TOOL_PATH, 1);
  EXPECT_EQ(InitializeInjectionNvtxExtension(&module), 1);
  EXPECT_EQ(ToolCalls(), "extension() ");
  setenv("TASKD_NVTX_CHAIN", "libc.so.6", 1);
  EXPECT_EQ(InitializeInjectionNvtxExtension(&module), 0);
}

FRESH_TEST(NvtxChainTest, OffForUsTheOtherToolGoesOn) {
  Inject();
  setenv("TASKD_NVTX_CHAIN", TASKD_NVTX_TOOL_PATH, 1);
  ASSERT_EQ(Nvtx::Start(), 1);
  Nvtx::Mark("m");
  SegmentView segment;
  segment.SetGate(0);
  const nvtx::RangeId id = Nvtx::RangeStart("r");
  EXPECT_EQ(id, 100u);
  segment.SetGate(ring::kGateAllKinds);
  Nvtx::RangeEnd(id);
  EXPECT_EQ(Story(segment), (Lines{"m"}));
  EXPECT_EQ(ToolCalls(), "init() mark(m) start(r) end(100) ");
}

FRESH_TEST(NvtxChainTest, AllInstances) {
  Inject();
  setenv("TASKD_NVTX_CHAIN", TASKD_NVTX_TOOL_PATH, 1);
  ASSERT_EQ(Nvtx::Start(), 1);
  ASSERT_EQ(Instance<1>::Start(), 1);
  Instance<1>::Mark("second");
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"second"}));
  EXPECT_EQ(ToolCalls(), "init() init() mark(second) ");
}
#endif

FRESH_TEST(NvtxChainTest, ToolsThatAreNone) {
  Inject();
  for (const char* path : {"/nonexistent/libtool.so", "libc.so.6", TASKD_SDK_PATH}) {
    setenv("TASKD_NVTX_CHAIN", path, 1);
    ASSERT_EQ(Nvtx::Start(), 1) << path;
    EXPECT_EQ(Nvtx::Push("a"), 0);
    EXPECT_EQ(Nvtx::Pop(), 0);
  }
  SegmentView segment;
  EXPECT_EQ(Story(segment), (Lines{"+a", "-a", "+a", "-a", "+a", "-a"}));
}

}  // namespace
}  // namespace taskd::worker
