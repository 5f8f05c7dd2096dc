#include "ledger/report.h"

#include <algorithm>
#include <numeric>

namespace taskd::ledger {
namespace {

constexpr std::array<const char*, kCategories> kCategoryNames = {
    "queue",     "waiting", "launch", "link_up", "warm_up", "productive", "data",     "checkpoint",
    "straggler", "other",   "redone", "hang",    "restart", "suspended",  "unmarked", "unknown"};
constexpr std::array<const char*, kIncidentKinds> kKindNames = {"rank_exit", "node_lost", "hang",    "ordered",
                                                                "requeue",   "straggler", "eviction"};
// All categories, in the order in which an incident's costs arise.
constexpr std::array<Category, kCategories> kHopOrder = {
    Category::kHang,    Category::kStraggler,  Category::kRestart,  Category::kQueue,
    Category::kWaiting, Category::kLaunch,     Category::kLinkUp,   Category::kWarmUp,
    Category::kRedone,  Category::kProductive, Category::kData,     Category::kCheckpoint,
    Category::kOther,   Category::kSuspended,  Category::kUnmarked, Category::kUnknown};

}  // namespace

const char* Name(Category category) { return kCategoryNames[static_cast<size_t>(category)]; }
const char* Name(IncidentKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::optional<IncidentKind> IncidentKindFromName(const std::string& name) {
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (found == kKindNames.end()) return std::nullopt;
  return static_cast<IncidentKind>(found - kKindNames.begin());
}

std::vector<std::pair<Category, double>> Hops(const Seconds& seconds) {
  std::vector<std::pair<Category, double>> hops;
  for (const Category category : kHopOrder) {
    if (At(seconds, category) > 0) hops.emplace_back(category, At(seconds, category));
  }
  return hops;
}

double Sum(const Seconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

void AddTo(Seconds& sum, const Seconds& more) {
  for (size_t i = 0; i < kCategories; ++i) sum[i] += more[i];
}

Seconds Report::seconds() const {
  Seconds sum = closed;
  AddTo(sum, provisional);
  return sum;
}

std::array<uint64_t, kIncidentKinds> Report::incident_counts() const {
  std::array<uint64_t, kIncidentKinds> counts = older.counts;
  for (const Incident& incident : incidents) ++counts[static_cast<size_t>(incident.kind)];
  return counts;
}

Goodput GoodputOf(const Seconds& seconds) {
  const double all = Sum(seconds);
  const double productive = At(seconds, Category::kProductive);
  const double unsure = At(seconds, Category::kUnmarked) + At(seconds, Category::kUnknown);
  Goodput goodput;
  if (all <= 0) return goodput;
  goodput.low = productive / all;
  goodput.high = (productive + unsure) / all;
  if (all > unsure) goodput.ratio = productive / (all - unsure);
  return goodput;
}

}  // namespace taskd::ledger
