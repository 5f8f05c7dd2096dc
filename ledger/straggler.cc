#include "ledger/straggler.h"

#include <set>

#include "diagnosis/render.h"

namespace taskd::ledger {

std::vector<Ledger::Straggler> StragglersOf(const std::vector<diagnosis::Verdict>& verdicts) {
  std::vector<Ledger::Straggler> stragglers;
  for (const diagnosis::Verdict& verdict : verdicts) {
    Ledger::Straggler& straggler = stragglers.emplace_back();
    straggler.cost.verdict = verdict.id;
    straggler.cost.open = verdict.open;
    straggler.cost.unjudged = verdict.unjudged;
    straggler.cost.since_step = verdict.since_step;
    straggler.cost.last_step = verdict.last_step;
    straggler.cost.cost_s = verdict.cost_ms_per_step / 1e3;
    straggler.cost.of_data = verdict.cause == diagnosis::Cause::kDataloader;
    straggler.cost.of_checkpoint = verdict.cause == diagnosis::Cause::kCheckpoint;
    (verdict.scope == diagnosis::Scope::kNode ? straggler.nodes : straggler.ranks) = verdict.ids;
    std::set<int> ends;
    for (const diagnosis::Link& link : verdict.links) ends.insert({link.a, link.b});
    straggler.ranks.insert(straggler.ranks.end(), ends.begin(), ends.end());
    straggler.text = verdict.text;
    if (const std::string nodes = diagnosis::NodesText(verdict); !nodes.empty()) straggler.text += ", " + nodes;
    straggler.since_ns = static_cast<int64_t>(verdict.since_ns);
  }
  return stragglers;
}

}  // namespace taskd::ledger
