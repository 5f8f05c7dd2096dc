// Marks from MSPTI, against the fake of testing/fake_mspti.h: the contract's rules of buffers and threads, and the end
// of the process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "mspti.h"
#include "testing/fresh_process.h"
#include "testing/mspti_source.h"

namespace taskd::worker {
namespace {

using testing::WaitUntil;

// ---- Buffers.

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
  fake.other_subscriber(1);
  fake.register_callbacks([](uint8_t** buffer, size_t* bytes, size_t*) { *buffer = others, *bytes = sizeof(others); },
                          [](uint8_t*, size_t, size_t) { ADD_FAILURE() << "came back to its owner"; });
  fake.enable(1);
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
  ASSERT_TRUE(WaitUntil([&] { return sink.TakeAnswers() == "1410/0"; }));
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
    EXPECT_TRUE(WaitUntil([&] { return sink.TakeAnswers() == answer; }));
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
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().subscriber == 1 && fake.Stats().marker_enabled == 1; }));
  fake.mark("default", "again", 0);
  EXPECT_TRUE(WaitUntil([&] { return sink.count() == stats.emitted + 1; }));
  EXPECT_EQ(MsptiStop(kMsptiRelease, 20000), 0);
}

FRESH_TEST(MsptiThreadTest, StopDoesNotWaitForAReaderForEver) {
  Fake fake;
  Sink sink;
  sink.wanted = kMsptiDefault;
  const MsptiConfig config = sink.Config();
  ASSERT_EQ(MsptiStart(&config), 0);
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().marker_enabled == 1; }));
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
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().marker_enabled == 1; }));
  fake.mark("default", "held", 0);
  ASSERT_TRUE(WaitUntil([] { return inside.load(); }));
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
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().marker_enabled == 1; }));
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
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().marker_enabled == 1; }));
}

TEST(MsptiEndTest, BodyAtExit) {
  if (getenv(kExitFile) == nullptr) GTEST_SKIP() << "runs for MarksAreFlushedAtExit";
  Fake fake;
  StartToFile(fake);
  fake.mark("default", "first", 0);
  ASSERT_TRUE(WaitUntil([] { return Stats().emitted == 1; }));
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
  ASSERT_TRUE(WaitUntil([] { return Stats().emitted > 1000; }));
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
}  // namespace taskd::worker
