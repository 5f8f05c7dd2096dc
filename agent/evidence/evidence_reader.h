// A launcher's eyes while its job hangs: the dumps that the ranks of its node write, and NCCL's RAS on its node.
//
// Storage may hang, a name may not resolve, and who listens on RAS's port may be anybody: each look has a thread of its
// own, which owns all that it uses, and which nobody waits for.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/environment.h"

namespace taskd::evidence {

class EvidenceReader {
 public:
  struct Wish {
    uint64_t hang = 0;           // its number
    std::map<int, pid_t> ranks;  // of this node, global
    int world_size = 0;
    int64_t since_ns = 0;  // Unix; since then the job hangs
    bool asks_ras = false;
  };

  // `environment`: of the ranks. `may_ask_ras`: false: whatever is wished.
  EvidenceReader(Environment environment, bool may_ask_ras);

  // What has been found since the last call (EncodeEvidence); empty: nothing new. Looks again, for the next call. Another
  // hang, by its number or its begin, is looked at anew.
  std::string Look(const Wish& wish);

 private:
  struct State;

  static void LookOnce(const std::shared_ptr<State>& state, const Wish& wish);

  const Environment environment_;
  const bool may_ask_ras_;
  std::shared_ptr<State> state_;
};

}  // namespace taskd::evidence
