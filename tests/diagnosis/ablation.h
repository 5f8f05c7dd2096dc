// What the evaluation says when the diagnosis does without one of its vetoes, or has another value of one parameter.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/parameters.h"
#include "tests/diagnosis/replay.h"

namespace taskd::evaluation {

struct Change {
  std::string title;  // "own_dead 0.005"
  diagnosis::Parameters parameters;
};

// The names of all vetoes, those of all parameters, and the special rules, each as the value with which it does nothing.
std::vector<std::string> VetoNames();
std::vector<std::string> ParameterNames();
std::vector<std::string> Rules();
// "noise_burst": without that veto; "own_dead": with half and twice its value; "own_dead=0.02": with this one. Half of a whole
// number is rounded down, and 1 at least. Nothing: there is no such name, or no such value.
std::optional<std::vector<Change>> ChangesOf(const std::string& what);

// Calls `run`, which replays the same cases each time, with the parameters as they are and with each change; the table as
// Markdown, a row as soon as it is known. Parameters are as before afterwards.
void Ablate(const std::vector<Change>& changes, const std::function<std::vector<CaseResult>()>& run, std::FILE* out);

}  // namespace taskd::evaluation
