// Which range names are which kind of mark: defined here only.
//
// A kind has a name of its own, which is what the files, the fold and other readers of the files go by:
//
//   kind             recorded as           in the domain
//   step             "step N"              default
//   forward          "forward"             default
//   dataloader       "dataloader"          default
//   save_checkpoint  "save_checkpoint"     default
//   communication    JSON, contract §4.4   communication
//
// What the sources send:
//
//   source                        how a mark gets its kind
//   mstx, C API, Python, NVTX     by these names (ClassifyName in name_words.h), else by the user's rules below
//   MSPTI                         likewise (NameMark in recorder.h)
//   taskd.torch                   makes marks of these names (worker_sdk/python/taskd/torch)
//   NCCL's profiler plugin        every operation is communication (nccl_profiler.cc builds the JSON)
//
// Every other range keeps its own name and domain. The user's rules come from TASKD_MARK_NAMES: `kind=pattern`
// separated by `;`, for example
//
//   TASKD_MARK_NAMES='forward=my_fwd*;step=iter *;dataloader=next_batch'
//
// A pattern is the whole name, case counts; `*` is any text, `?` one byte, `\` takes the next one literally (also `;`).
// Blanks around a rule belong to nobody. The first rule that fits counts; it counts in every domain but communication.
// A name that is a kind's own already is left alone. `fp` and `checkpoint` are also understood.
// A step's number is the one that the text of the last `*` begins with; where there is none, steps are counted from 0.
#pragma once

#include <stdint.h>

#include <atomic>

#include "taskd/ring.h"

namespace taskd::worker {

// Of a name that is not null, outside the domain communication.
ring::Kind KindOfName(const char* name);

class MarkNames {
 public:
  static constexpr int kMaxRules = 32;
  static constexpr int kMaxPatternBytes = 128;
  static constexpr int kNameBytes = ring::kMaxNameBytes + 2;  // what Translate needs to build a name in

  // Reports why a rule is left out: one line, without a newline, valid during the call only.
  using Complain = void (*)(const char* line, void* argument);

  // Reads rules, which replace earlier ones; null and "" have none. A rule that cannot be read is left out and the
  // others hold; all that is wrong is reported in one call of `complain`. Once, before the first Translate.
  void Parse(const char* text, Complain complain, void* argument);

  bool empty() const { return rules_ == 0; }

  // What a name is to be recorded as.
  struct Translation {
    const char* name;  // valid as long as `storage`, or for ever
    ring::Kind kind;
    bool communication;  // in that domain; else in the default domain
  };
  // False: as it is, in its own domain. `name` is not null; only its first ring::kMaxNameBytes bytes are looked at.
  // Any thread; no lock, no allocation, errno untouched.
  bool Translate(const char* name, char (&storage)[kNameBytes], Translation& out);

 private:
  struct Rule {
    ring::Kind kind;
    uint8_t bytes;
    char pattern[kMaxPatternBytes];
  };

  int rules_ = 0;
  Rule rule_[kMaxRules] = {};
  std::atomic<uint64_t> next_step_{0};
};

}  // namespace taskd::worker
