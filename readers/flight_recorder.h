// Dumps of PyTorch's flight recorder (pickle or JSON, versions 2.x): what each rank's process groups were doing.
// docs/from-other-tools.md says what of them is used.
#pragma once

#include <cstdint>
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
  uint64_t records = 0;
  std::string note;  // what is wrong with the file; empty: nothing
};

// Used again for one dump after the other, by one thread.
struct DumpMemory {
  std::string bytes;
  ValueTree tree;
};

// Pickle or JSON, as the first byte says. Reads to the end, or to where the file is damaged: then `note` says what and where, and what came before counts.
FlightDump ReadFlightDump(ByteSource& source, HangTables& tables, DumpMemory& memory);

}  // namespace taskd::readers
