// Dumps of PyTorch's flight recorder (pickle or JSON, versions 2.x): what each rank's process groups were doing.
// docs/from-other-tools.md says what of them is used.
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
  int rank = -1;                     // -1: the file does not say
  int world_size = 0;                // 0: as rank
  diagnosis::HangRank known;         // HangOp::group and HangOp::call: indices in the tables
  bool leaves_out_messages = false;  // those that there were are not in it
  // Of groups of which it has no operation: what its status says was called, as in HangRank::called. A status names groups by
  // their number, in the order in which the process has made them. That is the order of their names, unless entries contradict.
  std::map<uint32_t, uint64_t> called_by_status;
  bool confirms_order = false, contradicts_order = false;
  uint64_t records = 0;
  uint64_t visits = 0;  // values that were looked at to read the tree; at most some for each value that it has
  std::string note;     // what is wrong with the file; empty: nothing
};

// Used again for one dump after the other, by one thread.
struct DumpMemory {
  std::string bytes;
  ValueTree tree;
};

// Pickle or JSON, as the first byte says. Reads to the end, or to where the file is damaged: then `note` says what and where, and what came before counts.
FlightDump ReadFlightDump(ByteSource& source, HangTables& tables, DumpMemory& memory);

}  // namespace taskd::readers
