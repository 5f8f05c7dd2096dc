#include "marks/step_fold.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <string_view>

namespace taskd {
namespace {

enum class Word { kOther, kData, kBlocking };

// `word` is in lower case and has no digits at its end.
Word Classify(std::string_view word) {
  if (word == "dp" || word == "edp" || word.starts_with("data")) return Word::kData;
  for (std::string_view whole : {"tp", "cp", "ep", "exp", "pp"}) {
    if (word == whole) return Word::kBlocking;
  }
  for (std::string_view beginning : {"tensor", "context", "expert", "pipeline"}) {
    if (word.starts_with(beginning)) return Word::kBlocking;
  }
  return Word::kOther;
}

}  // namespace

StepPhasesNs PhasesOf(const StepFold& fold) {
  const uint64_t period = fold.period_ns();
  const uint64_t covered = std::min(fold.covered_ns, period);
  const uint64_t own = period - covered;
  const uint64_t dataloader = std::min(fold.dataloader_own_ns, own);
  const uint64_t checkpoint = std::min(fold.checkpoint_own_ns, own - dataloader);
  return {dataloader, own - dataloader - checkpoint, covered, checkpoint};
}

bool IsBlocking(CommOp op, const GroupInfo& group) {
  if (IsPointToPoint(op)) return true;
  // A compound label waits if one of its parts does: "tp-cp", or Megatron's TENSOR_AND_CONTEXT_PARALLEL_GROUP. It may
  // overlap if it contains data parallelism: "tp_dp", "EXPERT_DATA_PARALLEL_GROUP".
  bool blocking = false;
  std::string word;
  auto end_word = [&] {
    while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.pop_back();
    const Word kind = Classify(word);
    word.clear();
    blocking = blocking || kind == Word::kBlocking;
    return kind;
  };
  for (char c : group.label) {
    if (isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(tolower(static_cast<unsigned char>(c)));
    } else if (end_word() == Word::kData) {
      return false;
    }
  }
  return end_word() != Word::kData && blocking;
}

std::vector<MemberRun> CompressMembers(const std::vector<int>& ranks) {
  std::vector<MemberRun> runs;
  for (size_t i = 0; i < ranks.size();) {
    MemberRun run = {ranks[i], 1, 1};
    if (i + 1 < ranks.size()) {
      const int64_t stride = int64_t{ranks[i + 1]} - ranks[i];
      if (stride >= std::numeric_limits<int32_t>::min() && stride <= std::numeric_limits<int32_t>::max()) {
        run.stride = static_cast<int32_t>(stride);
        while (i + run.count < ranks.size() && int64_t{ranks[i + run.count]} - ranks[i + run.count - 1] == stride) {
          ++run.count;
        }
      }
    }
    i += run.count;
    runs.push_back(run);
  }
  return runs;
}

std::vector<int> ExpandMembers(const std::vector<MemberRun>& members, size_t limit) {
  std::vector<int> ranks;
  for (const MemberRun& run : members) {
    for (int64_t i = 0; i < run.count && ranks.size() < limit; ++i) {
      const int64_t rank = run.first + i * run.stride;
      if (rank < std::numeric_limits<int>::min() || rank > std::numeric_limits<int>::max()) break;
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

}  // namespace taskd
