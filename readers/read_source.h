// Reads one file of another tool, or one profiler's folder, completely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "readers/flight_recorder.h"
#include "readers/hang_tables.h"
#include "readers/nccl_inspector.h"
#include "readers/nccl_ras.h"
#include "readers/source_files.h"
#include "readers/trace_events.h"
#include "readers/trace_fold.h"

namespace taskd::readers {

struct SourceContent {
  SourceFile file;
  SourceFormat format = SourceFormat::kUnknown;
  int rank = -1;                 // -1: unknown
  bool is_rank_of_name = false;  // the rank comes only from the file's name
  int world_size = 0;            // 0: unknown
  std::string host;
  uint64_t records = 0;
  std::string note;   // defects of the file; empty: none
  std::string seems;  // unknown format: the text of WhatItSeems
  // The content, by format.
  FoldedTrace folded;
  bool has_times = true;  // otherwise its steps have no absolute times
  InspectorProcess inspected;
  FlightDump dump;
  std::vector<RasState> ras;

  bool is_dump() const { return format == SourceFormat::kFlightRecorder; }
};

// Reads a file of any format. `max_events`: limit of a profile's events in memory while it is read. `memory`: the
// thread's.
SourceContent ReadSource(const SourceFile& file, size_t max_events, HangTables& tables, DumpMemory& memory);
// Reads the events of a profile that ReadSource has read before. Empty if the file is gone or has changed to another
// format.
TraceRank ReadEvents(const SourceFile& file, size_t max_events);

// Appends to a file's note; `more` may be empty.
void AddNote(std::string& note, std::string_view more);

}  // namespace taskd::readers
