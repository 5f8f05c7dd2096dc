// Reads dumps of PyTorch's flight recorder (pickle or JSON, versions 2.x): the operations of each rank's process
// groups. docs/from-other-tools.md describes their use.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "diagnosis/hang.h"
#include "readers/byte_source.h"
#include "readers/hang_tables.h"
#include "readers/value_tree.h"

namespace taskd::readers {

struct FlightDump {
  int rank = -1;                     // -1: not in the file
  int world_size = 0;                // 0: not in the file
  diagnosis::HangRank known;         // HangOp::group and HangOp::call are indices in the tables
  bool leaves_out_messages = false;  // the dump lacks messages that the rank has sent or received
  // For groups without an operation in the dump: the number of the last call, from the group's status, as in
  // HangRank::called. A status names groups by number, in the order in which the process has made them. That is the
  // order of their names unless entries contradict it.
  std::map<uint32_t, uint64_t> called_by_status;
  bool confirms_order = false, contradicts_order = false;
  uint64_t records = 0;
  uint64_t visits = 0;  // values read from the tree; at most a few for each value in it
  std::string note;     // defects of the file; empty: none
};

// Buffers that one thread uses for one dump after another.
struct DumpMemory {
  std::string bytes;
  ValueTree tree;
};

// Reads pickle or JSON; the first byte distinguishes them. If the file is damaged, `note` states the defect and its
// position, and the data before it counts.
FlightDump ReadFlightDump(ByteSource& source, HangTables& tables, DumpMemory& memory);

}  // namespace taskd::readers
