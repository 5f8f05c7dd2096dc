// The verdicts through time: opened, changed, cleared.
#pragma once

#include <cstdint>
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
};

class Book {
 public:
  static constexpr size_t kMaxCleared = 100;

  // All accusations as of `step`. Open verdicts that are not among them are cleared. True: something that a reader
  // should know of has changed (not the numbers of an open verdict alone).
  bool Update(const std::vector<Accusation>& accusations, int64_t step);
  // Open ones first, by cost.
  std::vector<Verdict> verdicts() const;
  bool any_open() const { return !open_.empty(); }
  void Restore(const std::vector<Verdict>& verdicts);
  // Open verdicts of an earlier life, by key: nothing is known of them but what they say.
  bool IsOpen(const std::string& key) const { return open_.count(key) > 0; }

 private:
  struct Entry {
    Verdict verdict;
    std::set<int> concerns;
  };
  std::map<std::string, Entry> open_;
  std::vector<Verdict> cleared_;
  uint64_t next_id_ = 1;
};

// The key of a verdict: what it accuses of what.
std::string KeyOf(const Verdict& verdict);

}  // namespace taskd::diagnosis
