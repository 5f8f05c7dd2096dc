#include "diagnosis/book.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd::diagnosis {
namespace {

// Of a key: "own", "transfer", "dataloader", ...
std::string_view Subject(std::string_view key) { return key.substr(0, key.find(':')); }

bool Overlap(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int rank) { return b.count(rank) > 0; });
}

}  // namespace

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

bool Book::Update(const std::vector<Accusation>& accusations, int64_t step, const WhyAbsent& why_absent) {
  bool changed = false;
  std::set<std::string> present;
  for (const Accusation& accusation : accusations) present.insert(accusation.key);
  for (const Accusation& accusation : accusations) {
    const auto open = open_.find(accusation.key);
    if (open != open_.end()) {
      changed = Continue(accusation, step, open->second) || changed;
    } else if (accusation.confirmed) {
      Open(accusation, step, present);
      changed = true;
    }
  }
  return CloseAbsent(present, why_absent) || changed;
}

void Book::Open(const Accusation& accusation, int64_t step, const std::set<std::string>& present) {
  Entry entry{accusation.verdict, accusation.concerns};
  entry.verdict.id = TakeId(accusation, present);
  entry.verdict.open = true;
  entry.verdict.last_step = step;
  open_.emplace(accusation.key, std::move(entry));
}

// The id of the verdict that the accusation goes on with, which ends here; else a new one.
uint64_t Book::TakeId(const Accusation& accusation, const std::set<std::string>& present) {
  // The same trouble seen sharper: a node instead of its ranks, a rank instead of its group.
  const auto before = std::find_if(open_.begin(), open_.end(), [&](const auto& open) {
    const auto& [key, entry] = open;
    return present.count(key) == 0 && Subject(key) == Subject(accusation.key) &&
           Overlap(accusation.concerns, entry.concerns);
  });
  if (before != open_.end()) {
    const uint64_t id = before->second.verdict.id;
    open_.erase(before);
    return id;
  }
  // The same one again soon after it was cleared.
  const auto again = std::find_if(cleared_.begin(), cleared_.end(), [&](const Verdict& verdict) {
    return KeyOf(verdict) == accusation.key && verdict.since_step == accusation.verdict.since_step;
  });
  if (again != cleared_.end()) {
    const uint64_t id = again->id;
    cleared_.erase(again);
    return id;
  }
  return next_id_++;
}

// True: its cause is another one now.
bool Book::Continue(const Accusation& accusation, int64_t step, Entry& entry) {
  const Verdict before = std::move(entry.verdict);
  entry = {accusation.verdict, accusation.concerns};
  entry.verdict.id = before.id;
  // The step's end is remembered longer here than elsewhere.
  if (before.since_step == entry.verdict.since_step && before.since_ns != 0) entry.verdict.since_ns = before.since_ns;
  entry.verdict.open = true;
  entry.verdict.last_step = step;
  return before.cause != entry.verdict.cause;
}

// True: there was one.
bool Book::CloseAbsent(const std::set<std::string>& present, const WhyAbsent& why_absent) {
  bool closed = false;
  for (auto entry = open_.begin(); entry != open_.end();) {
    Verdict& verdict = entry->second.verdict;
    const bool is_present = present.count(entry->first) > 0;
    const Absence absence = is_present || why_absent == nullptr ? Absence::kCleared : why_absent(verdict);
    if (is_present || absence == Absence::kOpen) {
      ++entry;
      continue;
    }
    verdict.open = false;
    verdict.left = absence == Absence::kLeft;
    verdict.unjudged = absence == Absence::kUnjudged;
    KeepCleared(std::move(verdict));
    entry = open_.erase(entry);
    closed = true;
  }
  return closed;
}

void Book::KeepCleared(Verdict verdict) {
  cleared_.push_back(std::move(verdict));
  if (cleared_.size() > kMaxCleared) cleared_.erase(cleared_.begin());
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
      KeepCleared(verdict);
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
