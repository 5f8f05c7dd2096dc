// What the ledger costs the manager: ledger_benchmark [RANKS]. A job of RANKS ranks and one step a second for two minutes, with three restarts
// and a straggler after each.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ledger/ledger.h"
#include "ledger/render.h"

namespace {

using taskd::StepFold;
using taskd::ledger::Ledger;
using Clock = std::chrono::steady_clock;

constexpr int64_t kUnix = 1'700'000'000'000'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kSteps = 120;
constexpr int kStepsOfALife = 30;

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;  // what is large is mapped
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 16384;
  const size_t before = AllocatedBytes();
  Ledger ledger({.now_ns = 0, .unix_offset_ns = kUnix, .slots = ranks, .launched = true});
  ledger.Started(0, 0, 0);
  double folds_s = 0, advance_s = 0, report_s = 0;
  int64_t now_ns = 0, number = 0;
  uint32_t life = 0;
  for (int step = 0; step < kSteps; ++step, ++number) {
    now_ns += kSecond;
    const bool first = step % kStepsOfALife == 0;
    if (first && step > 0) {
      ledger.Exited({.rank = step, .failed = true, .text = "rank failed"}, now_ns, now_ns);
      now_ns += 2 * kSecond;
      ledger.Started(static_cast<int>(++life), now_ns, now_ns);
      now_ns += 2 * kSecond;
      for (int rank = 0; rank < ranks; ++rank) ledger.Seen(rank, true, now_ns, now_ns);
      number -= 5;
      std::vector<Ledger::Straggler> slow(1);
      slow[0].cost = {.verdict = life, .since_step = number, .cost_s = 0.1};
      slow[0].text = "rank is slow";
      ledger.SetStragglers(slow, now_ns);
      now_ns += kSecond;
    }
    Clock::time_point begin = Clock::now();
    for (int rank = 0; rank < ranks; ++rank) {
      StepFold fold;
      fold.step = number;
      fold.process_id = life * 1'000'000 + static_cast<uint32_t>(rank);
      fold.end_ns = static_cast<uint64_t>(kUnix + now_ns - 1000 * (rank % 1000));
      fold.start_ns = fold.end_ns - kSecond;
      if (!first) fold.previous_end_ns = fold.start_ns;
      ledger.Step(rank, fold, now_ns + kSecond / 10);
    }
    folds_s += Since(begin);
    begin = Clock::now();
    ledger.Advance(now_ns + kSecond / 5);
    advance_s = std::max(advance_s, Since(begin));
    begin = Clock::now();
    const std::string json = RenderJson(ledger.report(), "default/job");
    report_s = std::max(report_s, Since(begin));
  }
  const taskd::ledger::Report report = ledger.report();
  printf(
      "%d ranks: %.0f ns a step and rank; at most %.1f ms to close, %.1f ms for a report; %.1f MiB; the sum is off by "
      "%.1g\n",
      ranks, folds_s / (static_cast<double>(kSteps) * ranks) * 1e9, advance_s * 1e3, report_s * 1e3,
      static_cast<double>(AllocatedBytes() - before) / (1 << 20),
      taskd::ledger::Sum(report.seconds()) / report.rank_s - 1);
}
