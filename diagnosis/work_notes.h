// What is to be said of the work that ranks get. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "diagnosis/verdict.h"
#include "diagnosis/work.h"

namespace taskd::diagnosis {

// Ranks that get more work than their peers (one note of kind load), and work that cannot be used. `step_at`: the step
// that a place in the row of judged steps has.
std::vector<Note> NotesOn(const Work& work, const std::function<int64_t(int64_t)>& step_at);

}  // namespace taskd::diagnosis
