#include "proxy/fold_sender.h"

#include <utility>
#include <vector>

#include "proto/fold_messages.h"

namespace taskd::proxy {
namespace {

// A message of folds is below 1 MiB: a step takes at most 7 KB.
constexpr size_t kMaxSteps = 64;
constexpr size_t kMaxGroupBytes = size_t{512} * 1024;

// All groups of a rank. Beyond kMaxGroupBytes only their names: their members are in many pieces then.
void FillGroups(int rank, const std::vector<GroupInfo>& groups, v1::RankGroups* message) {
  message->set_rank(rank);
  size_t bytes = 0;
  for (const GroupInfo& group : groups) {
    v1::Group* filled = message->add_groups();
    proto::FillGroup(group, filled);
    if (bytes + filled->ByteSizeLong() > kMaxGroupBytes) filled->clear_runs();
    bytes += filled->ByteSizeLong();
  }
}

}  // namespace

void FoldSender::Begin() {
  groups_sent_.clear();
  sets_ = 0;
  std::lock_guard lock(mutex_);
  confirms_ = false;
  taken_ = 0;
}

void FoldSender::Taken(uint64_t sets) {
  std::lock_guard lock(mutex_);
  confirms_ = true;
  taken_ = sets;
  while (!unconfirmed_.empty() && unconfirmed_.front().last_set <= taken_) unconfirmed_.pop_front();
}

bool FoldSender::has_room() const {
  std::lock_guard lock(mutex_);
  return unconfirmed_.size() < kMostUnconfirmed;
}

void FoldSender::End() {
  std::lock_guard lock(mutex_);
  for (; !unconfirmed_.empty(); unconfirmed_.pop_back()) node_.ReturnFolds(std::move(unconfirmed_.back().folds));
}

bool FoldSender::Write(const std::function<bool(const v1::NodeMessage&)>& write) {
  while (has_room()) {
    NodeFolds folds = node_.TakeFolds(groups_sent_, kMaxSteps);
    const size_t steps = folds.steps.size();
    if (steps == 0) return true;
    const bool written = WriteOne(folds, write);
    std::lock_guard lock(mutex_);
    if (!written || (confirms_ && sets_ > taken_)) unconfirmed_.push_back({sets_, std::move(folds)});
    if (!written) return false;
    if (steps < kMaxSteps) return true;
  }
  return true;
}

bool FoldSender::WriteOne(const NodeFolds& folds, const std::function<bool(const v1::NodeMessage&)>& write) {
  v1::NodeMessage message;
  for (const auto& [rank, groups] : folds.groups) {
    FillGroups(rank, groups, message.mutable_folds()->add_groups());
    if (message.ByteSizeLong() < kMaxGroupBytes) continue;
    if (!WriteSet(message, write)) return false;
    message.Clear();
  }
  for (const NodeFolds::Step& step : folds.steps) {
    v1::RankStep* filled = message.mutable_folds()->add_steps();
    proto::FillFold(step.rank, step.fold, filled);
    filled->set_number(step.number);
  }
  message.mutable_folds()->set_dropped(folds.dropped);
  return WriteSet(message, write);
}

bool FoldSender::WriteSet(const v1::NodeMessage& message, const std::function<bool(const v1::NodeMessage&)>& write) {
  ++sets_;
  return write(message);
}

}  // namespace taskd::proxy
