#include "common/mark_fold.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/step_cutter.h"
#include "common/step_name.h"

namespace taskd {
namespace {

// A device runs behind its host by up to a step or two of operations.
constexpr size_t kMaxOpen = 1 << 16;
constexpr size_t kMaxBufferedOps = 1 << 17;
constexpr size_t kMaxBufferedRanges = 1 << 12;
constexpr size_t kMaxLosses = 1 << 12;
constexpr int kStepsWithoutDevice = 3;
constexpr size_t kMaxGroups = 1 << 10;
constexpr size_t kMaxGroupName = 512;

enum class Kind : uint8_t { kIgnored, kStep, kInnerStep, kDroppedStep, kForward, kDataLoader, kCheckpoint, kOp };

// A range whose records have not all come.
struct Open {
  Kind kind = Kind::kIgnored;
  bool host_ended = false;
  bool device_started = false;
  bool device_ended = false;
  bool over_a_step = false;  // was open already when an earlier step was folded
  uint64_t order = 0;        // of the start among all starts
  uint64_t losses = 0;       // value of Impl::losses_seen_ at its start
  uint64_t host_start_ns = 0;
  uint64_t host_end_ns = 0;
  uint64_t device_start_ns = 0;
  uint64_t device_end_ns = 0;
  uint64_t step_serial = 0;  // of the step in which it was issued
  // Of operations only.
  uint32_t group = 0;
  CommOp op = CommOp::kOther;
  uint8_t size_log2 = 0;
  int32_t peer = -1;
  uint32_t number = 0;
  uint64_t bytes = 0;
};

struct HostRange {
  Kind kind;
  uint64_t start_ns;
  uint64_t end_ns;
};

struct Loss {
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t records;
};

struct Step {
  int64_t step = 0;
  uint64_t id = 0;
  uint64_t serial = 0;
  uint64_t losses = 0;
  uint64_t host_start_ns = 0;
  uint64_t host_end_ns = 0;
  uint64_t device_start_ns = 0;  // 0: not there
  uint64_t device_end_ns = 0;
};

uint8_t FloorLog2(uint64_t bytes) { return bytes == 0 ? 0 : static_cast<uint8_t>(63 - __builtin_clzll(bytes)); }

// 0, 1, 4, 16, 64, ...: of each kind the first, and some in the middle wherever that is.
bool IsSampled(uint32_t number) {
  return number == 0 || (std::has_single_bit(number) && (std::countr_zero(number) & 1) == 0);
}

uint32_t Saturated(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

class MarkFold::Impl {
 public:
  explicit Impl(Sink sink) : sink_(std::move(sink)) {}

  void Add(const MarkRecord& record) {
    if (record.device) {
      AddDevice(record);
      return;
    }
    if (record.phase == MarkRecord::Phase::kInstant) return;
    if (!alive_ || record.process_id != process_id_) {
      // Another life begins with its first step. What else another process marks (a forked loader, the end of an
      // earlier life) is not this rank's step.
      if (record.phase != MarkRecord::Phase::kStart || IsCommunication(record) || !StepNumber(record.name)) return;
      BeginLife(record.process_id);
    }
    if (pending_loss_ != 0) {
      AddLoss(std::min(last_ns_, record.time_ns), std::max(last_ns_, record.time_ns), pending_loss_);
      pending_loss_ = 0;
    }
    last_ns_ = record.time_ns;
    if (record.phase == MarkRecord::Phase::kStart) {
      Start(record);
    } else {
      End(record);
    }
  }

  void Lost(uint64_t records) {
    if (!alive_) return;
    ++losses_seen_;
    pending_loss_ += std::min<uint64_t>(std::max<uint64_t>(records, 1), std::numeric_limits<uint32_t>::max());
  }

  void SetGroups(const std::vector<GroupInfo>& groups) {
    for (const GroupInfo& group : groups) {
      auto known = group_index_.find(group.name);
      if (known == group_index_.end()) {
        if (announced_.size() < kMaxGroups || announced_.contains(group.name)) announced_[group.name] = group;
        continue;
      }
      GroupInfo& info = groups_[known->second];
      if (info == group) continue;
      info = group;
      group_states_[known->second].blocking = IsBlocking(CommOp::kOther, info);
      ++groups_version_;
    }
  }

  void Finish() {
    while (!steps_.empty()) FoldFirst();
  }

  const std::vector<GroupInfo>& groups() const { return groups_; }
  uint64_t groups_version() const { return groups_version_; }
  int device_id() const { return device_id_; }

 private:
  struct GroupState {
    bool blocking = false;  // its collectives
    bool device = false;    // its operations have had device records
    uint64_t numbers_serial = 0;
    std::array<uint32_t, kCommOps> numbers{};  // operations begun in the step `numbers_serial`
  };

  static bool IsCommunication(const MarkRecord& record) { return record.domain == "communication"; }

  void BeginLife(uint32_t process_id) {
    Finish();
    alive_ = true;
    process_id_ = process_id;
    open_.clear();
    ops_.clear();
    ranges_.clear();
    losses_.clear();
    pending_loss_ = 0;
    last_ns_ = 0;
    current_.reset();
    inner_step_.reset();
    previous_end_ns_ = 0;
    previous_step_.reset();
    stride_ = 1;
    ++serial_;
  }

  void AddLoss(uint64_t begin_ns, uint64_t end_ns, uint64_t records) {
    if (losses_.size() >= kMaxLosses) {
      losses_.back().begin_ns = std::min(losses_.back().begin_ns, begin_ns);
      losses_.back().end_ns = std::max(losses_.back().end_ns, end_ns);
      losses_.back().records += records;
      return;
    }
    losses_.push_back({begin_ns, end_ns, records});
  }

  // ---- Records into ranges

  void Start(const MarkRecord& record) {
    Open range;
    range.order = ++starts_;
    range.losses = losses_seen_;
    range.step_serial = serial_;
    range.host_start_ns = record.time_ns;
    if (IsCommunication(record)) {
      StartOp(record, range);
    } else if (record.domain == "default" || record.domain.empty()) {
      if (record.name == "forward") {
        range.kind = Kind::kForward;
      } else if (record.name == "dataloader") {
        range.kind = Kind::kDataLoader;
      } else if (record.name == "save_checkpoint") {
        range.kind = Kind::kCheckpoint;
      } else if (std::optional<int64_t> step = StepNumber(record.name)) {
        range.kind = StartStep(record, *step);
      }
    }
    if (open_.size() >= kMaxOpen) ForgetOldRanges();
    auto [at, added] = open_.try_emplace(record.id, range);
    if (added) return;
    if (at->second.kind != Kind::kIgnored) AddLoss(record.time_ns, record.time_ns, 1);
    at->second = range;
  }

  void StartOp(const MarkRecord& record, Open& range) {
    CommName name;
    if (!ParseCommName(record.name, name_storage_, name) || name.group.size() > kMaxGroupName) return;
    const std::optional<uint32_t> group = GroupIndex(name.group);
    if (!group) {
      AddLoss(record.time_ns, record.time_ns, 1);
      return;
    }
    range.kind = Kind::kOp;
    range.group = *group;
    range.op = name.op;
    range.peer = name.peer;
    range.bytes = name.bytes;
    range.size_log2 = FloorLog2(name.bytes);
    GroupState& state = group_states_[*group];
    if (state.numbers_serial != serial_) {
      state.numbers_serial = serial_;
      state.numbers = {};
    }
    range.number = state.numbers[static_cast<size_t>(name.op)]++;
  }

  std::optional<uint32_t> GroupIndex(std::string_view name) {
    // Most operations are of the group of the one before.
    if (last_group_ < groups_.size() && groups_[last_group_].name == name) return last_group_;
    if (auto known = group_index_.find(name); known != group_index_.end()) return last_group_ = known->second;
    if (groups_.size() >= kMaxGroups) return std::nullopt;
    last_group_ = static_cast<uint32_t>(groups_.size());
    GroupInfo info;
    info.name = name;
    if (auto announced = announced_.find(name); announced != announced_.end()) {
      info = std::move(announced->second);
      announced_.erase(announced);
    }
    GroupState state;
    state.blocking = IsBlocking(CommOp::kOther, info);
    group_states_.push_back(state);
    group_index_.emplace(info.name, last_group_);
    groups_.push_back(std::move(info));
    ++groups_version_;
    return last_group_;
  }

  Kind StartStep(const MarkRecord& record, int64_t step) {
    if (current_) {
      // Another range of a step within this one, by a tool or another thread: the outer one counts. Unless its end was
      // lost, which is certain after a loss and seen when a second one begins in it.
      const bool second = inner_step_ && inner_step_->first != step && inner_step_->second;
      if (current_->losses == losses_seen_ && !second) {
        if (!inner_step_) inner_step_ = {step, false};
        return Kind::kInnerStep;
      }
      AddLoss(current_->host_start_ns, record.time_ns, 1);
      open_.erase(current_->id);
      previous_end_ns_ = 0;
      ++serial_;
    }
    inner_step_.reset();
    current_ = Step();
    current_->step = step;
    current_->id = record.id;
    current_->losses = losses_seen_;
    current_->host_start_ns = record.time_ns;
    return Kind::kStep;
  }

  void End(const MarkRecord& record) {
    auto found = open_.find(record.id);
    if (found == open_.end() || found->second.host_ended) {
      AddLoss(record.time_ns, record.time_ns, 1);
      return;
    }
    Open& range = found->second;
    range.host_ended = true;
    range.host_end_ns = std::max(record.time_ns, range.host_start_ns);
    switch (range.kind) {
      case Kind::kIgnored:
        if (device_) return;  // for its device records
        break;
      case Kind::kInnerStep:
        if (inner_step_) inner_step_->second = true;
        if (device_) return;
        break;
      case Kind::kDroppedStep:
        ++serial_;
        range.kind = Kind::kIgnored;
        return;
      case Kind::kStep:
        EndStep(found);
        return;
      case Kind::kForward:
      case Kind::kOp:
        if (device_ && !(range.device_started && range.device_ended)) return;
        Complete(range);
        break;
      case Kind::kDataLoader:
      case Kind::kCheckpoint:
        Complete(range);
        range.kind = Kind::kIgnored;
        if (device_) return;
        break;
    }
    open_.erase(found);
  }

  using OpenIterator = absl::flat_hash_map<uint64_t, Open>::iterator;

  void EndStep(OpenIterator found) {
    if (!current_ || current_->id != found->first) {
      open_.erase(found);
      return;
    }
    Step step = *std::exchange(current_, std::nullopt);
    inner_step_.reset();
    step.host_end_ns = found->second.host_end_ns;
    step.serial = serial_++;
    if (found->second.device_started) step.device_start_ns = found->second.device_start_ns;
    if (found->second.device_ended) step.device_end_ns = found->second.device_end_ns;
    open_.erase(found);
    steps_.push_back(step);
    FoldDue();
  }

  void AddDevice(const MarkRecord& record) {
    const int id = static_cast<int>(std::min<uint32_t>(record.process_id, std::numeric_limits<int>::max()));
    if (device_id_ < 0 || id < device_id_) device_id_ = id;
    if (record.phase == MarkRecord::Phase::kInstant) return;
    if (!device_) BeginDevice();
    if (!alive_) return;
    const bool start = record.phase == MarkRecord::Phase::kStart;
    for (Step& step : steps_) {
      if (step.id != record.id) continue;
      (start ? step.device_start_ns : step.device_end_ns) = record.time_ns;
      step_device_ = true;
      FoldDue();
      return;
    }
    auto found = open_.find(record.id);
    if (found == open_.end()) {
      if (folded_on_device_) AddLoss(last_ns_, last_ns_, 1);
      return;
    }
    Open& range = found->second;
    if (start) {
      range.device_started = true;
      range.device_start_ns = record.time_ns;
    } else {
      range.device_ended = true;
      range.device_end_ns = record.time_ns;
    }
    if (range.kind == Kind::kStep) {
      step_device_ = true;
    } else if (range.kind == Kind::kOp) {
      group_states_[range.group].device = true;
    }
    if (range.host_ended && range.device_started && range.device_ended) {
      Complete(range);
      open_.erase(found);
    }
  }

  // The first device record. Ranges that were taken for host-only ones are gone by now: nothing is folded of a step
  // that is half one and half the other.
  void BeginDevice() {
    device_ = true;
    folded_on_device_ = false;
    ops_.clear();
    ranges_.clear();
    previous_end_ns_ = 0;
    if (current_) {
      auto found = open_.find(current_->id);
      if (found != open_.end()) found->second.kind = Kind::kDroppedStep;
      current_.reset();
      inner_step_.reset();
    }
  }

  void EndDevice() {
    device_ = false;
    step_device_ = false;
    without_device_ = 0;
    previous_end_ns_ = 0;
    for (GroupState& state : group_states_) state.device = false;
    // Nobody will complete these any more.
    absl::erase_if(open_, [](const auto& entry) { return entry.second.host_ended; });
  }

  void Complete(const Open& range) {
    const bool device = range.device_started && range.device_ended;
    const uint64_t start_ns = device ? range.device_start_ns : range.host_start_ns;
    const uint64_t end_ns = std::max(device ? range.device_end_ns : range.host_end_ns, start_ns);
    if (range.kind != Kind::kOp) {
      if (range.kind != Kind::kForward && range.kind != Kind::kDataLoader && range.kind != Kind::kCheckpoint) return;
      if (ranges_.size() >= kMaxBufferedRanges) {
        AddLoss(end_ns, end_ns, 1);
        return;
      }
      ranges_.push_back({range.kind, start_ns, end_ns});
      return;
    }
    if (ops_.size() >= kMaxBufferedOps) {
      AddLoss(start_ns, end_ns, 1);
      return;
    }
    TimedOp op = OpOf(range);
    op.start_ns = start_ns;
    op.end_ns = end_ns;
    op.device = device;
    op.issue_ns = device && start_ns > range.host_start_ns ? start_ns - range.host_start_ns : 0;
    ops_.push_back(op);
  }

  static TimedOp OpOf(const Open& range) {
    TimedOp op{};
    op.start_ns = range.host_start_ns;
    op.host_start_ns = range.host_start_ns;
    op.bytes = range.bytes;
    op.step_serial = range.step_serial;
    op.group = range.group;
    op.peer = range.peer;
    op.number = range.number;
    op.op = range.op;
    op.size_log2 = range.size_log2;
    return op;
  }

  // The older eighth of them: those that nobody will end any more.
  void ForgetOldRanges() {
    std::vector<uint64_t> orders;
    orders.reserve(open_.size());
    for (const auto& [id, range] : open_) orders.push_back(range.order);
    auto limit = orders.begin() + static_cast<std::ptrdiff_t>(orders.size() / 8);
    std::nth_element(orders.begin(), limit, orders.end());
    absl::erase_if(open_, [&, limit = *limit](const auto& entry) {
      if (entry.second.order >= limit) return false;
      if (current_ && current_->id == entry.first) return false;
      if (entry.second.kind != Kind::kIgnored) AddLoss(entry.second.host_start_ns, entry.second.host_start_ns, 1);
      return true;
    });
  }

  // ---- Ranges into steps

  void FoldDue() {
    if (!device_) {
      Finish();
      return;
    }
    // The device ends its steps in order, so that with the end of the next one all of this one has come. If that end
    // is lost, the one after it will do.
    while (steps_.size() >= 2 && (!step_device_ || steps_[1].device_end_ns != 0 || steps_.size() >= 3)) FoldFirst();
  }

  void FoldFirst() {
    const Step step = steps_.front();
    steps_.pop_front();
    uint64_t start_ns = step.host_start_ns;
    uint64_t end_ns = step.host_end_ns;
    if (device_ && step_device_) {
      if (step.device_start_ns == 0 || step.device_end_ns == 0) {
        LeaveOut(step);
        if (++without_device_ == kStepsWithoutDevice) EndDevice();
        return;
      }
      without_device_ = 0;
      start_ns = step.device_start_ns;
      end_ns = step.device_end_ns;
    }
    if (end_ns < start_ns || end_ns <= previous_end_ns_) {
      LeaveOut(step);
      return;
    }
    NoteStride(step.step);

    StepFold fold;
    fold.step = step.step;
    fold.process_id = process_id_;
    fold.start_ns = start_ns;
    fold.end_ns = end_ns;
    fold.previous_end_ns = previous_end_ns_;
    const uint64_t begin_ns = previous_end_ns_ != 0 ? previous_end_ns_ : start_ns;
    TakeOps(begin_ns, end_ns, step);
    TakeLosses(end_ns, fold);
    cutter_.Cut(work_, spans_, begin_ns, end_ns, fold);
    Samples(step.serial, fold);
    TakeRanges(begin_ns, end_ns, fold);
    previous_end_ns_ = end_ns;
    folded_on_device_ = device_;
    const bool device_is_gone = device_ && !step_device_ && fold.host_only && (!fold.ops.empty() || !lost_ops_.empty());
    sink_(std::move(fold));
    if (device_is_gone) EndDevice();
  }

  // A step of which too little is known: the next one has no known begin.
  void LeaveOut(const Step& step) {
    AddLoss(step.host_start_ns, step.host_end_ns, 1);
    previous_end_ns_ = 0;
    previous_step_ = step.step;
  }

  // Whether steps were left out since the last one, as while the switch was off: then the period is not one step's.
  // Who marks every tenth step does so always.
  void NoteStride(int64_t step) {
    if (previous_step_ && step > *previous_step_) {
      const uint64_t stride = static_cast<uint64_t>(step) - static_cast<uint64_t>(*previous_step_);
      if (stride > 1 && stride != stride_) previous_end_ns_ = 0;
      stride_ = stride;
    }
    previous_step_ = step;
  }

  // Into work_: the operations that end in the period, and what covers a part of it but ends later.
  void TakeOps(uint64_t begin_ns, uint64_t end_ns, const Step& step) {
    work_.clear();
    lost_ops_.clear();
    size_t kept = 0;
    for (TimedOp& op : ops_) {
      if (op.end_ns > end_ns) {
        if (op.start_ns < end_ns) {
          work_.push_back(op);
          work_.back().open = true;
        }
        ops_[kept++] = op;
      } else if (op.end_ns > begin_ns) {
        work_.push_back(op);
      }
    }
    ops_.resize(kept);
    if (!open_.empty()) TakeOpenOps(begin_ns, end_ns, step);
    for (TimedOp& op : work_) op.blocking = IsPointToPoint(op.op) || group_states_[op.group].blocking;
  }

  void TakeOpenOps(uint64_t begin_ns, uint64_t end_ns, const Step& step) {
    // Operations of one group and kind with one peer end in the order of their starts. So one that is open although a
    // later one has ended has lost its end.
    auto link = [](const TimedOp& op) { return KeyOf(op) & ~(uint64_t{0xff} << 32); };
    last_starts_.clear();
    bool links_known = false;
    absl::erase_if(open_, [&](auto& entry) {
      Open& range = entry.second;
      const bool host_only =
          !device_ || (range.kind == Kind::kOp ? !group_states_[range.group].device : !range.device_started);
      // The host runs ahead of the step that is folded. What has no device records is taken by its time, which may lie
      // in the period of the step before: the records of the next step have come by now.
      const bool taken_by_time =
          host_only && range.host_ended && range.host_end_ns <= end_ns && range.step_serial == step.serial + 1;
      if (range.step_serial > step.serial && !taken_by_time) return false;
      if (range.kind != Kind::kOp) {
        if (range.host_ended) CompleteLate(range, begin_ns, end_ns);
        return range.host_ended;
      }
      if (host_only && range.host_ended) {  // waited for device records in vain: it has none
        CompleteLate(range, begin_ns, end_ns);
        return true;
      }
      if (host_only) {
        if (range.host_start_ns >= end_ns) return false;
        if (!links_known) {
          links_known = true;
          for (const TimedOp& op : work_) {
            uint64_t& last = last_starts_[link(op)];
            last = std::max(last, op.open ? 0 : op.start_ns);
          }
        }
        TimedOp op = OpOf(range);
        auto last = last_starts_.find(link(op));
        const bool overtaken = last != last_starts_.end() && last->second > op.start_ns;
        if (overtaken || range.over_a_step || range.losses != losses_seen_) {
          AddLoss(op.start_ns, op.start_ns, 1);
          return true;
        }
        range.over_a_step = true;
        op.end_ns = std::numeric_limits<uint64_t>::max();
        op.open = true;
        work_.push_back(op);
        return false;
      }
      // On the device: what was issued in this step has ended by the end of the next.
      if (range.device_started && range.device_ended) {
        CompleteLate(range, begin_ns, end_ns);
      } else {
        lost_ops_.push_back(range.host_start_ns);
      }
      return true;
    });
    NoteLostOps();
  }

  // As Complete, while a step is being folded.
  void CompleteLate(const Open& range, uint64_t begin_ns, uint64_t end_ns) {
    const size_t before = ops_.size();
    Complete(range);
    if (range.kind != Kind::kOp || ops_.size() == before) return;
    TimedOp op = ops_.back();
    if (op.start_ns >= end_ns) return;
    if (op.end_ns > end_ns) {
      op.open = true;
    } else {
      ops_.pop_back();
    }
    if (op.end_ns > begin_ns) work_.push_back(op);
  }

  // An operation without device stamps ran after the one that was issued before it.
  void NoteLostOps() {
    if (lost_ops_.empty()) return;
    std::vector<std::pair<uint64_t, uint64_t>> issued;  // host start, end
    issued.reserve(work_.size());
    for (const TimedOp& op : work_) issued.emplace_back(op.host_start_ns, op.end_ns);
    std::sort(issued.begin(), issued.end());
    for (uint64_t host_start_ns : lost_ops_) {
      auto after = std::lower_bound(issued.begin(), issued.end(), std::pair<uint64_t, uint64_t>(host_start_ns, 0));
      const uint64_t at = after == issued.begin() ? host_start_ns : std::prev(after)->second;
      AddLoss(at, at, 1);
    }
  }

  // Into spans_: where records were lost, disjoint and in order. What lies after the period stays.
  void TakeLosses(uint64_t end_ns, StepFold& fold) {
    spans_.clear();
    if (losses_.empty()) return;
    uint64_t records = 0;
    size_t kept = 0;
    for (const Loss& loss : losses_) {
      if (loss.begin_ns > end_ns) {
        losses_[kept++] = loss;
        continue;
      }
      records += loss.records;
      spans_.emplace_back(loss.begin_ns, loss.end_ns);
    }
    losses_.resize(kept);
    fold.broken = Saturated(records);
    std::sort(spans_.begin(), spans_.end());
    size_t last = 0;
    for (size_t i = 1; i < spans_.size(); ++i) {
      if (spans_[i].first <= spans_[last].second) {
        spans_[last].second = std::max(spans_[last].second, spans_[i].second);
      } else {
        spans_[++last] = spans_[i];
      }
    }
    if (!spans_.empty()) spans_.resize(last + 1);
  }

  // Operations are numbered as they are issued, from the end of the step before: the same order on every member. One
  // that was issued in an earlier step has that one's number and is left out.
  void Samples(uint64_t serial, StepFold& fold) {
    for (const TimedOp& op : work_) {
      if (op.open || op.step_serial != serial || !IsSampled(op.number)) continue;
      int64_t members = 0;
      for (const MemberRun& run : groups_[op.group].members) members += run.count;
      if (members == 1) continue;
      fold.samples.push_back({op.group, op.op, op.number, op.start_ns, op.end_ns});
    }
    std::stable_sort(fold.samples.begin(), fold.samples.end(), [](const OpSample& a, const OpSample& b) {
      return std::tuple(a.number, a.group, a.op) < std::tuple(b.number, b.group, b.op);
    });
    if (fold.samples.size() > StepFold::kMaxSamples) fold.samples.resize(StepFold::kMaxSamples);
  }

  void TakeRanges(uint64_t begin_ns, uint64_t end_ns, StepFold& fold) {
    size_t kept = 0;
    for (const HostRange& range : ranges_) {
      if (range.end_ns > end_ns) {
        ranges_[kept++] = range;
        continue;
      }
      if (range.end_ns <= begin_ns) continue;
      const uint64_t duration_ns = range.end_ns - range.start_ns;
      const uint64_t own_ns = cutter_.UncoveredWithin(std::max(range.start_ns, begin_ns), range.end_ns);
      if (range.kind == Kind::kForward) {
        ++fold.forwards;
        fold.forward_ns += duration_ns;
      } else if (range.kind == Kind::kDataLoader) {
        ++fold.dataloaders;
        fold.dataloader_ns += duration_ns;
        fold.dataloader_own_ns += own_ns;
      } else {
        ++fold.checkpoints;
        fold.checkpoint_ns += duration_ns;
        fold.checkpoint_own_ns += own_ns;
      }
    }
    ranges_.resize(kept);
  }

  const Sink sink_;

  // Of the present life.
  bool alive_ = false;
  uint32_t process_id_ = 0;
  uint64_t last_ns_ = 0;  // of the newest host record
  absl::flat_hash_map<uint64_t, Open> open_;
  std::optional<Step> current_;                         // the one that is open
  std::optional<std::pair<int64_t, bool>> inner_step_;  // first one within it: its number, and whether it has ended
  std::deque<Step> steps_;                              // ended, not folded; at most 3
  std::vector<TimedOp> ops_;                            // complete, of no folded step
  std::vector<HostRange> ranges_;                       // as ops_
  std::vector<Loss> losses_;
  uint64_t pending_loss_ = 0;  // records lost since the newest host record
  uint64_t losses_seen_ = 0;   // calls of Lost
  uint64_t previous_end_ns_ = 0;
  std::optional<int64_t> previous_step_;
  uint64_t stride_ = 1;
  uint64_t serial_ = 1;  // of the step whose end comes next
  uint64_t starts_ = 0;

  // Of the rank.
  bool device_ = false;            // device records come
  bool step_device_ = false;       // also of steps
  bool folded_on_device_ = false;  // a step has been folded since the first device record
  int without_device_ = 0;         // steps in a row whose device records did not come
  int device_id_ = -1;
  std::vector<GroupInfo> groups_;
  std::vector<GroupState> group_states_;
  std::map<std::string, uint32_t, std::less<>> group_index_;
  std::map<std::string, GroupInfo, std::less<>> announced_;  // not seen in marks yet
  uint32_t last_group_ = 0;
  uint64_t groups_version_ = 0;

  // Of one fold; members so that their memory is kept.
  std::string name_storage_;
  std::vector<TimedOp> work_;
  std::vector<uint64_t> lost_ops_;  // host starts
  std::vector<LostSpan> spans_;
  absl::flat_hash_map<uint64_t, uint64_t> last_starts_;
  StepCutter cutter_;
};

MarkFold::MarkFold(Sink sink) : impl_(std::make_unique<Impl>(std::move(sink))) {}
MarkFold::~MarkFold() = default;
void MarkFold::Add(const MarkRecord& record) { impl_->Add(record); }
void MarkFold::Lost(uint64_t records) { impl_->Lost(records); }
void MarkFold::SetGroups(const std::vector<GroupInfo>& groups) { impl_->SetGroups(groups); }
void MarkFold::Finish() { impl_->Finish(); }
const std::vector<GroupInfo>& MarkFold::groups() const { return impl_->groups(); }
uint64_t MarkFold::groups_version() const { return impl_->groups_version(); }
int MarkFold::device_id() const { return impl_->device_id(); }

}  // namespace taskd
