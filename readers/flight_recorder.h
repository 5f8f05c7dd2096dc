// Dumps of PyTorch's flight recorder (pickle or JSON, versions 2.x): what each rank's process groups were doing.
// docs/from-other-tools.md says what of them is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/hang.h"
#include "readers/byte_source.h"
#include "readers/hang_tables.h"

namespace taskd::readers {

struct FlightDump {
  int rank = -1;              // -1: the file does not say
  int world_size = 0;         // 0: as rank
  diagnosis::HangRank known;  // HangOp::group and HangOp::call: indices in the tables
  uint64_t records = 0;
  std::string note;  // what is wrong with the file; empty: nothing
};

// Reads to the end, or to where the file is damaged: then `note` says what and where, and what came before counts.
FlightDump ReadFlightDump(ByteSource& source, bool is_pickle, HangTables& tables);

}  // namespace taskd::readers
