// Who holds a hung job up, from all that its files say of it: dumps of flight recorders, and answers of RAS.
#pragma once

#include <optional>
#include <vector>

#include "diagnosis/hang.h"
#include "diagnosis/verdict.h"
#include "readers/hang_tables.h"
#include "readers/read_source.h"

namespace taskd::readers {

struct HangAnswer {
  std::vector<SourceFormat> formats;  // of which there were files: dumps, answers
  std::optional<diagnosis::Hang> hang;
  SourceFormat format = SourceFormat::kUnknown;  // that says so
  int ranks = 0;                                 // heard of
  std::vector<diagnosis::Note> notes;
};

// Takes dumps and answers away from `read`, and notes which dumps are left out. `tables`: of the dumps.
HangAnswer FindHangIn(std::vector<SourceContent>& read, HangTables& tables);

}  // namespace taskd::readers
