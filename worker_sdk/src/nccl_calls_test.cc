// NCCL's C functions with this library in front of them: linked before NCCL here, which is what preloading comes to, and
// really preloaded into other programs at the end.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "taskd/hello.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fake_nccl.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

constexpr int kFloat32 = 7;
constexpr int kSum = 0;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;

void SwitchOn() {
  taskd_mark("first");
  SegmentView().SetGate(ring::kGateCommunication);
}

// "+" a start, "-" an end.
std::string Story(const std::vector<Record>& records) {
  std::string story;
  for (const Record& record : records) {
    if (record.type == ring::kRecordRangeStart) story += "+";
    if (record.type == ring::kRecordRangeEnd) story += "-";
  }
  return story;
}
std::string Story() { return Story(SegmentView().Records()); }

std::vector<std::string> Names(const std::vector<Record>& records) {
  std::vector<std::string> names;
  for (const Record& record : records) {
    if (record.type != ring::kRecordRangeStart) continue;
    EXPECT_EQ(record.domain, ring::kDomainCommunication);
    EXPECT_EQ(record.kind, ring::kKindCommunication);
    EXPECT_TRUE(record.flags & ring::kFlagStream);
    names.push_back(record.name);
  }
  return names;
}
std::vector<std::string> Names() { return Names(SegmentView().Records()); }

std::string Field(const std::string& name, const std::string& key) {
  const size_t begin = name.find("\"" + key + "\": \"");
  if (begin == std::string::npos) return "";
  const size_t value = begin + key.size() + 5;
  return name.substr(value, name.find('"', value) - value);
}

void* Pointer(uintptr_t number) { return reinterpret_cast<void*>(number); }

ncclResult_t AllReduce(ncclComm_t comm, size_t count = 1) {
  return ncclAllReduce(Pointer(1), Pointer(2), count, kFloat32, kSum, comm, Pointer(3));
}

// Rank 1 of 8.
ncclComm_t NewCommunicator(int rank = 1, int ranks = 8) {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclGetUniqueId(&id), 0);
  EXPECT_EQ(ncclCommInitRank(&comm, ranks, id, rank), 0);
  return comm;
}

// The group that an operation on the communicator is marked with.
std::string GroupOf(ncclComm_t comm) {
  EXPECT_EQ(AllReduce(comm), 0);
  return Field(SegmentView().Records().rbegin()[1].name, "groupName");
}

FRESH_TEST(NcclCallsTest, OperationsAndTheirArguments) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(ncclAllReduce(Pointer(1), Pointer(2), 16, 9, 4, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclBroadcast(Pointer(1), Pointer(2), 17, 0, 3, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclReduce(Pointer(1), Pointer(2), 18, 1, 2, 3, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclAllGather(Pointer(1), Pointer(2), 19, 6, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclReduceScatter(Pointer(1), Pointer(2), 20, 8, 3, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclAlltoAll(Pointer(1), Pointer(2), 21, 4, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclGather(Pointer(1), Pointer(2), 22, 5, 3, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclScatter(Pointer(1), Pointer(2), 23, 10, 3, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclSend(Pointer(1), 24, 11, 6, comm, Pointer(5)), 0);
  EXPECT_EQ(ncclRecv(Pointer(2), 25, 99, 7, comm, Pointer(5)), 0);
  EXPECT_STREQ(FakeNcclTakeLog(),
               "AllReduce(1,2,16,9,4,5);Broadcast(1,2,17,0,3,5);Reduce(1,2,18,1,2,3,5);AllGather(1,2,19,6,5);"
               "ReduceScatter(1,2,20,8,3,5);AlltoAll(1,2,21,4,5);Gather(1,2,22,5,3,5);Scatter(1,2,23,10,3,5);"
               "Send(1,0,24,11,6,5);Recv(0,2,25,99,7,5);");
  const std::vector<std::string> names = Names();
  ASSERT_EQ(names.size(), 10u);
  EXPECT_EQ(names[0], R"({"count": "16","streamId": "0","dataType": "bfp16","groupName": ")" +
                          Field(names[0], "groupName") + R"(","opName": "ncclAllReduce","ranks": "8","rank": "1"})");
  std::string said;
  for (const std::string& name : names) {
    said += Field(name, "opName") + " " + Field(name, "count") + " " + Field(name, "dataType") + ", ";
    EXPECT_EQ(Field(name, "groupName"), Field(names[0], "groupName"));
  }
  EXPECT_EQ(said,
            "ncclAllReduce 16 bfp16, ncclBroadcast 17 int8, ncclReduce 18 uint8, ncclAllGather 19 fp16, "
            "ncclReduceScatter 20 fp64, ncclAlltoAll 21 int64, ncclGather 22 uint64, ncclScatter 23 fp8e4m3, "
            "ncclSend 24 fp8e5m2, ncclRecv 25 na, ");
  EXPECT_TRUE(names[8].ends_with(R"("rank": "1","srcRank": "1","destRank": "6"})")) << names[8];
  EXPECT_TRUE(names[9].ends_with(R"("rank": "1","srcRank": "7","destRank": "1"})")) << names[9];
  EXPECT_EQ(Story(), "+-+-+-+-+-+-+-+-+-+-");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

FRESH_TEST(NcclCallsTest, NothingIsMarkedWhileOff) {
  taskd_mark("first");
  SegmentView segment;
  segment.SetGate(ring::kGateAllKinds & ~ring::kGateCommunication);
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_STREQ(FakeNcclTakeLog(), "AllReduce(1,2,1,7,0,3);");
  EXPECT_EQ(Story(), "");
  // Whoever is there by then is known when it is turned on.
  segment.SetGate(ring::kGateCommunication);
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(Field(Names().at(0), "rank"), "1");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// The first thing that the process does with this library.
FRESH_TEST(NcclCallsTest, AnOperationIsTheFirstMark) {
  ncclComm_t comm = NewCommunicator();
  EXPECT_TRUE(testing::SegmentDescriptors().empty());
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(Story(), "+-");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

FRESH_TEST(NcclCallsTest, ErrorsAreNcclsOwn) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  FakeNcclFail(3);
  EXPECT_EQ(AllReduce(comm), 3);
  EXPECT_EQ(AllReduce(nullptr), kInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
  EXPECT_EQ(Story(), "+-+-");
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), 0);
  ncclComm_t none = nullptr;
  EXPECT_EQ(ncclCommInitRank(&none, 2, id, 5), kInvalidArgument);
  FakeNcclFail(2);
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &none, nullptr), 2);
  EXPECT_EQ(none, nullptr);
  FakeNcclFail(6);
  EXPECT_EQ(ncclCommDestroy(comm), 6);
  EXPECT_EQ(ncclCommAbort(comm), 0);
}

FRESH_TEST(NcclCallsTest, GroupsAreMarkedToTheirEnd) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(ncclSend(nullptr, 1, kFloat32, 2, comm, nullptr), 0);
  EXPECT_EQ(Story(), "+");
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(ncclRecv(nullptr, 1, kFloat32, 2, comm, nullptr), 0);
  EXPECT_EQ(ncclGroupEnd(), 0);
  EXPECT_EQ(Story(), "++");
  EXPECT_STREQ(FakeNcclTakeLog(), "");
  FakeNcclDuring([] { EXPECT_EQ(Story(), "++"); });
  EXPECT_EQ(ncclGroupEnd(), 0);
  FakeNcclDuring(nullptr);
  EXPECT_EQ(Story(), "++--");
  EXPECT_STREQ(FakeNcclTakeLog(), "Send(0,0,1,7,2,0);Recv(0,0,1,7,2,0);");
  // One that NCCL refused is over.
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(AllReduce(nullptr), kInvalidArgument);
  EXPECT_EQ(Story(), "++--+-");
  EXPECT_EQ(AllReduce(comm), 0);
  FakeNcclFail(1);
  EXPECT_EQ(ncclGroupEnd(), 1);
  EXPECT_EQ(Story(), "++--+-+-");
  // Turned off within.
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(AllReduce(comm), 0);
  SegmentView().SetGate(0);
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(ncclGroupSimulateEnd(nullptr), 0);
  EXPECT_EQ(Story(), "++--+-+-+-");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

FRESH_TEST(NcclCallsTest, ManyOperationsInAGroup) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(ncclGroupStart(), 0);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(ncclSend(nullptr, 1, kFloat32, i % 8, comm, nullptr), 0);
  EXPECT_EQ(ncclGroupEnd(), 0);
  EXPECT_EQ(Story(), std::string(3000, '+') + std::string(3000, '-'));
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// What all ranks know makes the name: here both ranks are in one process.
FRESH_TEST(NcclCallsTest, CommunicatorsAreNamedAlikeOnAllRanks) {
  SwitchOn();
  ncclUniqueId ids[2];
  EXPECT_EQ(ncclGetUniqueId(&ids[0]) + ncclGetUniqueId(&ids[1]), 0);
  std::set<std::string> names;
  std::vector<ncclComm_t> made;
  ncclComm_t comm[2];
  const auto all_alike = [&](size_t different) {
    made.insert(made.end(), {comm[0], comm[1]});
    const std::string name = GroupOf(comm[0]);
    EXPECT_EQ(GroupOf(comm[1]), name);
    EXPECT_EQ(name.size(), 5u + 16u) << name;
    EXPECT_TRUE(name.starts_with("nccl:")) << name;
    names.insert(name);
    EXPECT_EQ(names.size(), different) << name;
    const std::vector<std::string> marks = Names();
    EXPECT_EQ(Field(marks.rbegin()[1], "rank") + Field(marks.rbegin()[0], "rank"), "01");
    EXPECT_EQ(Field(marks.back(), "ranks"), "2");
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommInitRank(&comm[i], 2, ids[0], i), 0);
  all_alike(1);
  ncclComm_t parent[2] = {comm[0], comm[1]};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommInitRankConfig(&comm[i], 2, ids[1], i, nullptr), 0);
  all_alike(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommInitRankScalable(&comm[i], 2, i, 2, ids, nullptr), 0);
  all_alike(3);
  for (int split = 0; split < 2; ++split) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommSplit(parent[i], 7, 0, &comm[i], nullptr), 0);
    all_alike(4 + static_cast<size_t>(split));
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommSplit(parent[i], 8, 0, &comm[i], nullptr), 0);
  all_alike(6);
  for (ncclComm_t& member : parent) {
    EXPECT_EQ(ncclCommSplit(member, -1, 0, &comm[0], nullptr), 0);
    EXPECT_EQ(comm[0], nullptr);
  }
  EXPECT_EQ(ncclCommInitAll(comm, 2, nullptr), 0);
  all_alike(7);
  // Made in a group, it is there at the group's end.
  EXPECT_EQ(ncclGroupStart(), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommSplit(parent[i], 7, 0, &comm[i], nullptr), 0);
  EXPECT_EQ(ncclGroupEnd(), 0);
  all_alike(8);
  int excluded[2] = {0, 4};
  ncclComm_t larger[2];
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommInitRank(&larger[i], 8, ids[0], i), 0);
  std::string shrunk[2];
  for (int i = 0; i < 2; ++i) {
    std::swap(excluded[0], excluded[1]);
    EXPECT_EQ(ncclCommShrink(larger[i], excluded, 2, &comm[i], nullptr, 0), 0);
    shrunk[i] = GroupOf(comm[i]);
    made.insert(made.end(), {larger[i], comm[i]});
  }
  EXPECT_EQ(shrunk[0], shrunk[1]);
  EXPECT_TRUE(names.insert(shrunk[0]).second);
  EXPECT_EQ(Field(Names().back(), "ranks"), "6");
  for (ncclComm_t each : made) EXPECT_EQ(ncclCommDestroy(each), 0);
}

// They come and go by the thousand, and NCCL gives the same handles again.
FRESH_TEST(NcclCallsTest, CommunicatorsComeAndGo) {
  SwitchOn();
  std::set<std::string> names;
  for (int round = 0; round < 100; ++round) {
    std::vector<ncclComm_t> comms;
    for (int i = 0; i < 100; ++i) comms.push_back(NewCommunicator(i % 4, 4));
    names.insert(GroupOf(comms[17]));
    EXPECT_EQ(Field(Names().back(), "rank"), "1");
    for (ncclComm_t comm : comms) EXPECT_EQ(round % 2 == 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm), 0);
  }
  EXPECT_GE(names.size(), 2u);
}

// More than there is room for, and such as were made behind our back: a name of their own, and NCCL says the rest.
FRESH_TEST(NcclCallsTest, UnknownCommunicators) {
  SwitchOn();
  void* nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(nccl, nullptr);
  auto* init = reinterpret_cast<decltype(&ncclCommInitRank)>(dlsym(nccl, "ncclCommInitRank"));
  auto* destroy = reinterpret_cast<decltype(&ncclCommDestroy)>(dlsym(nccl, "ncclCommDestroy"));
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), 0);
  ncclComm_t comm[2];
  for (int i = 0; i < 2; ++i) EXPECT_EQ(init(&comm[i], 2, id, i), 0);
  const std::string name = GroupOf(comm[1]);
  EXPECT_EQ(Field(Names().back(), "ranks") + Field(Names().back(), "rank"), "21");
  EXPECT_EQ(GroupOf(comm[1]), name);
  EXPECT_NE(GroupOf(comm[0]), name);
  for (ncclComm_t member : comm) EXPECT_EQ(destroy(member), 0);
  std::vector<ncclComm_t> many(6000);
  for (ncclComm_t& member : many) member = NewCommunicator(3, 4);
  std::set<std::string> names;
  for (size_t i = many.size() - 10; i < many.size(); ++i) {
    const std::string found = GroupOf(many[i]);
    EXPECT_EQ(GroupOf(many[i]), found);
    EXPECT_TRUE(names.insert(found).second);
  }
  EXPECT_EQ(Field(Names().back(), "ranks") + Field(Names().back(), "rank"), "43");
  for (ncclComm_t member : many) EXPECT_EQ(ncclCommDestroy(member), 0);
}

FRESH_TEST(NcclCallsTest, NcclsOwnCallsAreNoOperations) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(ncclBcast(Pointer(1), 5, kFloat32, 3, comm, Pointer(2)), 0);
  EXPECT_STREQ(FakeNcclTakeLog(), "Broadcast(1,1,5,7,3,2);");
  ASSERT_EQ(Names().size(), 1u);
  EXPECT_EQ(Field(Names()[0], "opName"), "ncclBroadcast");
  SegmentView().SetGate(0);
  EXPECT_EQ(ncclBcast(Pointer(1), 5, kFloat32, 3, comm, Pointer(2)), 0);
  EXPECT_STREQ(FakeNcclTakeLog(), "Broadcast(1,1,5,7,3,2);");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// ---- One mark an operation, whoever else sees it

FRESH_TEST(NcclCallsTest, AFrameworkThatMarksIsTheOne) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  ASSERT_EQ(taskd_communication_begin(22804), 1);
  EXPECT_EQ(AllReduce(comm), 0);
  std::thread([&] { EXPECT_EQ(AllReduce(comm), 0); }).join();
  EXPECT_EQ(Story(), "+-");  // the other thread's
  taskd_communication_end();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(Story(), "+-+-");
  ASSERT_EQ(taskd_communication_begin(0), 1);  // gloo's
  taskd_communication_end();
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// The real plugin, as NCCL asks it.
FRESH_TEST(NcclCallsTest, ThePluginIsTheOneOnceItSpeaks) {
  setenv("NCCL_PROFILER_PLUGIN", TASKD_NCCL_PLUGIN_PATH, 1);
  SwitchOn();
  // A framework's first operation comes before NCCL's first communicator.
  EXPECT_EQ(taskd_communication_begin(22804), 0);
  EXPECT_EQ(taskd_communication_begin(0), 1);
  taskd_communication_end();
  EXPECT_EQ(taskd_communication_begin(22200), 1);  // has no plugins
  taskd_communication_end();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(ncclSend(nullptr, 1, kFloat32, 0, comm, nullptr), 0);
  EXPECT_EQ(ncclGroupEnd(), 0);
  const std::vector<std::string> names = Names();
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(Field(names[0], "groupName"), "fake:000000000000fa4e");
  EXPECT_EQ(Field(names[1], "opName"), "ncclSend");
  EXPECT_EQ(Story(), "+-+-");
  EXPECT_EQ(taskd_communication_begin(22804), 0);
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// Named, but NCCL does not load it.
FRESH_TEST(NcclCallsTest, APluginThatDoesNotSpeak) {
  setenv("NCCL_PROFILER_PLUGIN", "/nowhere/libnccl-profiler-taskd.so", 1);
  SwitchOn();
  EXPECT_EQ(taskd_communication_begin(22804), 0);
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(Story(), "+-");
  EXPECT_EQ(taskd_communication_begin(22804), 1);
  EXPECT_EQ(AllReduce(comm), 0);
  taskd_communication_end();
  EXPECT_EQ(Story(), "+-");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

FRESH_TEST(NcclCallsTest, KeptOutOfNccl) {
  setenv("NCCL_PROFILER_PLUGIN", "none", 1);
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_STREQ(FakeNcclTakeLog(), "AllReduce(1,2,1,7,0,3);");
  EXPECT_EQ(Story(), "");
  EXPECT_EQ(taskd_communication_begin(22804), 1);  // a framework may
  taskd_communication_end();
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// NCCL has NVTX ranges of its own; a rule that fits them would make a second operation.
FRESH_TEST(NcclCallsTest, RulesMakeNoSecondOperation) {
  setenv("TASKD_MARK_NAMES", "communication=nccl*;communication=exchange", 1);
  taskd_mark("first");
  SegmentView().SetGate(ring::kGateAllKinds);
  ncclComm_t comm = NewCommunicator();
  FakeNcclDuring([] { taskd_range_end(taskd_domain_range_start(taskd_domain_create("NCCL"), "ncclAllReduce")); });
  EXPECT_EQ(AllReduce(comm), 0);
  FakeNcclDuring(nullptr);
  EXPECT_EQ(taskd_communication_begin(0), 1);
  taskd_range_end(taskd_range_start("exchange"));
  taskd_communication_end();
  taskd_range_end(taskd_range_start("exchange"));
  std::string said;
  for (const Record& record : SegmentView().Records()) {
    if (record.type != ring::kRecordRangeStart) continue;
    const bool communication = record.domain == ring::kDomainCommunication;
    said += communication ? "[" + Field(record.name, "opName") + "]" : record.name + " ";
  }
  EXPECT_EQ(said, "[ncclAllReduce]ncclAllReduce exchange [exchange]");
  // Where the plugin marks, NCCL's ranges are no operations even if we are not called.
  taskd_nccl_plugin_speaks();
  taskd_range_end(taskd_domain_range_start(taskd_domain_create("NCCL"), "ncclSend"));
  EXPECT_EQ(SegmentView().Records().rbegin()[1].name, "ncclSend");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// ---- Threads and forks

FRESH_TEST(NcclCallsTest, CommunicatorsInParallel) {
  SwitchOn();
  AllReduce(nullptr);  // found before there are threads: ThreadSanitizer does not know the dynamic linker's locks
  ncclGroupStart();
  ncclGroupEnd();
  ncclSend(nullptr, 1, kFloat32, 0, nullptr, nullptr);
  ncclCommDestroy(NewCommunicator());
  std::atomic<bool> done{false};
  std::thread switching([&done] {
    SegmentView segment;
    for (uint32_t i = 0; !done; ++i) segment.SetGate(i % 2 == 0 ? 0u : uint32_t{ring::kGateCommunication});
  });
  ncclComm_t shared = NewCommunicator();
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([shared] {
      for (int round = 0; round < 100; ++round) {
        ncclComm_t comm = NewCommunicator();
        EXPECT_EQ(AllReduce(comm), 0);
        EXPECT_EQ(ncclGroupStart(), 0);
        EXPECT_EQ(ncclSend(nullptr, 1, kFloat32, 0, comm, nullptr), 0);
        EXPECT_EQ(ncclSend(nullptr, 1, kFloat32, 0, shared, nullptr), 0);
        EXPECT_EQ(ncclGroupEnd(), 0);
        EXPECT_EQ(ncclCommDestroy(comm), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  switching.join();
  SegmentView segment;
  std::string problem;
  const std::string story = Story(segment.Records(&problem));
  EXPECT_EQ(problem, "");
  EXPECT_EQ(std::count(story.begin(), story.end(), '+'), std::count(story.begin(), story.end(), '-'));
  EXPECT_EQ(ncclCommDestroy(shared), 0);
}

FRESH_TEST(NcclCallsTest, AForkedChildRecordsWhenItAsks) {
  SwitchOn();
  ncclComm_t comm = NewCommunicator();
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(ncclGroupStart(), 0);
  EXPECT_EQ(AllReduce(comm), 0);
  EXPECT_EQ(testing::RunForked([comm] {
              const int before = AllReduce(comm) + ncclGroupEnd();
              if (before != 0 || !testing::SegmentDescriptors().empty()) return 1;
              if (taskd_worker_init(5, 0, 0) != 0 || AllReduce(comm) != 0) return 2;
              return Story() == "+-" ? 0 : 3;
            }),
            0);
  EXPECT_EQ(ncclGroupEnd(), 0);
  EXPECT_EQ(Story(), "+-+-");
  EXPECT_EQ(ncclCommDestroy(comm), 0);
}

// ---- Really preloaded

struct Ended {
  std::string said;  // without the process id
  std::vector<Record> records;
};

Ended RunPreloaded(const std::string& command) {
  FILE* pipe =
      popen(("ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=" TASKD_SDK_PATH " " + command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), bytes);
  EXPECT_EQ(pclose(pipe), 0) << output;
  Ended ended;
  // What it says on stderr may come before the process id.
  std::istringstream lines(output);
  std::string line;
  std::string pid;
  while (std::getline(lines, line)) {
    if (pid.empty() && !line.empty() && line.find_first_not_of("0123456789") == std::string::npos) {
      pid = line;
    } else {
      ended.said += line + "\n";
    }
  }
  char prefix[96];
  snprintf(prefix, sizeof(prefix), "taskd-%u-%016llx-%s-", geteuid(),
           static_cast<unsigned long long>(hello::HashSocketPath(getenv("TASKD_SOCKET"))), pid.c_str());
  for (const auto& entry : std::filesystem::directory_iterator(hello::kSegmentFolder)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    ended.records = SegmentView(fd).Records();
    close(fd);
  }
  return ended;
}

// What UseNccl of testing/nccl_user.cc says, and what is to be marked of it.
std::string UseNcclSays(int version) {
  const std::string number = std::to_string(version);
  return "NCCL " + number + ": AllReduce(0,0," + number + ",7,0,0);Send(0,0,3,7,0,0);Recv(0,0,3,7,0,0);" +
         "Broadcast(0,0,9,7,0,0); 0\n";
}
void ExpectUseNccl(const std::vector<Record>& records, const std::vector<int>& versions) {
  std::string story;
  std::vector<std::string> names;
  for (int version : versions) {
    story += "+-++--+-";
    names.push_back("ncclAllReduce " + std::to_string(version));
    names.insert(names.end(), {"ncclSend 3", "ncclRecv 3", "ncclBroadcast 9"});
  }
  EXPECT_EQ(Story(records), story);
  std::vector<std::string> found;
  for (const std::string& name : Names(records)) {
    found.push_back(Field(name, "opName") + " " + Field(name, "count"));
    EXPECT_EQ(Field(name, "ranks") + Field(name, "rank"), "21");
  }
  EXPECT_EQ(found, names);
}

FRESH_TEST(NcclPreloadTest, AProgramLinkedWithNccl) {
  const Ended ended = RunPreloaded(TASKD_NCCL_LINKED);
  EXPECT_EQ(ended.said, UseNcclSays(22809) + "ncclAllReduce is there\n");
  ExpectUseNccl(ended.records, {22809});
}

// As Python loads PyTorch, whose NCCL nobody else sees.
FRESH_TEST(NcclPreloadTest, ALibraryLinkedWithNccl) {
  const Ended ended = RunPreloaded(TASKD_NCCL_CALLER " " TASKD_NCCL_USER);
  EXPECT_EQ(ended.said, UseNcclSays(22809));
  ExpectUseNccl(ended.records, {22809});
}

// Each calls the one that it has inside.
FRESH_TEST(NcclPreloadTest, TwoLibrariesWithAnNcclInside) {
  const Ended ended =
      RunPreloaded(TASKD_NCCL_CALLER " " TASKD_NCCL_INSIDE " " TASKD_NCCL_USER " " TASKD_NCCL_INSIDE_TOO);
  EXPECT_EQ(ended.said, UseNcclSays(21403) + UseNcclSays(22809) + UseNcclSays(21805));
  ExpectUseNccl(ended.records, {21403, 22809, 21805});
}

// The caller neither has nor needs an NCCL.
FRESH_TEST(NcclPreloadTest, APointerThatWasHandedOver) {
  for (const char* library : {TASKD_NCCL_USER, TASKD_NCCL_INSIDE}) {
    const Ended ended = RunPreloaded(std::string(TASKD_NCCL_CALLER " pointer ") + library);
    EXPECT_EQ(ended.said, std::to_string(kInvalidArgument) + "\n");
    EXPECT_EQ(Story(ended.records), "+-");
  }
}

FRESH_TEST(NcclPreloadTest, NcclIsNotFoundWhereItIsNot) {
  const Ended ended = RunPreloaded(TASKD_NCCL_CALLER);
  EXPECT_EQ(ended.said, "ncclAllReduce is absent\n");
  EXPECT_TRUE(ended.records.empty());
}

FRESH_TEST(NcclPreloadTest, DlsymFindsNcclsOwn) {
  const Ended ended = RunPreloaded(TASKD_NCCL_CALLER " dlsym " TASKD_FAKE_NCCL);
  EXPECT_EQ(ended.said, "AllReduce(0,0,1,7,0,0);\n");
  EXPECT_TRUE(ended.records.empty());
}

FRESH_TEST(NcclPreloadTest, AnOlderReleaseThanTheProgramKnows) {
  const std::string program = TASKD_NCCL_CALLER " newer " TASKD_NCCL_NEWER_USER;
  EXPECT_EQ(RunPreloaded(program).said, "0 0 0 0 0 child\n");
  const Ended ended = RunPreloaded("LD_LIBRARY_PATH=" TASKD_OLD_NCCL_FOLDER " " + program);
  EXPECT_NE(ended.said.find("5 5 5 5 0 none\n"), std::string::npos) << ended.said;
  for (const char* name : {"ncclCommInitRankConfig", "ncclCommSplit", "ncclAlltoAll"}) {
    const std::string line = std::string("taskd: this program's NCCL has no ") + name + ": the call is refused\n";
    const size_t first = ended.said.find(line);
    EXPECT_NE(first, std::string::npos) << ended.said;
    EXPECT_EQ(ended.said.find(line, first + 1), std::string::npos) << ended.said;
  }
  ASSERT_EQ(Names(ended.records).size(), 1u);
  EXPECT_EQ(Field(Names(ended.records)[0], "opName"), "ncclAllReduce");
}

}  // namespace
}  // namespace taskd::worker
