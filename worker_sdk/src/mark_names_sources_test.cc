// TASKD_MARK_NAMES in a process that marks: every source's names go by the same rules.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "mstx_api.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

void SetRules() {
  setenv("TASKD_MARK_NAMES", "forward=fwd*;step=iter *;dataloader=next_batch;communication=all_reduce*", 1);
}

std::string Last() {
  const Record record = SegmentView().Last();
  return std::string(SegmentView().header().domain_names[record.domain]) + "/" + record.name;
}

FRESH_TEST(MarkRulesTest, MstxAndTheCApi) {
  SetRules();
  taskd_mark("iter 7");  // the first mark of the process
  EXPECT_EQ(Last(), "default/step 7");
  SegmentView segment;
  EXPECT_EQ(segment.Last().kind, ring::kKindStep);
  EXPECT_FALSE(segment.Last().flags & ring::kFlagStream);

  int stream = 0;
  const uint64_t id = mstxRangeStartA("fwd_3", &stream);
  EXPECT_EQ(Last(), "default/forward");
  EXPECT_EQ(segment.Last().kind, ring::kKindForward);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeStart);
  EXPECT_EQ(segment.Last().id, id);
  EXPECT_TRUE(segment.Last().flags & ring::kFlagStream);
  mstxRangeEnd(id);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  EXPECT_EQ(segment.Last().id, id);

  taskd_domain* lib = taskd_domain_create("lib");
  taskd_domain_mark(lib, "next_batch");
  EXPECT_EQ(Last(), "default/dataloader");
  taskd_domain_mark(lib, "another");
  EXPECT_EQ(Last(), "lib/another");
  mstxDomainRangeEnd(lib, mstxDomainRangeStartA(lib, "iter 8", nullptr));
  taskd_mark("all_reduce grads");
  EXPECT_EQ(Last(),
            R"(communication/{"count": "0","dataType": "na","groupName": "user","opName": "all_reduce grads"})");
  EXPECT_EQ(segment.Last().kind, ring::kKindCommunication);
  EXPECT_TRUE(segment.Last().flags & ring::kFlagStream);
}

FRESH_TEST(MarkRulesTest, NamesThatAreKnownStay) {
  setenv("TASKD_MARK_NAMES", "dataloader=*", 1);
  for (const char* name : {"step 1", "forward", "dataloader", "save_checkpoint"}) {
    taskd_mark(name);
    EXPECT_EQ(Last(), std::string("default/") + name);
  }
  taskd_domain_mark(taskd_domain_create("communication"), "free text");
  EXPECT_EQ(Last(), "communication/free text");
  taskd_mark("");
  EXPECT_EQ(Last(), "default/dataloader");
  taskd_mark(nullptr);
}

// What no rule fits, short and long, the second time as well as the first.
FRESH_TEST(MarkRulesTest, NamesThatNoRuleFits) {
  SetRules();
  taskd_mark("first");
  for (int i = 0; i < 3; ++i) {
    for (const char* name : {"short", "a name of many bytes", "fw"}) {
      taskd_mark(name);
      EXPECT_EQ(Last(), std::string("default/") + name);
      EXPECT_EQ(SegmentView().Last().kind, ring::kKindOther);
    }
    taskd_mark("fwd");  // as long as the one before
    EXPECT_EQ(Last(), "default/forward");
  }
}

FRESH_TEST(MarkRulesTest, TheGateIsThatOfTheNewKind) {
  SetRules();
  taskd_mark("first");
  SegmentView segment;
  const auto count = [&segment] { return segment.Records().size(); };
  segment.SetGate(ring::kGateAllKinds & ~ring::kGateForward);
  const size_t before = count();
  EXPECT_EQ(taskd_range_start("fwd_1"), 0u);
  taskd_range_end(0);
  EXPECT_EQ(count(), before);
  segment.SetGate(ring::kGateForward);
  taskd_mark("something else");
  taskd_mark("iter 3");
  EXPECT_EQ(count(), before);
  const uint64_t id = taskd_range_start("fwd_1");
  EXPECT_NE(id, 0u);
  segment.SetGate(0);
  taskd_range_end(id);  // both halves or none
  taskd_mark("fwd_2");
  EXPECT_EQ(count(), before + 2);
}

FRESH_TEST(MarkRulesTest, NamesAtTheEndOfAPage) {
  SetRules();
  const long page = sysconf(_SC_PAGESIZE);
  char* pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  for (const char* name : {"fwd", "iter 9", "other", "a long name that no rule fits", "x", ""}) {
    char* end = pages + page - strlen(name) - 1;
    memcpy(end, name, strlen(name) + 1);
    taskd_mark(end);
  }
  std::vector<std::string> names;
  for (const Record& record : SegmentView().Records()) names.push_back(record.name);
  EXPECT_EQ(names, (std::vector<std::string>{"forward", "step 9", "other", "a long name that no rule fits", "x", ""}));
}

FRESH_TEST(MarkRulesTest, ThreadsThatBeginTogether) {
  SetRules();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 100; ++n) taskd_range_end(taskd_range_start("fwd_x"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<Record> records = SegmentView().Records();
  EXPECT_EQ(records.size(), 800u);
  for (const Record& record : records) {
    EXPECT_EQ(record.name, record.type == ring::kRecordRangeStart ? "forward" : "");
  }
}

// A child that asks for marks has its parent's rules, once.
FRESH_TEST(MarkRulesTest, ForkedChild) {
  SetRules();
  taskd_mark("fwd");
  const pid_t child = fork();
  if (child == 0) {
    if (taskd_worker_init(3, 0, 0) != 0) _exit(1);
    taskd_mark("fwd_in_child");
    _exit(Last() == "default/forward" ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

FRESH_TEST(MarkRulesTest, ABadRuleIsSaidOnceAndTheOthersHold) {
  setenv("TASKD_MARK_NAMES", "backward=x;forward=fwd", 1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int kept = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  taskd_mark("fwd");
  taskd_mark("fwd");
  dup2(kept, STDERR_FILENO);
  close(ends[1]);
  char said[1024] = {};
  ASSERT_GT(read(ends[0], said, sizeof(said) - 1), 0);
  EXPECT_STREQ(said,
               "taskd: TASKD_MARK_NAMES: 'backward=x' is left out: the kind must be step, forward, dataloader, "
               "save_checkpoint or communication\n");
  EXPECT_EQ(Last(), "default/forward");
}

}  // namespace
}  // namespace taskd::worker
