// One file of what other tools wrote, or a profiler's folder, read to its end.
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
  bool is_rank_of_name = false;  // only the file's name says the rank
  int world_size = 0;            // 0: unknown
  std::string host;
  uint64_t records = 0;
  std::string note;   // what is wrong with it; empty: nothing
  std::string seems;  // of an unknown format: as WhatItSeems says
  // What is in it, by its format.
  FoldedTrace folded;
  bool has_times = true;  // else its steps begin at no time of day
  InspectorProcess inspected;
  FlightDump dump;
  std::vector<RasState> ras;

  bool is_dump() const { return format == SourceFormat::kFlightRecorder; }
};

// Whatever it is. `max_events`: that are kept of a profiler's, while it is read. `memory`: the thread's.
SourceContent ReadSource(const SourceFile& file, size_t max_events, HangTables& tables, DumpMemory& memory);
// The events of a profiler's file, which ReadSource has folded. None: it is gone, or something else now.
TraceRank ReadEvents(const SourceFile& file, size_t max_events);

// To what is wrong with a file; `more` may be empty.
void AddNote(std::string& note, std::string_view more);

}  // namespace taskd::readers
