// The recorder's threads and the proxy's reader at the same ring at the same time: what is read is whole, in order, and
// what is not read is counted. arm64_check.sh runs it on arm64, too.
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proxy/ring_segment.h"
#include "taskd/taskd.h"
#include "testing/segment_view.h"

namespace taskd::proxy {
namespace {

constexpr int kThreads = 6;     // some in large rings, some in small ones
constexpr int kLives = 3;       // each thread ends, and another one goes on in its ring
constexpr int kRounds = 20000;  // of a life; four records each
constexpr int kPace = 200;      // rounds, of which kRounds is a multiple; they fit every ring

// Every other thread waits for the reader now and then, so that nothing of it is lost; the rest lap the reader as they
// like.
bool IsPaced(int writer) { return writer / kLives % 2 == 0; }

// "<writer>/<number>/" and as many 'x' as that number implies: a word of another record would show.
std::string NameOf(int writer, int number) {
  std::string name = std::to_string(writer) + "/" + std::to_string(number) + "/";
  return name.append(static_cast<size_t>(number * 37 % 200), 'x');
}

struct Parsed {
  int writer = -1;
  int number = -1;
};

Parsed Parse(std::string_view name) {
  Parsed parsed;
  const char* end = name.data() + name.size();
  const char* rest = std::from_chars(name.data(), end, parsed.writer).ptr;
  if (rest < end) std::from_chars(rest + 1, end, parsed.number);
  return parsed;
}

// Ranges that one thread starts and the next one ends.
std::atomic<uint64_t> handed_over[kThreads];
// By writer: the rounds that the reader has seen.
std::atomic<int> seen[kThreads * kLives];
std::atomic<bool> stop{false};

void Write(int thread, int life) {
  const int writer = thread * kLives + life;
  const std::string domain_name = "domain " + std::to_string(writer);
  taskd_domain* domain = nullptr;
  for (int round = 0; round < kRounds; ++round) {
    const std::string name = NameOf(writer, round);
    if (round == kRounds / 2) domain = taskd_domain_create(domain_name.c_str());
    domain == nullptr ? taskd_mark(name.c_str()) : taskd_domain_mark(domain, name.c_str());
    taskd_mark("forward");
    const uint64_t mine = taskd_range_start(name.c_str());
    const uint64_t other = handed_over[thread].exchange(mine, std::memory_order_acq_rel);
    taskd_range_end(handed_over[(thread + 1) % kThreads].exchange(other, std::memory_order_acq_rel));
    if (!IsPaced(writer) || (round + 1) % kPace != 0) continue;
    while (seen[writer].load() <= round && !stop.load()) sched_yield();
  }
}

class Checker {
 public:
  explicit Checker(RingSegment& segment) : segment_(segment) {}

  // False: there was nothing.
  bool ReadOnce() {
    segment_.Read(UINT64_MAX, 1 << 20, batch_);
    EXPECT_EQ(segment_.fault(), "");
    for (const RingRecord& record : batch_.records) Check(record);
    segment_.StageCursors(batch_);
    segment_.CommitCursors(batch_);
    records_ += batch_.records.size();
    return !batch_.records.empty();
  }

  uint64_t records() const { return records_; }
  int marks(int writer) const {
    const auto found = marks_.find(writer);
    return found == marks_.end() ? 0 : found->second;
  }

 private:
  void Check(const RingRecord& record) {
    const std::string_view name = batch_.Name(record);
    if (record.type == ring::kRecordRangeEnd) {
      EXPECT_EQ(name, "");
      return;
    }
    if (name == "forward") {
      EXPECT_EQ(record.kind, ring::kKindForward);
      return;
    }
    const Parsed parsed = Parse(name);
    ASSERT_EQ(name, NameOf(parsed.writer, parsed.number));
    ASSERT_TRUE(parsed.writer >= 0 && parsed.writer < kThreads * kLives) << name;
    EXPECT_TRUE(record.type == ring::kRecordMark || record.type == ring::kRecordRangeStart);
    EXPECT_EQ(record.kind, ring::kKindOther);
    const bool in_domain = record.type == ring::kRecordMark && parsed.number >= kRounds / 2;
    EXPECT_EQ(segment_.DomainName(record.domain),
              in_domain ? "domain " + std::to_string(parsed.writer) : std::string("default"));
    // A writer's numbers, and its time stamps, go up.
    const auto [found, first] = last_.try_emplace(parsed.writer, record.tid, parsed.number, record.ticks);
    auto& [tid, number, ticks] = found->second;
    EXPECT_EQ(record.tid, tid) << parsed.writer;
    EXPECT_LE(number, parsed.number) << parsed.writer;
    EXPECT_LE(ticks, record.ticks) << parsed.writer;
    if (record.type == ring::kRecordMark) ++marks_[parsed.writer];
    seen[parsed.writer].store(parsed.number + 1);
    number = parsed.number;
    ticks = record.ticks;
  }

  RingSegment& segment_;
  RingBatch batch_;
  uint64_t records_ = 0;
  std::map<int, std::tuple<uint32_t, int, uint64_t>> last_;  // by writer
  std::map<int, int> marks_;
};

TEST(RingStress, WhatIsReadWhileThreadsRecordIsWhole) {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "RANK_ID", "TASKD_MARK_NAMES"}) unsetenv(name);
  setenv("TASKD_SOCKET", "/nonexistent/ring_stress_test.sock", 1);
  taskd_mark("forward");  // makes the segment
  const std::vector<int> segments = testing::SegmentDescriptors();
  ASSERT_EQ(segments.size(), 1u);
  char path[256] = {};
  if (readlink(("/proc/self/fd/" + std::to_string(segments[0])).c_str(), path, sizeof(path) - 1) > 0) unlink(path);
  auto opened = RingSegment::Open(UniqueFd(dup(segments[0])));
  ASSERT_TRUE(opened.ok());
  std::unique_ptr<RingSegment> segment = *std::move(opened);

  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread, &running] {
      for (int life = 0; life < kLives; ++life) std::thread(Write, thread, life).join();
      running.fetch_sub(1);
    });
  }
  Checker checker(*segment);
  while (running.load() > 0 && !HasFailure()) checker.ReadOnce();
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  while (checker.ReadOnce() && !HasFailure()) {
  }

  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  // Ends of ranges that were not handed over yet do not count.
  EXPECT_GE(stats.records, uint64_t{kThreads} * kLives * kRounds * 3);
  EXPECT_EQ(checker.records() + segment->lost(), stats.records);
  for (int writer = 0; writer < kThreads * kLives; ++writer) {
    if (IsPaced(writer)) {
      EXPECT_EQ(checker.marks(writer), kRounds) << writer;
    }
  }
  printf("%llu records read, %llu lost\n", static_cast<unsigned long long>(checker.records()),
         static_cast<unsigned long long>(segment->lost()));
}

}  // namespace
}  // namespace taskd::proxy
