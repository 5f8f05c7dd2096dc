// What NCCL's Inspector plugin writes: a file a process, JSON lines with the size and the time of each operation, and
// neither steps nor when an operation began. docs/from-other-tools.md says what of it is used.
//
// Design: the shortest time of an operation over its members is its transfer's, since the last one to arrive waits for
// nobody. All members number a communicator's operations alike; stretches of these numbers stand for steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "readers/byte_source.h"
#include "readers/trace_fold.h"

namespace taskd::readers {

// The operations of one communicator, collectives or point-to-point, that one process has seen.
struct InspectorSequence {
  // Of one kind, size and peer, in one window.
  struct Sums {
    uint32_t count = 0;
    uint64_t bytes = 0, duration_ns = 0, min_ns = UINT64_MAX;
  };
  struct Channel {
    CommOp op = CommOp::kOther;
    uint8_t size_log2 = 0;
    int32_t peer = -1;  // rank in the communicator

    friend auto operator<=>(const Channel&, const Channel&) = default;
  };

  static constexpr uint64_t kMaxWindows = 256;

  void Add(uint64_t number, const Channel& channel, uint64_t bytes, uint64_t duration_ns);
  // Windows of 2^`wanted` operations from now on, at least what it is.
  void Widen(int wanted);

  int shift = 0;  // log2 of the operations in a window
  uint64_t last_window = 0;
  std::map<Channel, std::map<uint32_t, Sums>> channels;  // by window
};

struct InspectorCommunicator {
  int rank = -1, size = 0;
  std::array<InspectorSequence, 2> sequences;  // collectives, point-to-point
};

struct InspectorProcess {
  std::string host;
  int64_t pid = 0;
  uint64_t last_us = 0;  // when the last record was written; 0: unknown
  std::map<std::string, InspectorCommunicator> communicators;
  uint64_t records = 0;
  std::string note;  // what is wrong with the file; empty: nothing
};

// Whether both are files of one process: it is one rank of a communicator.
bool AreOfOneProcess(const InspectorProcess& a, const InspectorProcess& b);

// Reads to the end, or to where the file is damaged: then `note` says what and where, and what came before counts.
InspectorProcess ReadNcclInspector(ByteSource& source);

// The folds of all processes of a job, in the order of `processes`, which are taken away.
struct InspectorRank {
  int rank = -1;
  FoldedTrace folded;
};
struct InspectorJob {
  std::vector<InspectorRank> ranks;
  int world_size = 0;  // 0: no communicator has everybody, and ranks are numbers by host and process
};
InspectorJob FoldInspector(std::vector<InspectorProcess*> processes);

}  // namespace taskd::readers
