// Finds the ranks that hold up a hung job, from dumps of flight recorders and answers of RAS.
#pragma once

#include <optional>
#include <vector>

#include "diagnosis/hang.h"
#include "diagnosis/verdict.h"
#include "readers/hang_tables.h"
#include "readers/read_source.h"

namespace taskd::readers {

struct HangAnswer {
  std::vector<SourceFormat> formats;  // formats with files: dumps, answers
  std::optional<diagnosis::Hang> hang;
  SourceFormat format = SourceFormat::kUnknown;  // that proves the hang
  int ranks = 0;                                 // number of observed ranks
  std::vector<diagnosis::Note> notes;
};

// Moves dumps and answers out of `read`, and notes which dumps are left out. `tables` are those of the dumps.
HangAnswer FindHangIn(std::vector<SourceContent>& read, HangTables& tables);

}  // namespace taskd::readers
