// Converts verdicts of the diagnosis to the ledger's stragglers with their cost.
#pragma once

#include <vector>

#include "diagnosis/verdict.h"
#include "ledger/ledger.h"

namespace taskd::ledger {

std::vector<Ledger::Straggler> StragglersOf(const std::vector<diagnosis::Verdict>& verdicts);

}  // namespace taskd::ledger
