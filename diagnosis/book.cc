#include "diagnosis/book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd::diagnosis {

std::string KeyOf(const Verdict& verdict) {
  // Computing and waiting for the host are two names of one thing: own time.
  const char* what = Name(verdict.cause);
  switch (verdict.cause) {
    case Cause::kCompute:
    case Cause::kMemory:
    case Cause::kHost:
    case Cause::kGc:
    case Cause::kUnknown:
      what = "own";
      break;
    case Cause::kNetwork:
    case Cause::kIntraNodeLink:
    case Cause::kPpLink:
      what = "transfer";
      break;
    default:
      break;
  }
  std::string key = absl::StrCat(what, ":", Name(verdict.scope), ":", absl::StrJoin(verdict.ids, ","));
  for (const Link& link : verdict.links) absl::StrAppend(&key, ":", link.a, "-", link.b);
  return key;
}

bool Book::Update(const std::vector<Accusation>& accusations, int64_t step) {
  bool changed = false;
  std::set<std::string> present;
  for (const Accusation& accusation : accusations) present.insert(accusation.key);
  for (const Accusation& accusation : accusations) {
    auto found = open_.find(accusation.key);
    if (found == open_.end()) {
      if (!accusation.confirmed) continue;
      // The same trouble seen sharper (a node instead of its ranks, a rank instead of its group): one verdict goes on.
      auto before = std::find_if(open_.begin(), open_.end(), [&](const auto& entry) {
        if (present.count(entry.first) > 0) return false;
        if (entry.first.substr(0, entry.first.find(':')) != accusation.key.substr(0, accusation.key.find(':'))) {
          return false;
        }
        return std::any_of(accusation.concerns.begin(), accusation.concerns.end(),
                           [&](int rank) { return entry.second.concerns.count(rank) > 0; });
      });
      Entry entry{accusation.verdict, accusation.concerns};
      if (before != open_.end()) {
        entry.verdict.id = before->second.verdict.id;
        open_.erase(before);
      } else {
        // The same one again soon after it was cleared.
        auto again = std::find_if(cleared_.begin(), cleared_.end(), [&](const Verdict& verdict) {
          return KeyOf(verdict) == accusation.key && verdict.since_step == accusation.verdict.since_step;
        });
        if (again != cleared_.end()) {
          entry.verdict.id = again->id;
          cleared_.erase(again);
        } else {
          entry.verdict.id = next_id_++;
        }
      }
      entry.verdict.open = true;
      entry.verdict.last_step = step;
      open_.emplace(accusation.key, std::move(entry));
      changed = true;
      continue;
    }
    Verdict& verdict = found->second.verdict;
    const uint64_t id = verdict.id;
    // The step's end is remembered longer here than elsewhere.
    const uint64_t since_ns = verdict.since_step == accusation.verdict.since_step ? verdict.since_ns : 0;
    changed = changed || verdict.cause != accusation.verdict.cause;
    verdict = accusation.verdict;
    verdict.id = id;
    if (since_ns != 0) verdict.since_ns = since_ns;
    verdict.open = true;
    verdict.last_step = step;
    found->second.concerns = accusation.concerns;
  }
  for (auto entry = open_.begin(); entry != open_.end();) {
    if (present.count(entry->first) > 0) {
      ++entry;
      continue;
    }
    entry->second.verdict.open = false;
    cleared_.push_back(std::move(entry->second.verdict));
    if (cleared_.size() > kMaxCleared) cleared_.erase(cleared_.begin());
    entry = open_.erase(entry);
    changed = true;
  }
  return changed;
}

std::vector<Verdict> Book::verdicts() const {
  std::vector<Verdict> verdicts;
  for (const auto& [key, entry] : open_) verdicts.push_back(entry.verdict);
  auto by_cost = [](const Verdict& a, const Verdict& b) {
    return a.cost_ms_per_step != b.cost_ms_per_step ? a.cost_ms_per_step > b.cost_ms_per_step : a.id < b.id;
  };
  std::sort(verdicts.begin(), verdicts.end(), by_cost);
  const auto open = static_cast<std::ptrdiff_t>(verdicts.size());
  verdicts.insert(verdicts.end(), cleared_.begin(), cleared_.end());
  std::sort(verdicts.begin() + open, verdicts.end(), by_cost);
  return verdicts;
}

void Book::Restore(const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts) {
    next_id_ = std::max(next_id_, verdict.id + 1);
    if (!verdict.open) {
      cleared_.push_back(verdict);
      if (cleared_.size() > kMaxCleared) cleared_.erase(cleared_.begin());
      continue;
    }
    Entry entry{verdict, {}};
    if (verdict.scope == Scope::kRank || verdict.scope == Scope::kGroup) {
      entry.concerns.insert(verdict.ids.begin(), verdict.ids.end());
    }
    open_.emplace(KeyOf(verdict), std::move(entry));
  }
}

}  // namespace taskd::diagnosis
