// A few marks and what they leave, for machines without GoogleTest (arm64_check.sh).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "mstx_api.h"
#include "taskd/taskd.h"
#include "testing/segment_view.h"

namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "arm64_smoke: %s\n", what);
  exit(1);
}

}  // namespace

int main() {
  using taskd::testing::Record;
  mstxMarkA("step 17", nullptr);
  taskd::testing::SegmentView segment;
  char path[256] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(segment.fd());
  if (readlink(link.c_str(), path, sizeof(path) - 1) > 0) unlink(path);
  Require(segment.header().clock == taskd::ring::kClockCounter, "cntvct_el0 is not the clock");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      const std::string long_name(300, 'n');
      for (int mark = 0; mark < 20000; ++mark) {
        mstxRangeEnd(mstxRangeStartA("forward", &mark));
        taskd_mark(long_name.c_str() + mark % 300);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string problem;
  const std::vector<Record> records = segment.Records(&problem);
  Require(problem.empty(), problem.c_str());
  Require(records[0].name == "step 17" && records[0].kind == taskd::ring::kKindStep, "the first mark is wrong");
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].slot != records[i - 1].slot) continue;
    Require(records[i].sequence == records[i - 1].sequence + 1, "a record is missing");
    Require(records[i].ticks >= records[i - 1].ticks, "time runs backwards");
  }
  taskd_worker_stats stats;
  Require(taskd_worker_get_stats(&stats) == 0 && stats.records == 1 + 4 * 60000 && stats.dropped == 0,
          "records were dropped");
  Require(taskd_worker_init(3, 0, 0) == 0 && segment.header().rank.load() == 3, "init failed");
  printf("arm64_smoke: %llu records, ok\n", static_cast<unsigned long long>(stats.records));
  return 0;
}
