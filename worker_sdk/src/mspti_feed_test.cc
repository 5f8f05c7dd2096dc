// MSPTI's marks in the rings and its answers in the header, against the fakes of MSPTI and of mstx's own library.
//
// This program is linked with libtaskd.so first and with the fake libms_tools_ext.so behind it, as one is that preloads
// ours. The fake libmspti.so is there once a test opens it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "mspti.h"
#include "mstx_api.h"
#include "taskd/hello.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/loaded_fake.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;
using testing::WaitUntil;

using ring::kFirstOwnId;  // MSPTI counts from 1

// A process whose rank is known, and the gate that a proxy would write.
class Worker {
 public:
  Worker() : initialized_(taskd_worker_init(0, 0, 0)) { EXPECT_EQ(initialized_, 0); }

  bool WaitForCode(uint32_t code, int error = 0) {
    return WaitUntil([&] {
      return segment.header().source_domains.load() != 0 && segment.header().source_code.load() == code &&
             segment.header().source_error.load() == error;
    });
  }
  void SwitchOn() {
    segment.SetGate(ring::kGateAllKinds);
    ASSERT_TRUE(WaitForCode(1411));
  }
  // All records once there are so many.
  std::vector<Record> WaitForRecords(size_t count) {
    std::string problem;
    std::vector<Record> records;
    EXPECT_TRUE(WaitUntil([&] {
      records = segment.Records(&problem);
      return records.size() >= count;
    })) << records.size();
    EXPECT_EQ(records.size(), count);
    EXPECT_EQ(problem, "");
    return records;
  }

 private:
  int initialized_;

 public:
  SegmentView segment;
};

// ---- Records.

FRESH_TEST(MsptiFeedTest, HostAndDeviceRecords) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  const uint64_t id = fake.range_start("default", "step 12", 1);
  fake.range_end("default", id, 1);
  fake.mark("communication", "{\\\"count\\\": \\\"1\\\"}", 0);
  fake.mark("mine", std::string(254, 'x').c_str(), 0);
  const std::vector<Record> records = worker.WaitForRecords(6);
  EXPECT_EQ(records[0].name, "step 12");
  EXPECT_EQ(records[0].kind, ring::kKindStep);
  EXPECT_EQ(records[0].type, ring::kRecordRangeStart);
  EXPECT_EQ(records[0].flags, ring::kFlagSource | ring::kFlagStream);
  EXPECT_EQ(records[1].type, ring::kRecordRangeEnd);
  EXPECT_EQ(records[1].flags, ring::kFlagSource | ring::kFlagStream);
  EXPECT_EQ(records[2].type, ring::kRecordRangeStart);
  EXPECT_EQ(records[2].flags, ring::kFlagSource | ring::kFlagStream | ring::kFlagDevice);
  EXPECT_EQ(records[3].type, ring::kRecordRangeEnd);
  EXPECT_EQ(records[3].flags, ring::kFlagSource | ring::kFlagStream | ring::kFlagDevice);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(records[i].id, id);
  EXPECT_EQ(records[4].kind, ring::kKindCommunication);
  EXPECT_EQ(records[4].domain, ring::kDomainCommunication);
  EXPECT_EQ(records[4].name, "{\\\"count\\\": \\\"1\\\"}");
  EXPECT_EQ(records[5].name, std::string(254, 'x'));
  EXPECT_STREQ(worker.segment.header().domain_names[records[5].domain], "mine");
}

FRESH_TEST(MsptiFeedTest, WorkInARangesMessageIsAMarkOfItsOwn) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  const uint64_t id = fake.range_start("default", "step 12 {\"work\": 4096}", 1);
  fake.range_end("default", id, 1);
  const std::vector<Record> records = worker.WaitForRecords(5);
  EXPECT_EQ(records[0].name, "step 12");
  EXPECT_EQ(records[0].kind, ring::kKindStep);
  EXPECT_EQ(records[0].id, id);
  EXPECT_EQ(records[1].name, "{\"work\": 4096}");
  EXPECT_EQ(records[1].type, ring::kRecordMark);
  EXPECT_EQ(records[1].flags, ring::kFlagSource);
  EXPECT_GE(records[1].id, kFirstOwnId);
}

FRESH_TEST(MsptiFeedTest, DestroyReadsWhatIsLeftAndInitStartsAgain) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  for (int i = 0; i < 100; ++i) fake.mark("default", "m", 0);
  EXPECT_EQ(taskd_worker_destroy(), 0);
  EXPECT_EQ(worker.segment.Records().size(), 100u);
  EXPECT_EQ(fake.Stats().subscriber, 0);
  EXPECT_EQ(worker.segment.header().source_domains.load(), 0u);
  fake.mark("default", "nobody's", 0);

  ASSERT_EQ(taskd_worker_init(0, 0, 0), 0);
  ASSERT_TRUE(WaitUntil([&] { return fake.Stats().subscriber == 1; }));
  ASSERT_TRUE(worker.WaitForCode(1411));
  fake.mark("default", "again", 0);
  EXPECT_EQ(worker.WaitForRecords(101).back().name, "again");
  EXPECT_EQ(taskd_worker_destroy(), 0);
}

FRESH_TEST(MsptiFeedTest, AChildOfForkRecordsForItself) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  mstxMarkA("parent's", nullptr);
  worker.WaitForRecords(1);
  EXPECT_EQ(testing::RunForked([] {
              mstxMarkA("not wanted", nullptr);
              if (taskd_worker_init(1, 1, 0) != 0) return 1;
              taskd_mark("x");
              mstxMarkA("y", nullptr);
              mstxRangeEnd(7);
              taskd_worker_stats stats;
              taskd_worker_get_stats(&stats);
              return stats.records == 3 ? 0 : 10 + static_cast<int>(stats.records);
            }),
            0);
  EXPECT_EQ(fake.Stats().subscriber, 1);
}

// The rank's number is all that a proxy needs, and MSPTI too.
FRESH_TEST(MsptiFeedTest, ARankThatOnlyHasTheVariable) {
  setenv("RANK", "3", 1);
  Fake fake;
  mstxMarkA("first", nullptr);
  SegmentView segment;
  segment.SetGate(ring::kGateAllKinds);
  EXPECT_TRUE(WaitUntil([&] { return segment.header().source_code.load() == 1411; }));
  EXPECT_TRUE(WaitUntil([] { return mstxRangeStartA("second", nullptr) < kFirstOwnId; }));
}

// ---- Switching.

// contract: §4.2 has domains only, the switch has kinds.
FRESH_TEST(MsptiSwitchTest, KindsOfOneDomain) {
  Fake fake;
  Worker worker;
  worker.segment.SetGate(ring::kGateStep);
  ASSERT_TRUE(worker.WaitForCode(1410));
  EXPECT_EQ(worker.segment.header().source_domains.load(), uint32_t{kMsptiDefault} | ring::kSourceAnswered);
  fake.mark("default", "forward", 0);
  fake.mark("default", "step 1", 0);
  fake.mark("communication", "{}", 0);
  EXPECT_EQ(worker.WaitForRecords(1)[0].name, "step 1");

  worker.segment.SetGate(ring::kGateCommunication);
  ASSERT_TRUE(worker.WaitForCode(1401));
  fake.mark("default", "step 2", 0);
  fake.mark("mine", "other", 0);
  fake.mark("communication", "{}", 0);
  EXPECT_EQ(worker.WaitForRecords(2)[1].name, "{}");
  worker.segment.SetGate(0);
  ASSERT_TRUE(worker.WaitForCode(1400));
  EXPECT_EQ(worker.segment.header().source_domains.load(), ring::kSourceAnswered);
}

// A rule of the user's makes communication of a mark in the default domain; what the gate asks for is what is answered.
FRESH_TEST(MsptiSwitchTest, CommunicationByARuleForNames) {
  setenv("TASKD_MARK_NAMES", "communication=all_reduce *", 1);
  Fake fake;
  Worker worker;
  worker.segment.SetGate(ring::kGateCommunication);
  ASSERT_TRUE(worker.WaitForCode(1401));
  fake.mark("default", "all_reduce grads", 0);
  fake.mark("default", "step 1", 0);
  fake.mark("communication", "{}", 0);
  const std::vector<Record> records = worker.WaitForRecords(2);
  EXPECT_EQ(records[0].domain, ring::kDomainCommunication);
  EXPECT_EQ(records[0].kind, ring::kKindCommunication);
  EXPECT_EQ(records[1].name, "{}");
  EXPECT_EQ(worker.segment.header().source_domains.load(),
            uint32_t{ring::kSourceCommunication} | ring::kSourceAnswered);
  worker.SwitchOn();  // the same for MSPTI
}

// Buffers come a quarter of a second after the marks in them. What was on then is recorded, what was off is not.
FRESH_TEST(MsptiSwitchTest, MarksAreJudgedByTheStateInWhichTheyWereMade) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  constexpr size_t kMarks = 1000;
  for (size_t i = 0; i < kMarks; ++i) fake.mark("default", "forward", 0);
  worker.segment.SetGate(ring::kGateStep);
  ASSERT_TRUE(worker.WaitForCode(1410));
  fake.mark("default", "forward", 0);
  worker.segment.SetGate(ring::kGateStep | ring::kGateForward);
  worker.WaitForRecords(kMarks);
  // Nobody says when the same domains have been seen again.
  EXPECT_TRUE(WaitUntil([&] {
    fake.mark("default", "forward", 0);
    return worker.segment.Records().size() > kMarks;
  }));
  ASSERT_GT(worker.segment.Records().size(), kMarks);
  worker.segment.SetGate(0);
  ASSERT_TRUE(worker.WaitForCode(1400));
}

FRESH_TEST(MsptiSwitchTest, OffTakesWhatWasMadeBefore) {
  Fake fake;
  Worker worker;
  worker.SwitchOn();
  for (int i = 0; i < 1000; ++i) fake.range_end("default", fake.range_start("default", "forward", 1), 1);
  worker.segment.SetGate(0);
  ASSERT_TRUE(worker.WaitForCode(1400));
  worker.WaitForRecords(4000);
}

// contract: result 2 of §4.2.
FRESH_TEST(MsptiSwitchTest, FullProfilingIsToldAndWaitedFor) {
  Fake fake;
  fake.other_subscriber(1);
  Worker worker;
  worker.segment.SetGate(ring::kGateAllKinds);
  ASSERT_TRUE(worker.WaitForCode(1420, kMsptiOtherSubscriber));
  EXPECT_EQ(worker.segment.header().source_domains.load(), uint32_t{kMsptiAllDomains} | ring::kSourceAnswered);
  // Its marks are its own: ours do not keep them from it.
  fake.enable(1);
  EXPECT_NE(mstxRangeStartA("full profiling's", nullptr), 0u);
  EXPECT_EQ(worker.segment.Records().size(), 0u);
  fake.other_subscriber(0);
  ASSERT_TRUE(worker.WaitForCode(1411));
  EXPECT_EQ(fake.Stats().subscriber, 1);
}

// ---- Our own symbols in front of mstx's.

FRESH_TEST(StepAsideTest, OwnSymbolsRecordUntilMsptiIsOn) {
  Fake fake;
  mstxMarkA("before init", nullptr);
  const uint64_t own = mstxRangeStartA("open", nullptr);
  ASSERT_GE(own, kFirstOwnId);
  Worker worker;
  ASSERT_TRUE(worker.WaitForCode(1400));  // MSPTI is there, and no proxy has spoken
  mstxMarkA("step 0", nullptr);
  EXPECT_EQ(worker.WaitForRecords(3)[2].flags, ring::kFlagUndecided);
  EXPECT_EQ(fake.Stats().subscriber, 0);

  worker.SwitchOn();
  int stream;
  const uint64_t id = mstxRangeStartA("step 1", &stream);
  EXPECT_EQ(id, 1u);
  mstxRangeEnd(id);
  mstxRangeEnd(own);
  taskd_mark("api");
  mstxDomainMarkA(mstxDomainCreateA("communication"), "{}", nullptr);
  mstxDomainRangeEnd(mstxDomainCreateA("mine"), mstxDomainRangeStartA(mstxDomainCreateA("mine"), "x", nullptr));
  EXPECT_EQ(InitInjectionMstx([](int, MstxFunctionTable*, unsigned*) { return 0; }), 1);
  const std::vector<Record> records = worker.WaitForRecords(12);
  EXPECT_EQ(records[3].type, ring::kRecordRangeEnd);
  EXPECT_EQ(records[3].id, own);
  EXPECT_EQ(records[4].name, "api");
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ((records[i].flags & ring::kFlagSource) != 0, i >= 5) << i;
  EXPECT_EQ(records[9].domain, ring::kDomainCommunication);
  EXPECT_STREQ(worker.segment.header().domain_names[records[10].domain], "mine");
  EXPECT_EQ(records[11].id, records[10].id);
}

// Nothing is to be recorded: another profiler may have them.
FRESH_TEST(StepAsideTest, WhileSwitchedOff) {
  Fake fake;
  fake.other_subscriber(1);
  fake.enable(1);
  Worker worker;
  ASSERT_TRUE(worker.WaitForCode(1400));
  worker.segment.SetGate(0);
  EXPECT_TRUE(WaitUntil([] { return mstxRangeStartA("full profiling's", nullptr) == 1; }));
}

// The library that TaskD opens is behind us too.
FRESH_TEST(StepAsideTest, MsptiIsFoundInLibraryPath) {
  const std::string folder = testing::FreshFolder();
  std::filesystem::create_symlink(TASKD_FAKE_MSPTI, folder + "/libmspti.so");
  setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  Worker worker;
  worker.SwitchOn();
  EXPECT_EQ(mstxRangeStartA("step 1", nullptr), 1u);
  EXPECT_EQ(worker.WaitForRecords(1)[0].name, "step 1");
}

// mstx has our functions in its table: behind us is what calls us.
FRESH_TEST(StepAsideTest, NotWhereMstxCallsUs) {
  Fake fake;
  static MstxFunction slots[5];
  static MstxFunction* table[] = {nullptr, &slots[0], &slots[1], &slots[2], &slots[3], &slots[4], nullptr};
  ASSERT_EQ(InitInjectionMstx([](int, MstxFunctionTable* out, unsigned* entries) {
              *out = table;
              *entries = 6;
              return 0;
            }),
            0);
  Worker worker;
  worker.SwitchOn();
  EXPECT_GE(mstxRangeStartA("step 1", nullptr), kFirstOwnId);
  EXPECT_EQ(worker.WaitForRecords(1)[0].flags, 0u);
}

// ---- Libraries that are none.

FRESH_TEST(LibraryTest, WithoutMsptiNothingChanges) {
  unsetenv("LD_LIBRARY_PATH");
  Worker worker;
  worker.segment.SetGate(ring::kGateAllKinds);
  EXPECT_EQ(worker.segment.header().source_domains.load(), 0u);
  EXPECT_GE(mstxRangeStartA("step 1", nullptr), kFirstOwnId);
  EXPECT_EQ(worker.segment.Records().size(), 1u);
}

FRESH_TEST(LibraryTest, AMissingFunctionIsNamedOnce) {
  const std::string folder = testing::FreshFolder();
  std::filesystem::copy_file(TASKD_FAKE_MSTX, folder + "/libmspti.so");
  setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  const std::string path = folder + "/stderr";
  const int kept = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  dup2(file, STDERR_FILENO);
  auto text = [&path] {
    std::ostringstream content;
    content << std::ifstream(path).rdbuf();
    return content.str();
  };
  Worker worker;
  EXPECT_TRUE(WaitUntil([&] { return text().ends_with("\n"); }));
  taskd_worker_destroy();  // waits for the thread
  taskd_worker_init(0, 0, 0);
  taskd_worker_destroy();
  taskd_worker_init(0, 0, 0);
  dup2(kept, STDERR_FILENO);
  EXPECT_EQ(text(),
            "taskd: libmspti.so has no function msptiActivityEnable: marks are recorded without MSPTI, so without the "
            "device's times\n");
  worker.segment.SetGate(ring::kGateAllKinds);
  EXPECT_GE(mstxRangeStartA("step 1", nullptr), kFirstOwnId);
}

// ---- A proxy that does not read.

// Takes the hello and never anything of the ring.
class StoppedProxy {
 public:
  StoppedProxy() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const char* path = getenv("TASKD_SOCKET");
    if (path != nullptr) strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    const timeval patience = {testing::kHangLimit.count(), 0};
    setsockopt(listener_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~StoppedProxy() {
    close(connection_);
    close(listener_);
  }
  void Accept() {
    connection_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    hello::HelloReply reply = {};
    reply.magic = hello::kMagic;
    reply.version = hello::kVersion;
    reply.status = hello::kAccepted;
    EXPECT_EQ(send(connection_, &reply, sizeof(reply), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(reply)));
    EXPECT_TRUE(WaitUntil([] {
      taskd_worker_stats stats;
      return taskd_worker_get_stats(&stats) == 0 && stats.attached == 1;
    }));
  }

 private:
  int listener_;
  int connection_ = -1;
};

// contract: §4.7's semaphore blocks the training thread here; ours goes on, and what is lost is counted.
FRESH_TEST(StoppedProxyTest, TrainingGoesOnAndLossesAreCounted) {
  Fake fake;
  StoppedProxy proxy;
  Worker worker;
  proxy.Accept();
  worker.SwitchOn();
  constexpr uint64_t kCapacity = ring::kLargeRingBytes / ring::kRecordHeaderBytes +
                                 uint64_t{kMsptiPoolBuffers} * kMsptiBufferBytes / kMsptiMarkerBytes;
  constexpr uint64_t kMarks = 2 * kCapacity;
  for (uint64_t i = 0; i < kMarks; ++i) fake.mark("default", "m", 0);

  ring::SegmentHeader& header = worker.segment.header();
  ring::ThreadSlot& slot = header.thread_slots[0];
  EXPECT_GT(header.dropped.load(), kMarks - kCapacity);
  // The thread that fills the ring may not have had a turn yet.
  EXPECT_TRUE(WaitUntil([&] { return header.slots.load() == 1; }));
  EXPECT_LE(slot.reserved.load(), slot.data_bytes) << "a record that no proxy had read was overwritten";

  // It reads again: the rest comes, and every mark is accounted for.
  EXPECT_TRUE(WaitUntil([&] {
    slot.consumed.store(slot.head.load());
    taskd_worker_stats stats;
    taskd_worker_get_stats(&stats);
    return stats.records + stats.dropped == kMarks;
  }));
  EXPECT_EQ(fake.Stats().subscriber, 1);
  std::string problem;
  EXPECT_GT(worker.segment.Records(&problem).size(), 0u);
  EXPECT_EQ(problem, "");
}

// contract: a buffer is handed over at 80 % on the thread that marks (§4.3).
FRESH_TEST(StoppedProxyTest, ManyThreads) {
  Fake fake;
  StoppedProxy proxy;
  Worker worker;
  proxy.Accept();
  worker.SwitchOn();
  constexpr int kThreads = 4;
  constexpr uint64_t kRanges = 40000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      int stream;
      for (uint64_t n = 0; n < kRanges; ++n) mstxRangeEnd(mstxRangeStartA("forward", &stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taskd_worker_destroy(), 0);
  taskd_worker_stats stats;
  taskd_worker_get_stats(&stats);
  EXPECT_EQ(stats.records + stats.dropped, kThreads * kRanges * 4);
  EXPECT_GT(stats.dropped, 0u);
}

}  // namespace
}  // namespace taskd::worker
