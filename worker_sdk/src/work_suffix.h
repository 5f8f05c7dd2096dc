// Work in a range's message: `step 7 {"work": 4096}`, `forward {"work": 4096}` in the default domain. It becomes two
// marks, since readers of the files know a step by "step N" alone (TaskD contract §4.4): the start of the range, and an
// instant `{"work": 4096}` behind it, which is also how a mark of its own says work (marks/work_name.h reads both).
#pragma once

#include "name_words.h"

namespace taskd::worker {

// Room for what stands before the work: "step " and a number.
inline constexpr int kWorkBaseBytes = 32;

// Where `{"work":` begins; null: the name is none of these. `first_word` is LoadNameWord(name).
__attribute__((always_inline)) inline const char* WorkSuffix(uint64_t first_word, const char* name) {
  constexpr char kKey[] = {'{', '"', 'w', 'o', 'r', 'k', '"', ':'};
  constexpr uint64_t kStepMask = 0xffffffffff;
  const char* suffix;
  if (first_word == NameWord("forward ")) {
    suffix = name + 8;
  } else if ((first_word & kStepMask) == NameWord("step \0\0\0")) {
    suffix = name + 5;
    while (*suffix >= '0' && *suffix <= '9' && suffix - name < kWorkBaseBytes - 1) ++suffix;
    if (suffix == name + 5 || *suffix++ != ' ') return nullptr;
  } else {
    return nullptr;
  }
  return EqualsFrom(suffix, kKey) ? suffix : nullptr;
}

// Writes the range's own name, which ends a blank before `suffix`.
inline void CopyBase(char (&out)[kWorkBaseBytes], const char* name, const char* suffix) {
  const int bytes = static_cast<int>(suffix - name) - 1;
  for (int i = 0; i < bytes; ++i) out[i] = name[i];
  out[bytes] = '\0';
}

}  // namespace taskd::worker
