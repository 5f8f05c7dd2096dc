#include "readers/named_ranks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "diagnosis/rank_place.h"

namespace taskd::readers {
namespace {

constexpr std::string_view kRank = "rank";
// Words before "rank" for which the number counts within a part of the job, beside short names of parallel dimensions.
constexpr std::array<std::string_view, 14> kParts = {"local",    "node",     "group",    "intra",  "inter",
                                                     "parallel", "tensor",   "pipeline", "expert", "context",
                                                     "model",    "sequence", "replica",  "shard"};

struct Number {
  int value = -1;     // -1: too large for a rank
  std::string label;  // word before it; empty: no word between it and the previous number
  bool is_rank = false;
  bool is_before_time = false;
};

bool IsAlpha(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// "tp", "pp", "dcp": two to four letters that end in "p" name a parallel dimension.
bool IsOfPart(std::string_view word) {
  if (word.size() >= 2 && word.size() <= 4 && word.back() == 'p') return true;
  return std::find(kParts.begin(), kParts.end(), word) != kParts.end();
}

// Whether a number after `word` is a rank; `before` is the word before it. Both are lower case.
bool NamesRank(std::string_view word, std::string_view before) {
  if (word == "r") return true;
  if (!word.ends_with(kRank)) return false;
  const std::string_view stem = word.substr(0, word.size() - kRank.size());
  return !IsOfPart(stem.empty() ? before : stem);
}

std::vector<Number> NumbersOf(std::string_view name) {
  std::vector<Number> numbers;
  std::string word, before;  // since the last number
  for (size_t i = 0; i < name.size();) {
    if (IsDigit(name[i])) {
      size_t end = i;
      while (end < name.size() && IsDigit(name[end])) ++end;
      Number number;
      const bool fits = std::from_chars(name.data() + i, name.data() + end, number.value).ec == std::errc();
      if (!fits || number.value >= diagnosis::kMaxRanks) {
        number.value = -1;
        if (word.empty() && !numbers.empty()) numbers.back().is_before_time = true;
      }
      number.is_rank = NamesRank(word, before);
      number.label = std::exchange(word, "");
      before.clear();
      numbers.push_back(std::move(number));
      i = end;
    } else if (IsAlpha(name[i])) {
      before = std::exchange(word, "");
      for (; i < name.size() && IsAlpha(name[i]); ++i) {
        word += absl::ascii_tolower(static_cast<unsigned char>(name[i]));
      }
    } else {
      ++i;
    }
  }
  return numbers;
}

// The only number after the word "rank"; -1: there is none, or several.
int OnlyRank(const std::vector<Number>& numbers) {
  int rank = -1, count = 0;
  for (const Number& number : numbers) {
    if (!number.is_rank) continue;
    rank = number.value;
    ++count;
  }
  return count == 1 ? rank : -1;
}

bool CountFromZero(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  return values.front() == 0 && values.back() == static_cast<int>(values.size()) - 1;
}

// For names that differ only in their numbers: the ranks from one of the numbers; empty: it is not known which one.
std::vector<int> RanksOfAlike(const std::vector<const std::vector<Number>*>& names) {
  std::set<std::vector<int>> differ, count;  // columns with equal values count once
  for (size_t column = 0; column < names[0]->size(); ++column) {
    std::vector<int> values;
    bool can_be = true;
    for (const std::vector<Number>* name : names) {
      values.push_back((*name)[column].value);
      can_be = can_be && values.back() >= 0;
    }
    if (!can_be || std::set(values.begin(), values.end()).size() < values.size()) continue;
    const bool counts = CountFromZero(values);
    if ((*names[0])[column].is_before_time && !counts) continue;
    if (counts) count.insert(values);
    differ.insert(std::move(values));
  }
  if (differ.size() == 1) return *differ.begin();
  return count.size() == 1 ? *count.begin() : std::vector<int>();
}

// The same for any names. Names of one kind have the same words before their numbers. A single name differs from no
// other.
std::vector<int> RanksOfSet(const std::vector<std::vector<Number>>& names) {
  std::map<std::vector<std::string>, std::vector<size_t>> kinds;
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<std::string> kind;
    for (const Number& number : names[i]) kind.push_back(number.label);
    kinds[std::move(kind)].push_back(i);
  }
  std::vector<int> ranks(names.size(), -1);
  for (const auto& [kind, of] : kinds) {
    if (kind.empty() || of.size() < 2) continue;
    std::vector<const std::vector<Number>*> alike;
    for (size_t i : of) alike.push_back(&names[i]);
    const std::vector<int> found = RanksOfAlike(alike);
    for (size_t i = 0; i < found.size(); ++i) ranks[of[i]] = found[i];
  }
  return ranks;
}

struct PathNames {
  std::vector<Number> file, folder;
};

PathNames NamesOf(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  PathNames names;
  const size_t slash = path.find_last_of('/');
  names.file = NumbersOf(path.substr(slash == std::string_view::npos ? 0 : slash + 1));
  if (slash == std::string_view::npos) return names;
  const std::string_view folder = path.substr(0, slash);
  names.folder = NumbersOf(folder.substr(folder.find_last_of('/') + 1));
  return names;
}

}  // namespace

std::vector<int> RanksOfPaths(const std::vector<std::string>& paths) {
  std::vector<int> ranks;
  // names of the paths that are read together
  std::vector<std::vector<Number>> files(paths.size()), folders(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    PathNames names = NamesOf(paths[i]);
    int rank = OnlyRank(names.file);
    if (rank < 0) rank = OnlyRank(names.folder);
    if (rank < 0 && names.file.size() == 1) rank = names.file[0].value;
    if (rank < 0) {
      files[i] = std::move(names.file);
      folders[i] = std::move(names.folder);
    }
    ranks.push_back(rank);
  }
  const std::vector<int> of_files = RanksOfSet(files), of_folders = RanksOfSet(folders);
  for (size_t i = 0; i < paths.size(); ++i) {
    if (ranks[i] < 0) ranks[i] = of_files[i] >= 0 ? of_files[i] : of_folders[i];
  }
  return ranks;
}

}  // namespace taskd::readers
