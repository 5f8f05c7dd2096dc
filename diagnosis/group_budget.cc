#include "diagnosis/group_budget.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kGroupBytes = 256;

bool Fits(const GroupBudget::Cost& used, const GroupBudget::Cost& more, const GroupBudget::Cost& limit) {
  return used.members + more.members <= limit.members && used.bytes + more.bytes <= limit.bytes;
}

void Add(const GroupBudget::Cost& more, GroupBudget::Cost* used) {
  used->members += more.members;
  used->bytes += more.bytes;
}

void Subtract(const GroupBudget::Cost& less, GroupBudget::Cost* used) {
  used->members -= less.members;
  used->bytes -= less.bytes;
}

}  // namespace

GroupBudget::Cost GroupBudget::CostOf(const GroupInfo& group, size_t members) {
  // The runs, and where each begins.
  const size_t runs = group.members.size() * (sizeof(MemberRun) + sizeof(int));
  // The name is in the group and in what finds it by its name.
  return {members, kGroupBytes + 2 * group.name.size() + group.label.size() + 2 * runs};
}

bool GroupBudget::Take(int node, const Cost& cost, Charge* charge) {
  if (!Fits(used_, cost, limits_.all)) return false;
  if (node >= 0) {
    auto [of_node, added] = of_node_.try_emplace(node);
    if (!Fits(of_node->second, cost, limits_.node)) {
      if (added) of_node_.erase(of_node);
      return false;
    }
    Add(cost, &of_node->second);
  }
  Add(cost, &used_);
  *charge = {cost, node};
  return true;
}

void GroupBudget::TakeOff(const Charge& charge) {
  auto of_node = of_node_.find(charge.node);
  if (of_node == of_node_.end()) return;
  Subtract(charge.cost, &of_node->second);
  if (of_node->second.bytes == 0) of_node_.erase(of_node);
}

bool GroupBudget::Grow(Charge* charge, size_t bytes) {
  Charge more;
  if (!Take(charge->node, {0, bytes}, &more)) return false;
  charge->cost.bytes += bytes;
  return true;
}

void GroupBudget::Share(int node, Charge* charge) {
  if (charge->node < 0 || charge->node == node) return;
  TakeOff(*charge);
  charge->node = -1;
}

void GroupBudget::Release(const Charge& charge) {
  TakeOff(charge);
  Subtract(charge.cost, &used_);
}

}  // namespace taskd::diagnosis
