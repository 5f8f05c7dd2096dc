// Marks from MSPTI, against the fake of testing/fake_mspti.h: the contract's rules of records, buffers, switching, end.
#include "mspti.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "testing/fake_mspti.h"
#include "testing/fresh_process.h"

namespace taskd {
namespace {

using testing::WaitFor;

// The library under test finds the fake as it finds the real one, so the test does not link it either.
struct Fake {
  decltype(&FakeMark) mark;
  decltype(&FakeRangeStart) range_start;
  decltype(&FakeRangeEnd) range_end;
  decltype(&FakeAppend) append;
  decltype(&FakeFail) fail;
  decltype(&FakeOtherSubscriber) other_subscriber;
  decltype(&FakeHoldHandOver) hold_hand_over;
  decltype(&FakeHandOverHeld) hand_over_held;
  decltype(&FakeSetTraits) set_traits;
  decltype(&FakeTakeLog) take_log;
  decltype(&FakeGetStats) get_stats;

  Fake() {
    void* library = dlopen(TASKD_FAKE_MSPTI, RTLD_NOW);
    EXPECT_NE(library, nullptr) << dlerror();
    auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      EXPECT_NE(function, nullptr) << name;
    };
    find(mark, "FakeMark");
    find(range_start, "FakeRangeStart");
    find(range_end, "FakeRangeEnd");
    find(append, "FakeAppend");
    find(fail, "FakeFail");
    find(other_subscriber, "FakeOtherSubscriber");
    find(hold_hand_over, "FakeHoldHandOver");
    find(hand_over_held, "FakeHandOverHeld");
    find(set_traits, "FakeSetTraits");
    find(take_log, "FakeTakeLog");
    find(get_stats, "FakeGetStats");
  }
  std::string Log() const {
    static char text[1 << 16];
    take_log(text, sizeof(text));
    return text;
  }
  FakeStats Stats() const {
    FakeStats stats;
    get_stats(&stats);
    return stats;
  }
};

struct Mark {
  uint32_t flag;
  uint32_t source;
  uint64_t timestamp_ns;
  uint64_t id;
  uint32_t process_id;
  uint32_t thread_id;
  std::string name;
  std::string domain;
  uint32_t wanted;
};

// What the source gave, and the word that tells it what is wanted.
class Sink {
 public:
  uint32_t wanted = 0;
  uint64_t dropped = 0;
  std::string missing;
  std::atomic<int64_t> room{INT64_MAX};

  MsptiConfig Config() {
    return {.wanted = [](void* self) { return __atomic_load_n(&static_cast<Sink*>(self)->wanted, __ATOMIC_ACQUIRE); },
            .emit = [](void* self, const MsptiMark* mark) { return static_cast<Sink*>(self)->Take(*mark); },
            .answer = [](void* self, const MsptiAnswer* answer) { static_cast<Sink*>(self)->Answer(*answer); },
            .unusable = [](void* self, const char* missing) { static_cast<Sink*>(self)->missing = missing; },
            .context = this,
            .wake_word = &wanted,
            .dropped = &dropped};
  }
  void Want(uint32_t domains) {
    __atomic_store_n(&wanted, domains, __ATOMIC_RELEASE);
    MsptiWake();
  }
  std::vector<Mark> marks() {
    std::lock_guard lock(mutex_);
    return marks_;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return marks_.size();
  }
  // The answers since the last call, as "code/error".
  std::string TakeAnswers() {
    std::lock_guard lock(mutex_);
    return std::exchange(answers_, "");
  }

 private:
  int Take(const MsptiMark& mark) {
    if (room.load() <= 0) return 0;
    room.fetch_sub(1);
    std::lock_guard lock(mutex_);
    marks_.push_back({mark.flag, mark.source, mark.timestamp_ns, mark.id, mark.process_id, mark.thread_id, mark.name,
                      mark.domain, mark.wanted});
    return 1;
  }
  void Answer(const MsptiAnswer& answer) {
    std::lock_guard lock(mutex_);
    answers_ += (answers_.empty() ? "" : " ") + std::to_string(answer.code) + "/" + std::to_string(answer.error);
  }

  std::mutex mutex_;
  std::vector<Mark> marks_;
  std::string answers_;
};

MsptiStats Stats() {
  MsptiStats stats;
  MsptiGetStats(&stats);
  return stats;
}

// A source that is stepped by hand, at times that the test chooses.
class Stepped {
 public:
  explicit Stepped(uint32_t wanted) {
    const MsptiConfig config = sink.Config();
    EXPECT_EQ(MsptiOpen(&config, nullptr), 0);
    sink.wanted = wanted;
    Step();
  }
  // Far enough for the next flush; reads all that is there.
  int Step(int64_t pass_ms = 1000) {
    now_ms_ += pass_ms;
    int wait_ms = 0;
    while ((wait_ms = MsptiStep(now_ms_)) == 0) {
    }
    return wait_ms;
  }

  Fake fake;
  Sink sink;

 private:
  int64_t now_ms_ = 1'000'000;
};

constexpr uint32_t kBoth = kMsptiDefault | kMsptiCommunication;
// Records in a buffer when it is handed over: the first size at or above 80 %.
constexpr uint64_t kFull = (kMsptiBufferBytes * 8 / 10 + kMsptiMarkerBytes - 1) / kMsptiMarkerBytes;

struct __attribute__((packed)) Packed {
  uint32_t kind = 1, flag = 16, source = 0;
  uint64_t timestamp_ns = 1745567190000000000, id = 7;
  uint32_t process_id = 123, thread_id = 456;
  const char* name = "step 1";
  const char* domain = "default";
  uint32_t padding = 0xffffffff;
};
static_assert(sizeof(Packed) == kMsptiMarkerBytes);

bool Parse(const Packed& packed, MsptiMark& mark) {
  char bytes[1 + sizeof(Packed)];  // at an odd address
  memcpy(bytes + 1, &packed, sizeof(packed));
  return ParseMsptiMarker(reinterpret_cast<uint8_t*>(bytes + 1), &mark) != 0;
}

TEST(ParseTest, FieldsWhereTheContractHasThem) {
  uint8_t bytes[kMsptiMarkerBytes] = {};
  auto put = [&bytes](size_t at, auto value) { memcpy(bytes + at, &value, sizeof(value)); };
  put(0, uint32_t{1});
  put(4, uint32_t{32});
  put(8, uint32_t{1});
  put(12, uint64_t{1745567190000000001});
  put(20, uint64_t{9007199254740993});
  put(28, uint32_t{3});
  put(32, uint32_t{17});
  put(36, static_cast<const char*>("name"));
  put(44, static_cast<const char*>("domain"));
  MsptiMark mark;
  ASSERT_TRUE(ParseMsptiMarker(bytes, &mark));
  EXPECT_EQ(mark.flag, 32u);
  EXPECT_EQ(mark.source, 1u);
  EXPECT_EQ(mark.timestamp_ns, 1745567190000000001u);
  EXPECT_EQ(mark.id, 9007199254740993u);
  EXPECT_EQ(mark.process_id, 3u);
  EXPECT_EQ(mark.thread_id, 17u);
  EXPECT_STREQ(mark.name, "name");
  EXPECT_STREQ(mark.domain, "domain");
}

TEST(ParseTest, NullNamesAndDomains) {
  MsptiMark mark;
  Packed start;
  start.domain = nullptr;
  ASSERT_TRUE(Parse(start, mark));
  EXPECT_STREQ(mark.domain, "default");
  Packed end;
  end.flag = 32;
  end.name = end.domain = nullptr;
  ASSERT_TRUE(Parse(end, mark));
  EXPECT_STREQ(mark.name, "");
  EXPECT_STREQ(mark.domain, "");
  Packed device;
  device.source = 1;
  device.name = device.domain = nullptr;
  ASSERT_TRUE(Parse(device, mark));
  EXPECT_STREQ(mark.domain, "");
}

TEST(ParseTest, OnlyMarkers) {
  MsptiMark mark;
  for (uint32_t flag = 0; flag < 200; ++flag) {
    Packed packed;
    packed.flag = flag;
    const bool known = flag == 1 || flag == 2 || flag == 4 || flag == 8 || flag == 16 || flag == 32;
    EXPECT_EQ(Parse(packed, mark), known) << flag;
  }
  Packed other_kind, source, id, time;
  other_kind.kind = 2;
  source.source = 2;
  id.id = 0;
  time.timestamp_ns = 0;
  for (const Packed& packed : {other_kind, source, id, time}) EXPECT_FALSE(Parse(packed, mark));
}

// ---- Finding it.

class Folder {
 public:
  Folder() {
    char path[] = "/tmp/taskd-mspti-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

FRESH_TEST(MsptiFindTest, InLibraryPathAsItIsNow) {
  Folder folder;
  std::filesystem::create_symlink(TASKD_FAKE_MSPTI, folder.path() + "/libmspti.so");
  setenv("LD_LIBRARY_PATH", ("/nowhere::" + folder.path()).c_str(), 1);
  Sink sink;
  const MsptiConfig config = sink.Config();
  const char* missing = "";
  EXPECT_EQ(MsptiOpen(&config, &missing), 0);
  EXPECT_EQ(missing, nullptr);
  MsptiStep(0);
  EXPECT_EQ(sink.TakeAnswers(), "1400/0");
}

FRESH_TEST(MsptiFindTest, AnotherLibraryOfThatNameIsNotUsed) {
  Folder folder;
  std::filesystem::copy_file(TASKD_OTHER_LIBRARY, folder.path() + "/libmspti.so");
  setenv("LD_LIBRARY_PATH", folder.path().c_str(), 1);
  Sink sink;
  const MsptiConfig config = sink.Config();
  const char* missing = nullptr;
  EXPECT_EQ(MsptiOpen(&config, &missing), 2);
  EXPECT_STREQ(missing, "msptiActivityEnable");
}

FRESH_TEST(MsptiFindTest, TheThreadTellsWhatIsMissing) {
  Folder folder;
  std::filesystem::copy_file(TASKD_OTHER_LIBRARY, folder.path() + "/libmspti.so");
  setenv("LD_LIBRARY_PATH", folder.path().c_str(), 1);
  Sink sink;
  const MsptiConfig config = sink.Config();
  EXPECT_EQ(MsptiStart(&config), 0);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
  EXPECT_EQ(sink.missing, "msptiActivityEnable");
}

FRESH_TEST(MsptiFindTest, WithoutItTheThreadEnds) {
  unsetenv("LD_LIBRARY_PATH");
  Sink sink;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiOpen(&config, nullptr), 1) << "this machine has a libmspti.so";
  EXPECT_EQ(MsptiStart(&config), 0);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
  EXPECT_EQ(sink.TakeAnswers(), "");
}

// ---- Switching (contract §4.2, codes of §3).

FRESH_TEST(MsptiSwitchTest, CallsAndCodesOfTheContract) {
  Stepped source(0);
  EXPECT_EQ(source.fake.Log(), "");  // nothing is ours to switch off
  EXPECT_EQ(source.sink.TakeAnswers(), "1400/0");

  source.sink.wanted = kMsptiDefault;
  source.Step();
  EXPECT_EQ(source.fake.Log(), "Subscribe();RegisterCallbacks();Enable(1);DisableDomain(communication);");
  EXPECT_EQ(source.sink.TakeAnswers(), "1410/0");

  source.sink.wanted = kBoth;
  source.Step();
  EXPECT_EQ(source.fake.Log(), "Enable(1);EnableDomain(communication);");
  EXPECT_EQ(source.sink.TakeAnswers(), "1411/0");

  source.Step();  // the same once more
  EXPECT_EQ(source.fake.Log(), "");
  EXPECT_EQ(source.sink.TakeAnswers(), "");

  source.sink.wanted = 0;
  source.Step();
  EXPECT_EQ(source.fake.Log(), "Disable(1);Disable(2);Disable(3);Unsubscribe();DisableDomain(communication);");
  EXPECT_EQ(source.sink.TakeAnswers(), "1400/0");
  EXPECT_EQ(source.fake.Stats().subscriber, 0);
  EXPECT_EQ(Stats().subscribed, 0);
}

// The contract's switches cannot say it, ours can.
FRESH_TEST(MsptiSwitchTest, CommunicationAlone) {
  Stepped source(kMsptiCommunication);
  EXPECT_EQ(source.fake.Log(),
            "Subscribe();RegisterCallbacks();DisableDomain(default);Enable(1);EnableDomain(communication);");
  EXPECT_EQ(source.sink.TakeAnswers(), "1401/0");
  source.fake.mark("default", "step 1", 0);
  source.fake.mark("communication", "{}", 0);
  source.Step();
  ASSERT_EQ(source.sink.count(), 1u);
  EXPECT_EQ(source.sink.marks()[0].domain, "communication");
  source.sink.wanted = kBoth;
  source.Step();
  EXPECT_EQ(source.fake.Log(), "Enable(1);EnableDomain(default);EnableDomain(communication);");
  EXPECT_EQ(source.sink.TakeAnswers(), "1411/0");
}

// A domain that we disabled is left on for whoever is next.
FRESH_TEST(MsptiSwitchTest, OffAfterCommunicationAloneLeavesTheDefaultDomainOn) {
  Stepped source(kMsptiCommunication);
  source.fake.Log();
  source.sink.wanted = 0;
  source.Step();
  EXPECT_EQ(source.fake.Log(),
            "Disable(1);Disable(2);Disable(3);EnableDomain(default);Unsubscribe();DisableDomain(communication);");
}

FRESH_TEST(MsptiSwitchTest, FullProfilingIsToldAndWaitedFor) {
  Fake fake;
  fake.other_subscriber(1);
  Stepped source(kBoth);
  EXPECT_EQ(source.sink.TakeAnswers(), "1420/2");
  EXPECT_EQ(fake.Log(), "Subscribe();");  // nothing of the other's is touched
  EXPECT_EQ(source.Step(999), 1);
  EXPECT_EQ(fake.Log(), "");
  // After 1, 2, 4, 5, 5 s.
  for (int64_t wait_ms : {1, 2000, 4000, 5000, 5000}) {
    if (wait_ms > 1) {
      source.Step(wait_ms - 1);
      EXPECT_EQ(fake.Log(), "") << wait_ms;
      wait_ms = 1;
    }
    source.Step(wait_ms);
    EXPECT_EQ(fake.Log(), "Subscribe();");
  }
  EXPECT_EQ(source.sink.TakeAnswers(), "");  // said once
  fake.other_subscriber(0);
  source.Step(5000);
  EXPECT_EQ(source.sink.TakeAnswers(), "1411/0");
  // Switching off while it is back: nothing is ours any more.
  source.sink.wanted = 0;
  source.Step();
  fake.Log();
  source.sink.TakeAnswers();
  fake.other_subscriber(1);
  source.sink.wanted = kMsptiDefault;
  source.Step();
  EXPECT_EQ(source.sink.TakeAnswers(), "1420/2");
  source.sink.wanted = 0;
  source.Step();
  EXPECT_EQ(source.sink.TakeAnswers(), "1400/0");
  EXPECT_EQ(fake.Log(), "Subscribe();");
}

struct Failure {
  const char* function;
  int code;
  uint32_t wanted;
  const char* answer;
};
constexpr Failure kFailures[] = {
    {"Subscribe", 999, kBoth, "1420/999"},    {"RegisterCallbacks", 1, kBoth, "1420/1"},
    {"Enable", 4, kBoth, "1421/4"},           {"Enable", 4, kMsptiDefault, "1420/4"},
    {"EnableDomain", 999, kBoth, "1412/999"}, {"DisableDomain", 999, kMsptiDefault, "1412/999"},
};

void Fails(const Failure& failure, const char* recovered) {
  Fake fake;
  fake.fail(failure.function, failure.code, 1);
  Stepped source(failure.wanted);
  EXPECT_EQ(source.sink.TakeAnswers(), failure.answer);
  source.Step(1000);
  EXPECT_EQ(source.sink.TakeAnswers(), recovered);
}
FRESH_TEST(MsptiSwitchTest, SubscribeFails) { Fails(kFailures[0], "1411/0"); }
FRESH_TEST(MsptiSwitchTest, RegisterCallbacksFails) { Fails(kFailures[1], "1411/0"); }
FRESH_TEST(MsptiSwitchTest, EnableFails) { Fails(kFailures[2], "1411/0"); }
FRESH_TEST(MsptiSwitchTest, EnableFailsWithoutCommunication) { Fails(kFailures[3], "1410/0"); }
FRESH_TEST(MsptiSwitchTest, EnableDomainFails) { Fails(kFailures[4], "1411/0"); }
FRESH_TEST(MsptiSwitchTest, DisableDomainFails) { Fails(kFailures[5], "1410/0"); }

FRESH_TEST(MsptiSwitchTest, OffFailsAndIsTriedAgain) {
  Stepped source(kBoth);
  source.sink.TakeAnswers();
  source.fake.fail("Disable", 999, 1);
  source.fake.fail("Unsubscribe", 4, 1);
  source.sink.wanted = 0;
  source.Step();
  EXPECT_EQ(source.sink.TakeAnswers(), "1420/999");
  EXPECT_EQ(source.fake.Stats().marker_enabled, 1);
  source.Step(1000);
  EXPECT_EQ(source.sink.TakeAnswers(), "1400/0");
  EXPECT_EQ(source.fake.Stats().marker_enabled, 0);
  EXPECT_EQ(source.fake.Stats().subscriber, 0);
}

// ---- Records.

FRESH_TEST(MsptiRecordTest, HostAndDevice) {
  Stepped source(kBoth);
  const uint64_t step = source.fake.range_start("default", "step 1", 1);
  source.fake.mark("default", "instant", 0);
  source.fake.range_end("default", step, 1);
  source.Step();
  const std::vector<Mark> marks = source.sink.marks();
  ASSERT_EQ(marks.size(), 5u);
  EXPECT_EQ(marks[0].flag, 16u);
  EXPECT_EQ(marks[0].source, 0u);
  EXPECT_EQ(marks[0].name, "step 1");
  EXPECT_EQ(marks[0].domain, "default");
  EXPECT_EQ(marks[0].process_id, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(marks[0].thread_id, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(marks[1].flag, 1u);
  EXPECT_EQ(marks[2].flag, 32u);
  EXPECT_EQ(marks[2].name, "");
  EXPECT_EQ(marks[3].flag, 16u);
  EXPECT_EQ(marks[3].source, 1u);
  EXPECT_EQ(marks[3].process_id, 3u);
  EXPECT_EQ(marks[3].thread_id, 17u);
  EXPECT_EQ(marks[4].flag, 32u);
  EXPECT_EQ(marks[4].source, 1u);
  for (const Mark& mark : {marks[0], marks[2], marks[3], marks[4]}) EXPECT_EQ(mark.id, step);
  EXPECT_LT(marks[0].timestamp_ns, marks[2].timestamp_ns);
  EXPECT_LT(marks[2].timestamp_ns, marks[3].timestamp_ns);
  EXPECT_EQ(source.fake.Stats().subscriber, 1);
}

FRESH_TEST(MsptiRecordTest, NothingComesOfWhatIsOff) {
  Stepped source(kMsptiDefault);
  source.fake.mark("communication", "{}", 0);
  source.fake.mark("default", "kept", 0);
  source.sink.wanted = 0;
  source.Step();  // what was made before comes along
  source.fake.mark("default", "off", 0);
  source.Step();
  ASSERT_EQ(source.sink.count(), 1u);
  EXPECT_EQ(source.sink.marks()[0].name, "kept");
  EXPECT_EQ(Stats().buffers_out, 0u);
}

// The upper bits are the caller's: a mark says what they were when it was made.
FRESH_TEST(MsptiRecordTest, WhatWasWantedThen) {
  Stepped source(kMsptiDefault | 1u << kMsptiCallerShift);
  source.fake.mark("default", "before", 0);
  source.sink.wanted = kMsptiDefault | 2u << kMsptiCallerShift;
  source.Step(1);
  source.fake.mark("default", "after", 0);
  source.sink.wanted = 4u << kMsptiCallerShift;
  source.Step(1);
  const std::vector<Mark> marks = source.sink.marks();
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0].wanted, kMsptiDefault | 1u << kMsptiCallerShift);
  EXPECT_EQ(marks[1].wanted, kMsptiDefault | 2u << kMsptiCallerShift);
}

FRESH_TEST(MsptiRecordTest, LongNames) {
  Stepped source(kMsptiDefault);
  source.fake.mark("default", std::string(254, 'x').c_str(), 0);
  source.fake.mark("default", std::string(255, 'x').c_str(), 0);
  source.Step();
  ASSERT_EQ(source.sink.count(), 1u);
  EXPECT_EQ(source.sink.marks()[0].name, std::string(254, 'x'));
  EXPECT_EQ(source.fake.Stats().rejected, 1u);
}

// ---- Buffers.

void MakeMarks(const Fake& fake, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) fake.mark("default", "mark", 0);
}

// Every id from 1 on, in order.
void ExpectIds(Sink& sink, uint64_t count) {
  const std::vector<Mark> marks = sink.marks();
  ASSERT_EQ(marks.size(), count);
  for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(marks[i].id, i + 1);
}

FRESH_TEST(MsptiBufferTest, FullOnesComeWithoutAFlush) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, kFull + 1);
  source.Step(0);
  ExpectIds(source.sink, kFull);
  MakeMarks(source.fake, 2 * kFull);
  source.Step();
  ExpectIds(source.sink, 3 * kFull + 1);
  EXPECT_EQ(Stats().dropped, 0u);
}

// Nobody reads: the training goes on, and what is lost is counted to the record.
FRESH_TEST(MsptiBufferTest, WithoutRoomRecordsAreCountedAndNobodyWaits) {
  Stepped source(kMsptiDefault);
  const uint64_t made = (kMsptiPoolBuffers + 4) * kFull + 10;
  MakeMarks(source.fake, made);
  source.Step();
  source.Step();
  EXPECT_EQ(source.sink.count(), kMsptiPoolBuffers * kFull);
  EXPECT_EQ(Stats().dropped, made - kMsptiPoolBuffers * kFull);
  EXPECT_EQ(source.fake.Stats().dropped, 0u);  // MSPTI always had a buffer
  // And it is all back.
  MakeMarks(source.fake, 10);
  source.Step();
  EXPECT_EQ(source.sink.count(), kMsptiPoolBuffers * kFull + 10);
  EXPECT_EQ(source.sink.marks().back().id, made + 10);
  EXPECT_EQ(Stats().buffers_out, 0u);
}

FRESH_TEST(MsptiBufferTest, EmitWithoutRoomIsAskedAgain) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, 100);
  for (int round = 1; round <= 10; ++round) {
    source.sink.room = 7;
    EXPECT_LE(source.Step(), 10);
    ExpectIds(source.sink, static_cast<uint64_t>(7 * round));
  }
  source.sink.room = INT64_MAX;
  source.Step();
  ExpectIds(source.sink, 100);
  EXPECT_EQ(Stats().emitted, 100u);
}

// A switch is not held up by records that have no room.
FRESH_TEST(MsptiBufferTest, SwitchesWhileEmitHasNoRoom) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, 100);
  source.sink.room = 3;
  source.Step();
  source.sink.TakeAnswers();
  source.sink.wanted = 0;
  source.Step(1);
  EXPECT_EQ(source.sink.TakeAnswers(), "1400/0");
  source.sink.room = INT64_MAX;
  source.Step(1);
  ExpectIds(source.sink, 100);
}

FRESH_TEST(MsptiBufferTest, HandedOverInAnotherOrder) {
  Stepped source(kMsptiDefault);
  source.fake.hold_hand_over(1);
  MakeMarks(source.fake, 3 * kFull);
  ASSERT_EQ(source.fake.Stats().held, 2);
  source.fake.hand_over_held(1);
  source.Step(0);
  EXPECT_EQ(source.sink.count(), 0u);  // the first is waited for
  source.fake.hand_over_held(0);
  source.Step(0);
  ExpectIds(source.sink, 2 * kFull);
  source.Step();
  ExpectIds(source.sink, 3 * kFull);
}

FRESH_TEST(MsptiBufferTest, AnUnknownKindCostsTheRestOfItsBufferOnly) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, 2);
  const uint8_t other[kMsptiMarkerBytes] = {99};
  source.fake.append(other, sizeof(other));
  MakeMarks(source.fake, 3);
  source.Step();
  EXPECT_EQ(source.sink.count(), 2u);
  EXPECT_EQ(Stats().malformed, 4u);
  MakeMarks(source.fake, 5);
  source.Step();
  EXPECT_EQ(source.sink.count(), 7u);
  EXPECT_EQ(source.sink.marks().back().id, 10u);
}

FRESH_TEST(MsptiBufferTest, KnownOtherKindsAndBrokenMarkersArePassed) {
  Stepped source(kMsptiDefault);
  const uint8_t api[48] = {3};
  Packed broken;
  broken.flag = 3;
  MakeMarks(source.fake, 1);
  source.fake.append(api, sizeof(api));
  MakeMarks(source.fake, 1);
  source.fake.append(&broken, sizeof(broken));
  MakeMarks(source.fake, 1);
  source.Step();
  ExpectIds(source.sink, 3);
  EXPECT_EQ(Stats().malformed, 2u);
}

// What stands behind it is an older record's end.
FRESH_TEST(MsptiBufferTest, ACutMarkerIsNotReadBeyondItsBuffer) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, 3);
  source.Step();
  MakeMarks(source.fake, 1);
  Packed cut;
  source.fake.append(&cut, 20);
  source.Step();
  EXPECT_EQ(source.sink.count(), 4u);
  EXPECT_EQ(Stats().malformed, 1u);
  MakeMarks(source.fake, 1);
  source.Step();
  EXPECT_EQ(source.sink.count(), 5u);
}

// The one that was there before us left a buffer of its own behind.
FRESH_TEST(MsptiBufferTest, AnotherOnesBufferIsNeitherReadNorFreed) {
  Fake fake;
  static uint8_t others[kMsptiBufferBytes];
  void* library = dlopen(TASKD_FAKE_MSPTI, RTLD_NOW);
  using Request = void (*)(uint8_t**, size_t*, size_t*);
  using Complete = void (*)(uint8_t*, size_t, size_t);
  auto* set_callbacks = reinterpret_cast<int (*)(Request, Complete)>(dlsym(library, "msptiActivityRegisterCallbacks"));
  auto* enable = reinterpret_cast<int (*)(int)>(dlsym(library, "msptiActivityEnable"));
  fake.other_subscriber(1);
  set_callbacks([](uint8_t** buffer, size_t* bytes, size_t*) { *buffer = others, *bytes = sizeof(others); },
                [](uint8_t*, size_t, size_t) { ADD_FAILURE() << "came back to its owner"; });
  enable(1);
  MakeMarks(fake, 3);
  fake.other_subscriber(0);
  Stepped source(kMsptiDefault);
  EXPECT_EQ(Stats().unknown_buffers, 1u);
  MakeMarks(fake, 1);
  source.Step();
  ASSERT_EQ(source.sink.count(), 1u);
  EXPECT_EQ(source.sink.marks()[0].id, 4u);
}

// What the contract does not say, another MSPTI may do in another way.
void ReadsAll(const FakeTraits& traits) {
  Fake fake;
  fake.set_traits(&traits);
  Stepped source(kMsptiDefault);
  constexpr uint64_t kMarks = kMsptiBufferBytes / 56;  // fit one buffer
  for (uint64_t round = 1; round <= 3; ++round) {
    MakeMarks(fake, kMarks);
    source.Step();
    ExpectIds(source.sink, round * kMarks);
  }
  MakeMarks(fake, 1);
  source.sink.wanted = 0;
  source.Step();
  ExpectIds(source.sink, 3 * kMarks + 1);
  const MsptiStats stats = Stats();
  EXPECT_EQ(stats.malformed, 0u);
  EXPECT_EQ(stats.dropped, 0u);
}
FRESH_TEST(MsptiBufferTest, MarkersWithoutPadding) { ReadsAll({52, 0, 0, 0}); }
FRESH_TEST(MsptiBufferTest, ABufferIsAskedForInEnable) { ReadsAll({56, 1, 0, 0}); }
FRESH_TEST(MsptiBufferTest, BuffersComeByFlushOnly) { ReadsAll({56, 0, 1, 0}); }
FRESH_TEST(MsptiBufferTest, ThePlaceIsInTheArgument) { ReadsAll({56, 0, 0, 1}); }
FRESH_TEST(MsptiBufferTest, AllOfThatTogether) { ReadsAll({52, 1, 1, 1}); }

// Marks that come as fast as they are read do not keep a switch away.
FRESH_TEST(MsptiBufferTest, AStepReadsOneBuffer) {
  Stepped source(kMsptiDefault);
  MakeMarks(source.fake, 3 * kFull);
  EXPECT_EQ(MsptiStep(1'001'000), 0);
  EXPECT_EQ(source.sink.count(), kFull);
  source.sink.wanted = 0;
  EXPECT_EQ(MsptiStep(1'001'000), 0);
  EXPECT_EQ(source.fake.Stats().marker_enabled, 0);
}

// ---- The thread.

FRESH_TEST(MsptiThreadTest, MarksOfManyThreadsAndSwitches) {
  Fake fake;
  Sink sink;
  sink.wanted = kMsptiDefault;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_EQ(MsptiStart(&config), 0);  // runs already
  ASSERT_TRUE(WaitFor([&] { return sink.TakeAnswers() == "1410/0"; }));
  constexpr int kThreads = 4;
  constexpr int kRanges = 5000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&fake] {
      for (int n = 0; n < kRanges; ++n) fake.range_end("default", fake.range_start("default", "forward", 1), 1);
    });
  }
  for (uint32_t wanted : {kBoth, uint32_t{kMsptiDefault}, kBoth}) {
    sink.Want(wanted);
    const char* answer = wanted == kBoth ? "1411/0" : "1410/0";
    EXPECT_TRUE(WaitFor([&] { return sink.TakeAnswers() == answer; }));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
  const MsptiStats stats = Stats();
  EXPECT_EQ(stats.emitted + stats.dropped, uint64_t{kThreads} * kRanges * 4);
  EXPECT_EQ(stats.malformed, 0u);
  EXPECT_EQ(stats.buffers_out, 0u);
  EXPECT_EQ(sink.count(), stats.emitted);
  EXPECT_EQ(fake.Stats().subscriber, 0);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);

  // Again in the same process.
  sink.Want(kMsptiDefault);
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitFor([&] { return fake.Stats().subscriber == 1 && fake.Stats().marker_enabled == 1; }));
  fake.mark("default", "again", 0);
  EXPECT_TRUE(WaitFor([&] { return sink.count() == stats.emitted + 1; }));
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
}

FRESH_TEST(MsptiThreadTest, StopDoesNotWaitForAReaderForEver) {
  Fake fake;
  Sink sink;
  sink.wanted = kMsptiDefault;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitFor([&] { return fake.Stats().marker_enabled == 1; }));
  sink.room = 10;
  MakeMarks(fake, 100);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 1000), 0);
  EXPECT_EQ(Stats().emitted, 10u);
  EXPECT_EQ(Stats().dropped, 90u);
}

// contract: §4.7's queue blocks the thread that marks once nobody takes from it. Ours has no place where it could.
FRESH_TEST(MsptiThreadTest, AReaderThatNeverReturnsStopsNobody) {
  Fake fake;
  static std::atomic<bool> inside, released;
  static uint64_t dropped;
  const MsptiConfig config = {.wanted = [](void*) { return uint32_t{kMsptiDefault}; },
                              .emit =
                                  [](void*, const MsptiMark*) {
                                    inside = true;
                                    while (!released) std::this_thread::yield();
                                    return 1;
                                  },
                              .answer = nullptr,
                              .unusable = nullptr,
                              .context = nullptr,
                              .wake_word = nullptr,
                              .dropped = &dropped};
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitFor([&] { return fake.Stats().marker_enabled == 1; }));
  fake.mark("default", "held", 0);
  ASSERT_TRUE(WaitFor([] { return inside.load(); }));
  constexpr uint64_t kMarks = (kMsptiPoolBuffers + 4) * kFull;
  MakeMarks(fake, kMarks);  // all of them come back
  EXPECT_GT(__atomic_load_n(&dropped, __ATOMIC_RELAXED), 2 * kFull);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 1), -1);
  released = true;
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
  EXPECT_EQ(Stats().emitted + Stats().dropped, kMarks + 1);
  EXPECT_EQ(dropped, Stats().dropped);
}

FRESH_TEST(MsptiThreadTest, AForkedChildHasNoSource) {
  Fake fake;
  Sink sink;
  sink.wanted = kMsptiDefault;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitFor([&] { return fake.Stats().marker_enabled == 1; }));
  ASSERT_EQ(MsptiStop(kMsptiRelease, 20000), 0);  // a fork under the fake's lock would be the fake's deadlock
  EXPECT_EQ(testing::RunForked([&] {
              MsptiForgetInChild();
              if (MsptiStart(&config) != -1) return 1;
              MakeMarks(fake, 3 * kFull);
              return MsptiStop(kMsptiAtExit, 1000) == 0 ? 0 : 2;
            }),
            0);
}

// ---- The end of the process. The body runs in a process of its own, ended by exit(), and its marks are in a file.

constexpr char kExitFile[] = "TASKD_TEST_MSPTI_EXIT_FILE";

int RunToItsEnd(const char* test, std::string& out) {
  Folder folder;
  const std::string file = folder.path() + "/marks";
  setenv(kExitFile, file.c_str(), 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // exit() in the middle of a test
  const std::string filter = std::string("--gtest_filter=") + test;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  char* arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(filter.c_str()), nullptr};
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  int status = -1;
  waitpid(pid, &status, 0);
  unsetenv(kExitFile);
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  out = text.str();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Lives until the process ends, as the ring does.
MsptiConfig FileConfig() {
  static const int file = open(getenv(kExitFile), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return {.wanted = [](void*) { return uint32_t{kMsptiDefault}; },
          .emit =
              [](void*, const MsptiMark* mark) {
                char line[300];
                const int bytes = snprintf(line, sizeof(line), "%s\n", mark->name);
                return static_cast<int>(write(file, line, static_cast<size_t>(bytes)) == bytes);
              },
          .answer = nullptr,
          .unusable = nullptr,
          .context = nullptr,
          .wake_word = nullptr,
          .dropped = nullptr};
}

void StartToFile(const Fake& fake) {
  const MsptiConfig config = FileConfig();
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitFor([&] { return fake.Stats().marker_enabled == 1; }));
}

TEST(MsptiEndTest, BodyAtExit) {
  if (getenv(kExitFile) == nullptr) GTEST_SKIP() << "runs for MarksAreFlushedAtExit";
  Fake fake;
  StartToFile(fake);
  fake.mark("default", "first", 0);
  ASSERT_TRUE(WaitFor([] { return Stats().emitted == 1; }));
  fake.mark("default", "last words", 0);
  exit(0);
}

TEST(MsptiEndTest, BodyAtExitBeforeAnyFlush) {
  if (getenv(kExitFile) == nullptr) GTEST_SKIP() << "runs for MarksAreFlushedAtExit";
  Fake fake;
  StartToFile(fake);
  fake.mark("default", "only words", 0);
  exit(0);
}

TEST(MsptiEndTest, BodyAtExitWhileThreadsMark) {
  if (getenv(kExitFile) == nullptr) GTEST_SKIP() << "runs for ThreadsThatGoOnMarkingDoNotCrash";
  static Fake fake;
  StartToFile(fake);
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      for (;;) fake.range_end("default", fake.range_start("default", "forward", 1), 1);
    }).detach();
  }
  ASSERT_TRUE(WaitFor([] { return Stats().emitted > 1000; }));
  exit(0);
}

TEST(MsptiEndTest, MarksAreFlushedAtExit) {
  std::string out;
  EXPECT_EQ(RunToItsEnd("MsptiEndTest.BodyAtExit", out), 0);
  EXPECT_EQ(out, "first\nlast words\n");
  EXPECT_EQ(RunToItsEnd("MsptiEndTest.BodyAtExitBeforeAnyFlush", out), 0);
  EXPECT_EQ(out, "only words\n");
}

TEST(MsptiEndTest, ThreadsThatGoOnMarkingDoNotCrash) {
  std::string out;
  for (int round = 0; round < 3; ++round) EXPECT_EQ(RunToItsEnd("MsptiEndTest.BodyAtExitWhileThreadsMark", out), 0);
}

}  // namespace
}  // namespace taskd
