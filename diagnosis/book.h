// The verdicts through time: opened, changed, cleared.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// An accusation as the evidence of one step has it. Accusations with the same key are one verdict.
struct Accusation {
  std::string key;
  Verdict verdict;         // without id, state, text
  std::set<int> concerns;  // ranks: of two accusations about the same ranks the later one replaces the earlier
  bool confirmed = true;   // false: keeps an open verdict open, opens none
  bool is_young = false;   // nothing is missing but that it lasts (small_ns)
};

class Book {
 public:
  static constexpr size_t kMaxCleared = 100;

  // Says how to treat an open verdict that is not among the accusations.
  enum class Absence : uint8_t {
    kCleared,
    kLeft,      // cleared, because whom it accuses is not part of the job any more
    kUnjudged,  // its marks have ended, so it cannot be judged
    kOpen,      // it stays open: the next steps decide
  };
  using WhyAbsent = std::function<Absence(const Verdict& verdict)>;

  // All accusations as of `step`. True: something that a reader should know of has changed (not the numbers of an open
  // verdict alone).
  bool Update(const std::vector<Accusation>& accusations, int64_t step, const WhyAbsent& why_absent = nullptr);
  // Open ones first, by cost.
  std::vector<Verdict> verdicts() const;
  bool any_open() const { return !open_.empty(); }
  // Verdicts of an earlier life: nothing is known of them but their content.
  void Restore(const std::vector<Verdict>& verdicts);
  bool IsOpen(const std::string& key) const { return open_.count(key) > 0; }

 private:
  struct Entry {
    Verdict verdict;
    std::set<int> concerns;
  };

  // `present`: the keys of all accusations of the step.
  void Open(const Accusation& accusation, int64_t step, const std::set<std::string>& present);
  uint64_t TakeId(const Accusation& accusation, const std::set<std::string>& present);
  static bool Continue(const Accusation& accusation, int64_t step, Entry& entry);
  bool CloseAbsent(const std::set<std::string>& present, const WhyAbsent& why_absent);
  void KeepCleared(Verdict verdict);

  std::map<std::string, Entry> open_;  // by key
  std::vector<Verdict> cleared_;
  uint64_t next_id_ = 1;
};

// The key of a verdict: what it accuses of what.
std::string KeyOf(const Verdict& verdict);

}  // namespace taskd::diagnosis
