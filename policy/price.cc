#include "policy/price.h"

#include <algorithm>

namespace taskd::policy {
namespace {

using ledger::At;
using ledger::Category;
using ledger::IncidentKind;
using ledger::Seconds;

constexpr IncidentKind kRestarts[] = {IncidentKind::kRankExit, IncidentKind::kNodeLost, IncidentKind::kHang,
                                      IncidentKind::kOrdered,  IncidentKind::kRequeue,  IncidentKind::kEviction};

bool IsRestart(IncidentKind kind) { return std::ranges::find(kRestarts, kind) != std::end(kRestarts); }

double RestartPart(const Seconds& seconds) { return ledger::Sum(seconds) - At(seconds, Category::kHang); }

}  // namespace

Price PriceOfRestart(const ledger::Report& report, int64_t unsaved_steps, double step_s) {
  Price price;
  for (IncidentKind kind : kRestarts) {
    const auto i = static_cast<size_t>(kind);
    price.restarts += report.older.counts[i];
    price.rank_s += RestartPart(report.older.seconds[i]);
  }
  for (const ledger::Incident& incident : report.incidents) {
    // A hang that resolved by itself, and a restart that has cost nothing yet, are none.
    const double rank_s = RestartPart(incident.seconds);
    if (!IsRestart(incident.kind) || rank_s <= 0) continue;
    ++price.restarts;
    price.rank_s += rank_s;
  }
  if (price.restarts > 0) {
    price.rank_s /= static_cast<double>(price.restarts);
    return price;
  }
  const Seconds so_far = report.seconds();
  const double redone_s = static_cast<double>(std::max<int64_t>(unsaved_steps, 0)) * std::max(step_s, 0.0);
  return {At(so_far, Category::kLaunch) + At(so_far, Category::kLinkUp) + At(so_far, Category::kWarmUp) +
              (redone_s + kRestartS) * report.slots,
          0};
}

}  // namespace taskd::policy
