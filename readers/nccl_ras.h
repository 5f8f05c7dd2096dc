// Reads answers of NCCL's RAS (`ncclras -f json`, NCCL 2.28.7 and later): the operations that each rank of each
// communicator has launched. docs/from-other-tools.md describes their use.
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
  bool is_missing = false;              // it did not answer for the communicator
  bool is_gone = false;                 // its process does not answer, or is considered dead
  std::array<uint64_t, kOps> counts{};  // launched operations, by index in RasState::ops
  int error = 0;                        // asynchronous NCCL error
  int process = -1;                     // index in RasState::processes; -1: unknown

  uint64_t total() const;
};

struct RasCommunicator {
  std::string id;
  int size = 0;
  std::vector<RasRank> ranks;  // ascending, with missing ones
};

// One answer, or several consecutive answers with the same content.
struct RasState {
  std::string since, until;  // "2026-06-19 06:51:56" in the time zone of the answering host; empty: unknown
  size_t answers = 1;        // number of answers at different times
  std::vector<std::string> ops;
  std::vector<std::string> processes;  // "process 8813 on 10.0.77.184, GPU 0"
  std::vector<int> pids;               // process ids of these
  std::vector<RasCommunicator> communicators;
};

struct RasAnswers {
  std::vector<RasState> states;  // the newest two, oldest first
  uint64_t records = 0;          // answers
  std::string note;              // defects of the file; empty: none
};

// Reads one answer, or several in order of time, concatenated.
RasAnswers ReadRasAnswers(ByteSource& source);

// Adds a later state: merges it into the newest one if their contents are equal; else keeps only the newest earlier
// one.
void AddRasState(RasState state, std::vector<RasState>& states);

struct RasFinding {
  std::optional<diagnosis::Hang> hang;
  bool is_dead = false;  // none of its origins answers any more
  std::vector<std::string> notes;
  int ranks = 0;
};

// Finds the ranks that hold up the job. It hangs if counts do not change from one answer to the next, or if processes
// do not answer.
RasFinding JudgeRas(const std::vector<RasState>& states);

}  // namespace taskd::readers
