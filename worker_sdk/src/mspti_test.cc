// Marks from MSPTI, against the fake of testing/fake_mspti.h: the contract's rules of finding it, of switching and of
// records.
#include "mspti.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "testing/fresh_process.h"
#include "testing/mspti_source.h"

namespace taskd::worker {
namespace {

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

FRESH_TEST(MsptiFindTest, WithoutItThereIsNoThread) {
  unsetenv("LD_LIBRARY_PATH");
  Sink sink;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiOpen(&config, nullptr), 1) << "this machine has a libmspti.so";
  EXPECT_FALSE(MsptiMayBeThere());
  const int before = testing::CountThreads();
  EXPECT_EQ(MsptiStart(&config), 0);
  EXPECT_EQ(testing::CountThreads(), before);
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
  EXPECT_EQ(sink.TakeAnswers(), "");
}

FRESH_TEST(MsptiFindTest, InTheLinkersCache) {
  if (!testing::OwnMounts()) GTEST_SKIP() << "no right to mount here";
  Folder folder;
  std::filesystem::copy_file(TASKD_FAKE_MSPTI, folder.path() + "/libmspti.so");
  std::ofstream(folder.path() + "/conf") << folder.path() << "\n";
  const std::string cache = folder.path() + "/cache";
  ASSERT_EQ(system(("/sbin/ldconfig -X -f " + folder.path() + "/conf -C " + cache).c_str()), 0);
  ASSERT_EQ(mount(cache.c_str(), "/etc/ld.so.cache", nullptr, MS_BIND, nullptr), 0);
  unsetenv("LD_LIBRARY_PATH");
  Sink sink;
  const MsptiConfig config = sink.Config();
  EXPECT_TRUE(MsptiMayBeThere());
  EXPECT_EQ(MsptiOpen(&config, nullptr), 0);
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

}  // namespace
}  // namespace taskd::worker
