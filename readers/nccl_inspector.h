// Reads files of NCCL's Inspector plugin: one file per process, JSON lines with the size and the duration of each
// operation, without steps and begins. docs/from-other-tools.md describes their use.
//
// Design: the shortest duration of an operation over its members is its transfer, because the last member to arrive
// does not wait. All members number a communicator's operations alike; ranges of these numbers stand for steps.
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

// The operations of one communicator, collectives or point-to-point, that one process has recorded.
struct InspectorSequence {
  // Sums over one kind, size and peer in one window.
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
  // Sets the window size to at least 2^`wanted` operations; it never shrinks.
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
  uint64_t last_us = 0;  // Unix time of the last record; 0: unknown
  std::map<std::string, InspectorCommunicator> communicators;
  uint64_t records = 0;
  std::string note;  // defects of the file; empty: none
};

// Whether both files are of one process, which they are if both are the same rank of a communicator.
bool AreOfOneProcess(const InspectorProcess& a, const InspectorProcess& b);

// If the file is damaged, `note` states the defect and its position, and the data before it counts.
InspectorProcess ReadNcclInspector(ByteSource& source);

// The step summaries of all processes of a job, in the order of `processes`, whose data is moved out.
struct InspectorRank {
  int rank = -1;
  FoldedTrace folded;
};
struct InspectorJob {
  std::vector<InspectorRank> ranks;
  int world_size = 0;  // 0: no communicator has all processes, and ranks are numbers by host and process
};
InspectorJob FoldInspector(std::vector<InspectorProcess*> processes);

}  // namespace taskd::readers
