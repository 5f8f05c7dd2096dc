// Many threads, threads that end, and marks made inside a mark.
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

// All begin at once, so they also race for the segment.
FRESH_TEST(ThreadTest, ThreeHundredThreads) {
  constexpr int kThreads = 300;
  constexpr int kMarks = 100;
  std::barrier start(kThreads);
  std::barrier finish(kThreads + 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      const std::string name = "thread " + std::to_string(i);
      for (int mark = 0; mark < kMarks; ++mark) taskd_mark(name.c_str());
      finish.arrive_and_wait();
      finish.arrive_and_wait();
    });
  }
  finish.arrive_and_wait();
  SegmentView segment;
  EXPECT_EQ(segment.header().slots.load(), static_cast<uint32_t>(kThreads));
  std::string problem;
  std::map<std::string, int> marks;
  std::map<std::string, std::set<uint32_t>> tids;
  std::set<uint64_t> ids;
  for (const Record& record : segment.Records(&problem)) {
    ++marks[record.name];
    tids[record.name].insert(record.tid);
    EXPECT_TRUE(ids.insert(record.id).second);
  }
  EXPECT_EQ(problem, "");
  EXPECT_EQ(marks.size(), static_cast<size_t>(kThreads));
  for (const auto& [name, count] : marks) {
    EXPECT_EQ(count, kMarks) << name;
    EXPECT_EQ(tids[name].size(), 1u);
  }
  EXPECT_EQ(segment.header().thread_slots[3].data_bytes, ring::kLargeRingBytes);
  EXPECT_EQ(segment.header().thread_slots[4].data_bytes, ring::kSmallRingBytes);
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.threads, static_cast<uint32_t>(kThreads));
  EXPECT_EQ(stats.records, static_cast<uint64_t>(kThreads) * kMarks);
  EXPECT_EQ(stats.dropped, 0u);
  finish.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
}

FRESH_TEST(ThreadTest, SlotsOfEndedThreadsAreUsedAgain) {
  taskd_mark("main");
  SegmentView segment;
  std::set<uint32_t> tids;
  for (int i = 0; i < 2000; ++i) {
    std::thread([&] {
      tids.insert(static_cast<uint32_t>(gettid()));
      taskd_mark("step 17");
      taskd_mark("step 17");
      EXPECT_EQ(segment.Last().tid, static_cast<uint32_t>(gettid()));
      EXPECT_EQ(segment.Last().slot, 1u);
    }).join();
  }
  EXPECT_EQ(segment.header().slots.load(), 2u);
  std::string problem;
  const std::vector<Record> records = segment.Records(&problem);
  EXPECT_EQ(problem, "");
  EXPECT_EQ(records.size(), 1u + 4000u);
  for (size_t i = 2; i < records.size(); ++i) EXPECT_EQ(records[i].sequence, records[i - 1].sequence + 1);
}

FRESH_TEST(ThreadTest, MoreThreadsThanSlots) {
  constexpr uint32_t kThreads = ring::kMaxThreads + 10;
  std::barrier all(kThreads + 1);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int mark = 0; mark < 10; ++mark) taskd_mark("step 17");
      all.arrive_and_wait();
      all.arrive_and_wait();
    });
  }
  all.arrive_and_wait();
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.threads, ring::kMaxThreads);
  EXPECT_EQ(stats.records, ring::kMaxThreads * 10u);
  EXPECT_EQ(stats.dropped, 100u);
  SegmentView segment;
  EXPECT_EQ(segment.header().dropped.load(), 100u);
  all.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  taskd_mark("there is room again");
  EXPECT_EQ(segment.Last().name, "there is room again");
}

FRESH_TEST(ThreadTest, AnotherThreadEndsTheRange) {
  const uint64_t id = taskd_range_start("forward");
  SegmentView segment;
  std::thread([&] {
    taskd_range_end(id);
    EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
    EXPECT_EQ(segment.Last().id, id);
    EXPECT_GE(segment.Last().ticks, segment.Records()[0].ticks);
  }).join();
}

std::atomic<uint64_t> g_handler_marks{0};

// One SIGALRM in 50 us. A timer that repeats leaves a slow machine (an emulator, say) no time for anything but the handler.
int ArmTimer() {
  constexpr itimerval kOnce = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 50}};
  return setitimer(ITIMER_REAL, &kOnce, nullptr);
}

// As often as the timer comes: inside a mark it is dropped and counted, elsewhere recorded; nothing is ever torn.
FRESH_TEST(ThreadTest, MarksInSignalHandlers) {
  taskd_mark("main");
  SegmentView segment;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    taskd_mark("handler");
    g_handler_marks.fetch_add(1);
    ArmTimer();
  };
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  ASSERT_EQ(ArmTimer(), 0);
  uint64_t made = 1;
  const std::string long_name(200, 'n');
  EXPECT_TRUE(testing::WaitUntil([&] {
    for (int i = 0; i < 1000; ++i) {
      taskd_mark("step 17");
      taskd_range_end(taskd_range_start(long_name.c_str()));
      made += 3;
    }
    return g_handler_marks.load() >= 2000;
  }));
  ASSERT_NE(signal(SIGALRM, SIG_IGN), SIG_ERR);
  std::string problem;
  const std::vector<Record> records = segment.Records(&problem);
  EXPECT_EQ(problem, "");
  for (size_t i = 1; i < records.size(); ++i) ASSERT_EQ(records[i].sequence, records[i - 1].sequence + 1);
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.records + stats.dropped, made + g_handler_marks.load());
}

FRESH_TEST(ThreadTest, DomainsFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<taskd_domain*> domains[4] = {};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int domain = 0; domain < 4; ++domain) {
        taskd_domain* mine = taskd_domain_create(("domain " + std::to_string(domain)).c_str());
        taskd_domain* first = nullptr;
        if (!domains[domain].compare_exchange_strong(first, mine)) {
          EXPECT_EQ(first, mine);
        }
        taskd_domain_mark(mine, "mark");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  SegmentView segment;
  EXPECT_EQ(segment.header().domains.load(), 6u);
  std::map<std::string, int> marks;
  for (const Record& record : segment.Records()) ++marks[segment.header().domain_names[record.domain]];
  for (int domain = 0; domain < 4; ++domain) EXPECT_EQ(marks["domain " + std::to_string(domain)], 16);
}

}  // namespace
}  // namespace taskd::worker
