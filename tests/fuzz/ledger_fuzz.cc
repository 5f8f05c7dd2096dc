// Any events in any order, doubled, missing, with stamps of any clock: the ledger's categories add up to what its slots have
// lived, what is closed never shrinks, and its report as JSON is read again; any text as such a report is refused or read.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "ledger/ledger.h"
#include "ledger/render.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace taskd::ledger;  // NOLINT(google-build-using-namespace): a program of its own

constexpr int64_t kUnix = 1'700'000'000'000'000'000;
constexpr int64_t kMilli = 1'000'000;

struct Watch {
  Seconds closed{};
};

bool Near(double a, double b) { return std::fabs(a - b) <= 1e-6 * (1 + std::fabs(a) + std::fabs(b)); }

Report Check(const Ledger& ledger, Watch& watch, bool fixed) {
  Report report = ledger.report();
  const Seconds seconds = report.seconds();
  FUZZ_CHECK(Near(Sum(seconds), report.rank_s));
  if (fixed) FUZZ_CHECK(Near(report.rank_s, report.slots * report.wall_s()));
  for (size_t i = 0; i < kCategories; ++i) {
    FUZZ_CHECK(report.closed[i] >= watch.closed[i] && report.provisional[i] >= 0 && std::isfinite(seconds[i]));
  }
  FUZZ_CHECK(report.incidents.size() <= Report::kMaxIncidents && report.attempts.size() <= Report::kMaxAttempts);
  double incidents_s = 0;
  for (const Incident& incident : report.incidents) incidents_s += Sum(incident.seconds);
  FUZZ_CHECK(incidents_s <= report.rank_s * (1 + 1e-6) + 1e-6);
  watch.closed = report.closed;
  return report;
}

taskd::StepFold FoldOf(const uint8_t* in, int64_t now_ns) {
  taskd::StepFold fold;
  fold.step = in[1] % 32;
  fold.process_id = 1 + in[2] % 3;
  uint64_t end_ns = static_cast<uint64_t>(kUnix + now_ns - in[3] * 20 * kMilli);
  if (in[4] == 255) end_ns = uint64_t{in[5]} << (in[6] % 64);
  if (in[4] == 254) end_ns += static_cast<uint64_t>(in[5]) * 3600'000 * kMilli;
  fold.end_ns = end_ns;
  fold.start_ns = end_ns - std::min<uint64_t>(end_ns, static_cast<uint64_t>(in[5]) * 10 * kMilli);
  if (in[6] % 4 != 0)
    fold.previous_end_ns = fold.start_ns - std::min<uint64_t>(fold.start_ns, in[6] * uint64_t{kMilli});
  fold.dataloader_own_ns = in[7] % 8 == 0 ? uint64_t{in[7]} << (in[6] % 57) : 0;
  fold.checkpoints = in[7] % 8 == 1 ? 1 : 0;
  fold.checkpoint_own_ns = in[7] % 8 == 1 ? uint64_t{in[7]} << (in[6] % 57) : 0;
  return fold;
}

std::vector<Ledger::Straggler> StragglersOf(const uint8_t* in) {
  std::vector<Ledger::Straggler> stragglers(in[2] % 4);
  for (size_t i = 0; i < stragglers.size(); ++i) {
    stragglers[i].cost = {.verdict = in[3] % 8 + i,
                          .open = in[4] % 2 == 0,
                          .since_step = in[5] % 32,
                          .last_step = in[6] % 32,
                          .cost_s = in[7] / 16.0,
                          .of_data = i == 1};
  }
  return stragglers;
}

// A ledger, and what must hold of it.
class Game {
 public:
  Game(int slots, bool launched, int64_t now_ns) : fixed_(slots > 0) {
    ledger_.emplace(Ledger::Options{.now_ns = now_ns, .unix_offset_ns = kUnix, .slots = slots, .launched = launched});
  }

  Ledger& ledger() { return *ledger_; }
  Report Check() { return ::Check(*ledger_, watch_, fixed_); }

  // Eight bytes an event.
  void Play(const uint8_t* data, int64_t at_ns, int64_t now_ns) {
    const int rank = data[5] == 255 ? 70000 : data[5] % 6 - 1;
    Ledger& ledger = *ledger_;
    switch (data[0] % 16) {
      case 0:
        return ledger.Waits(data[2] % 2 == 0, at_ns, now_ns);
      case 1:
      case 2:
        return ledger.Started(data[2] % 16, at_ns, now_ns);
      case 3:
        return ledger.Exited({.rank = rank, .node = data[6], .failed = data[2] % 2 == 0}, at_ns, now_ns);
      case 4:
        return ledger.Restarting(static_cast<IncidentKind>(data[2] % kIncidentKinds), "a\n\xff", at_ns, now_ns);
      case 5:
        if (data[2] % 4 == 0) ledger.Ended(data[6], "over", at_ns, now_ns);
        return;
      case 6:
        return ledger.Hang(at_ns, {rank}, "hang", now_ns);
      case 7:
        return ledger.Resumed(at_ns, now_ns);
      case 8:
        return ledger.Suspended(rank, at_ns, at_ns + data[2] * 100 * kMilli, now_ns);
      case 9:
        return ledger.SetStepsOn(data[2] % 2 == 0, now_ns);
      case 10:
        return ledger.Seen(rank, data[2] % 4 != 0, at_ns, now_ns);
      case 11:
        return ledger.SetStragglers(StragglersOf(data), now_ns);
      case 12:
        if (data[2] % 8 == 0) {
          ledger.SetSlots(data[6] % 8, at_ns, now_ns);
          fixed_ = false;
        } else if (data[2] % 8 == 1) {
          Replace(data, now_ns);
        } else if (data[2] % 8 == 2 && former_) {
          former_->dead_ns += data[3] * 100 * kMilli;
          ledger.Precede(*former_, data[4] % 2 == 0 ? Category::kQueue : Category::kUnknown, now_ns);
          former_.reset();
          watch_ = Watch();
        }
        return;
      case 13:
        return ledger.Saved(rank, {.step = data[2] % 32 - 1, .ns = data[3] * uint64_t{100'000'000}}, now_ns);
      default:
        return ledger.Step(rank, FoldOf(data, now_ns), now_ns);
    }
  }

 private:
  // By a new one that goes on from what this one had, or is told of it later.
  void Replace(const uint8_t* data, int64_t now_ns) {
    const Report report = Check();
    std::string job;
    absl::StatusOr<Report> kept = ReadJson(RenderJson(report, "a/b"), &job);
    FUZZ_CHECK(kept.ok() && job == "a/b" && std::fabs(kept->rank_s - report.rank_s) < 1e-3);
    watch_ = Watch();
    fixed_ = false;
    Ledger::Kept state;
    state.report = *std::move(kept);
    state.done_until = ledger_->done_until();
    state.saved_step = ledger_->saved_step();
    state.base = ledger_->base();
    state.round = ledger_->round();
    state.ended = ledger_->ended();
    state.dead_ns = data[3] * 100 * kMilli;
    ledger_.emplace(Ledger::Options{.now_ns = now_ns, .unix_offset_ns = kUnix, .slots = 0});
    if (data[2] % 16 == 1) {
      ledger_->Resume(state, now_ns);
    } else {
      former_ = std::move(state);
    }
  }

  bool fixed_;
  std::optional<Ledger> ledger_;
  std::optional<Ledger::Kept> former_;  // told late
  Watch watch_;
};

void Run(const uint8_t* data, size_t size) {
  if (size < 8) return;
  int64_t now_ns = data[1] * 1000 * kMilli;
  Game game(data[0] % 5, data[2] % 2 == 0, now_ns);  // 0 slots: not known
  for (data += 8, size -= 8; size >= 8; data += 8, size -= 8) {
    now_ns += (data[1] % 64) * 50 * kMilli;
    if (data[1] >= 250) now_ns += int64_t{data[2]} * 60'000 * kMilli;
    if (data[1] == 249) now_ns -= 10'000 * kMilli;  // a clock that goes back
    // What it says that the event happened at.
    int64_t at_ns = now_ns - data[3] * 40 * kMilli;
    if (data[4] == 255) at_ns = int64_t{data[5]} << (data[6] % 55);
    game.Play(data, at_ns, now_ns);
    if (data[7] % 3 == 0) game.ledger().Advance(now_ns);
    if (size % 32 == 0) game.Check();
  }
  game.Check();
  game.ledger().Advance(now_ns + 2 * StepBook::kFirstOpenNs);
  RenderText(game.Check(), "a/b", 10);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 16384) return 0;
  if (data[0] % 8 == 0) {
    std::string job;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    const absl::StatusOr<Report> read = ReadJson(text, &job);
    if (read.ok()) {
      FUZZ_CHECK(read->wall_s() >= 0 && Sum(read->closed) >= 0);
      Ledger ledger({.now_ns = 0, .unix_offset_ns = kUnix, .slots = 2});
      ledger.Resume({.report = *read, .done_until = 7, .saved_step = 3, .round = 1, .dead_ns = 1000 * kMilli},
                    5000 * kMilli);
      const Report report = ledger.report();
      FUZZ_CHECK(Near(Sum(report.seconds()), report.rank_s));
    }
    return 0;
  }
  Run(data + 1, size - 1);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  Ledger ledger({.now_ns = 0, .unix_offset_ns = kUnix, .slots = 2});
  ledger.Started(0, 0, kMilli);
  ledger.Exited({.rank = 1, .node = 0, .failed = true, .text = "signal 9"}, kMilli, 2000 * kMilli);
  ledger.Advance(5000 * kMilli);
  std::vector<std::string> seeds = {" " + RenderJson(ledger.report(), "default/job")};
  seeds.front()[0] = 8;
  uint64_t state = 88172645463325252;
  for (int seed = 0; seed < 12; ++seed) {
    std::string events(1, static_cast<char>(1 + seed % 7));
    for (int i = 0; i < 8 * 120; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      events += static_cast<char>(state >> 32);
    }
    seeds.push_back(std::move(events));
  }
  return seeds;
}
