// The types of a goodput report: rank-seconds by category, incidents and attempts. docs/goodput.md defines the
// categories.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace taskd::ledger {

enum class Category : uint8_t {
  kQueue,
  kWaiting,
  kLaunch,
  kLinkUp,
  kWarmUp,
  kProductive,
  kData,
  kCheckpoint,
  kStraggler,
  kOther,
  kRedone,
  kHang,
  kRestart,
  kSuspended,
  kUnmarked,
  kUnknown,
};
inline constexpr size_t kCategories = 16;

enum class IncidentKind : uint8_t { kRankExit, kNodeLost, kHang, kOrdered, kRequeue, kStraggler, kEviction };
inline constexpr size_t kIncidentKinds = 7;

// The name in the JSON: "link_up", "rank_exit", ...
const char* Name(Category category);
const char* Name(IncidentKind kind);
std::optional<IncidentKind> IncidentKindFromName(const std::string& name);

// Rank-seconds by category.
using Seconds = std::array<double, kCategories>;
inline double& At(Seconds& seconds, Category category) { return seconds[static_cast<size_t>(category)]; }
inline double At(const Seconds& seconds, Category category) { return seconds[static_cast<size_t>(category)]; }
double Sum(const Seconds& seconds);
// An incident's cost in the order of events: from the failure by way of the next start to the step that had been
// reached.
std::vector<std::pair<Category, double>> Hops(const Seconds& seconds);
void AddTo(Seconds& sum, const Seconds& more);

struct Incident {
  uint64_t number = 0;  // from 1
  int64_t time_ns = 0;  // Unix
  IncidentKind kind = IncidentKind::kRankExit;
  std::vector<int> ranks, nodes;
  std::string text;  // one line
  Seconds seconds{};

  friend bool operator==(const Incident&, const Incident&) = default;
};

struct Attempt {
  int number = 1;
  int64_t since_ns = 0, until_ns = 0;  // Unix; until 0: it goes on
  int slots = 0;
  std::string outcome = {};  // empty: it goes on

  friend bool operator==(const Attempt&, const Attempt&) = default;
};

// Sums of the incidents that are no longer listed one by one.
struct OlderIncidents {
  std::array<uint64_t, kIncidentKinds> counts{};
  std::array<Seconds, kIncidentKinds> seconds{};

  friend bool operator==(const OlderIncidents&, const OlderIncidents&) = default;
};

// Numbers that incidents and seconds do not contain.
struct Measured {
  uint64_t starts = 0;       // starts of the job's ranks
  uint64_t checkpoints = 0;  // saves that the job waited for
  double checkpoint_s = 0;   // their total duration, of the job and not of each rank

  friend bool operator==(const Measured&, const Measured&) = default;
};

struct Advice {
  std::string kind;  // "checkpoint_interval", "link_up", "launch", "data", "straggler"
  std::string text;  // one line
  double saves_rank_s = 0;

  friend bool operator==(const Advice&, const Advice&) = default;
};

struct Report {
  int64_t since_ns = 0, until_ns = 0;  // Unix
  int slots = 0;                       // now
  double rank_s = 0;                   // lifetime of all slots: the sum of all categories
  Seconds closed{};                    // final; it only grows
  Seconds provisional{};               // it may still move between categories
  std::vector<Attempt> attempts;       // oldest first
  std::vector<Incident> incidents;     // oldest first, the newest kMaxIncidents
  OlderIncidents older;
  Measured measured;
  // The rank-seconds of kOther in which the ranks waited for a rank that did something by itself, such as an evaluation
  // or an export. By rank.
  std::map<int, double> waited_for;
  std::vector<Advice> advice;  // largest saving first

  static constexpr size_t kMaxIncidents = 1000;
  static constexpr size_t kMaxAttempts = 1000;
  static constexpr size_t kMaxWaitedFor = 64;

  double wall_s() const { return static_cast<double>(until_ns - since_ns) / 1e9; }
  Seconds seconds() const;
  // Counts listed and older incidents.
  std::array<uint64_t, kIncidentKinds> incident_counts() const;
};

// The productive share of all time. Unmarked and unknown time is left out of `ratio`, lost in `low`, productive in
// `high`. All three are 0 without any time.
struct Goodput {
  double ratio = 0, low = 0, high = 0;
};
Goodput GoodputOf(const Seconds& seconds);

}  // namespace taskd::ledger
