// Answers of NCCL's RAS (`ncclras -f json`, NCCL 2.28.7 and later): what each rank of each communicator has launched.
// docs/from-other-tools.md says what of them is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/hang.h"
#include "readers/byte_source.h"

namespace taskd::readers {

struct RasRank {
  static constexpr size_t kOps = 8;  // kinds of collectives; NCCL has six

  int rank = 0;                         // in the communicator
  bool is_missing = false;              // it has not answered for the communicator
  bool is_gone = false;                 // its process does not answer, or is taken for dead
  std::array<uint64_t, kOps> counts{};  // launched, as RasState::ops
  int error = 0;                        // of NCCL, asynchronous
  int process = -1;                     // index in RasState::processes; -1: unknown

  uint64_t total() const;
};

struct RasCommunicator {
  std::string id;
  int size = 0;
  std::vector<RasRank> ranks;  // ascending, those that are missing too
};

// One answer, or several that say the same.
struct RasState {
  std::string since, until;  // "2026-06-19 06:51:56" in the zone of the host that answered; empty: unknown
  size_t answers = 1;        // at different times
  std::vector<std::string> ops;
  std::vector<std::string> processes;  // "process 8813 on 10.0.77.184, GPU 0"
  std::vector<int> pids;               // of these
  std::vector<RasCommunicator> communicators;
};

struct RasAnswers {
  std::vector<RasState> states;  // the newest two, in their order
  uint64_t records = 0;          // answers
  std::string note;              // what is wrong with the file; empty: nothing
};

// One answer, or several in their order, one behind the other.
RasAnswers ReadRasAnswers(ByteSource& source);

// A later state: of all that came before only the newest is kept.
void AddRasState(RasState state, std::vector<RasState>& states);

struct RasFinding {
  std::optional<diagnosis::Hang> hang;
  bool is_dead = false;  // all its origins answer no more
  std::vector<std::string> notes;
  int ranks = 0;
};

// Who holds the job up, if it stands still: counts that have not changed from one answer to the next, or processes that
// do not answer.
RasFinding JudgeRas(const std::vector<RasState>& states);

}  // namespace taskd::readers
