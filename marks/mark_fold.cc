#include "marks/mark_fold.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "marks/comm_name.h"
#include "marks/fold_groups.h"
#include "marks/loss_log.h"
#include "marks/mark_range.h"
#include "marks/rank_ranges.h"
#include "marks/step_cutter.h"
#include "marks/step_name.h"
#include "marks/work_name.h"

namespace taskd {
namespace {

constexpr int kStepsWithoutDevice = 3;
constexpr size_t kMaxGroupName = 512;

using Kind = MarkRange::Kind;

// The work that marks have reported since the previous step ended.
struct Work {
  double amount = 0;
  uint32_t marks = 0;
  uint32_t odd = 0;

  void Add(const SaidWork& said) {
    ++marks;
    if (said.usable && amount + said.amount <= std::numeric_limits<double>::max()) {
      amount += said.amount;
    } else {
      ++odd;
    }
  }
};

struct Step {
  int64_t step = 0;
  uint64_t id = 0;
  uint64_t serial = 0;
  uint64_t losses = 0;
  uint64_t host_start_ns = 0;
  uint64_t host_end_ns = 0;
  uint64_t device_start_ns = 0;  // 0: no such record
  uint64_t device_end_ns = 0;
  Work work;
};

// The first step range that began within the open step.
struct InnerStep {
  int64_t step = 0;
  bool has_ended = false;
};

uint8_t FloorLog2(uint64_t bytes) { return bytes == 0 ? 0 : static_cast<uint8_t>(63 - __builtin_clzll(bytes)); }

bool IsCommunication(const MarkRecord& record) { return record.domain == "communication"; }

// Samples operations 0, 1, 4, 16, 64, ... of each kind: the first, and some in the middle of a step of any length.
bool IsSampled(uint32_t number) {
  return number == 0 || (std::has_single_bit(number) && (std::countr_zero(number) & 1) == 0);
}

// Returns the kind of a range that has a fixed name.
Kind KindOfName(std::string_view name) {
  if (name == "forward") return Kind::kForward;
  if (name == "dataloader") return Kind::kDataLoader;
  if (name == "save_checkpoint") return Kind::kCheckpoint;
  return Kind::kIgnored;
}

OpenPhase::Kind PhaseOf(const MarkRange& range) {
  switch (range.kind) {
    case Kind::kForward:
      return OpenPhase::Kind::kForward;
    case Kind::kDataLoader:
      return OpenPhase::Kind::kDataLoader;
    case Kind::kCheckpoint:
      return OpenPhase::Kind::kCheckpoint;
    case Kind::kOp:
      return OpenPhase::Kind::kCommunication;
    default:
      return OpenPhase::Kind::kNone;
  }
}

// Returns torch.distributed's name of the operation.
std::string NameOf(CommOp op) {
  static constexpr std::array<const char*, kCommOps> kNames = {
      "a communication", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter",
      "gather",          "all_to_all", "send",       "recv",           "send_recv", "barrier"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace

class MarkFold::Impl {
 public:
  explicit Impl(Sink sink) : sink_(std::move(sink)), ranges_(&groups_, &losses_) {}

  void Add(const MarkRecord& record);
  void Lost(uint64_t records);
  void SetGroups(const std::vector<GroupInfo>& groups) { groups_.Announce(groups); }
  void Finish();
  const std::vector<GroupInfo>& groups() const { return groups_.all(); }
  uint64_t groups_version() const { return groups_.version(); }
  int device_id() const { return device_id_; }
  const SavedInStep& saved() const { return saved_; }
  OpenPhase open();

 private:
  // The stamps that measure ranges, as far as device records have shown.
  enum class Stamps : uint8_t {
    kHost,
    kDevice,       // device stamps for ranges that have them
    kDeviceSteps,  // device stamps for steps too
  };
  using OpenIterator = RankRanges::Map::iterator;
  using Period = RankRanges::Period;

  void AddInstant(const MarkRecord& record);
  void AddHost(const MarkRecord& record);
  bool BelongsToLife(const MarkRecord& record);
  void BeginLife(uint32_t process_id);
  void NoteTime(uint64_t time_ns);
  void Start(const MarkRecord& record);
  void StartOp(const MarkRecord& record, MarkRange& range);
  Kind StartStep(const MarkRecord& record, int64_t step);
  bool IsWithinCurrent(int64_t step);
  void End(const MarkRecord& record);
  bool EndRange(MarkRange& range);
  void NoteSaved(const MarkRange& range);
  void EndStep(OpenIterator found);

  void AddDevice(const MarkRecord& record);
  bool StampStep(const MarkRecord& record);
  void StampRange(const MarkRecord& record);
  void BeginDevice();
  void EndDevice();
  bool uses_device() const { return stamps_ != Stamps::kHost; }

  void FoldDue();
  void FoldFirst();
  void Fold(const Step& step, uint64_t start_ns, uint64_t end_ns);
  void LeaveOut(const Step& step);
  void NoteStride(int64_t step);
  void TakeSamples(const std::vector<TimedOp>& ops, uint64_t serial, StepFold& fold);

  const Sink sink_;

  // These belong to the present incarnation.
  bool alive_ = false;
  uint32_t process_id_ = 0;
  uint64_t last_ns_ = 0;         // time of the newest host record
  std::optional<Step> current_;  // the open step
  std::optional<InnerStep> inner_step_;
  std::optional<Step> ended_;  // the newest step that has ended
  SavedInStep saved_;          // since `ended_`
  std::deque<Step> steps_;     // ended but not summarised yet; at most 3
  Work work_;
  LossLog losses_;
  uint64_t pending_loss_ = 0;  // records lost since the newest host record
  uint64_t losses_seen_ = 0;   // calls of Lost
  uint64_t previous_end_ns_ = 0;
  std::optional<int64_t> previous_step_;
  uint64_t stride_ = 1;
  uint64_t serial_ = 1;  // serial of the step that ends next
  uint64_t starts_ = 0;

  // These outlive an incarnation.
  Stamps stamps_ = Stamps::kHost;
  bool folded_on_device_ = false;  // a step has been summarised since the first device record
  int without_device_ = 0;         // consecutive steps without device records
  int device_id_ = -1;
  FoldGroups groups_;
  RankRanges ranges_;  // for the present incarnation

  // These are used within one call; as members they keep their memory.
  std::string name_storage_;
  std::vector<LostSpan> spans_;
  StepCutter cutter_;
};

OpenPhase MarkFold::Impl::open() {
  const MarkRange* newest = nullptr;
  for (const auto& [id, range] : ranges_.open()) {
    if (range.host_ended || PhaseOf(range) == OpenPhase::Kind::kNone) continue;
    if (newest == nullptr || range.order > newest->order) newest = &range;
  }
  if (newest == nullptr) return {};
  return {PhaseOf(*newest), newest->host_start_ns, newest->kind == Kind::kOp ? NameOf(newest->op) : ""};
}

// ---- Host records become ranges. The functions for each record are inline: as calls they take 5 % more time.

void MarkFold::Impl::Add(const MarkRecord& record) {
  if (record.device) return AddDevice(record);
  if (record.phase == MarkRecord::Phase::kInstant) return AddInstant(record);
  if (record.phase == MarkRecord::Phase::kStart && record.name.ends_with('}') && !IsCommunication(record)) {
    MarkRecord plain = record;
    const std::optional<SaidWork> said = CutWork(plain.name);
    AddHost(plain);
    if (said && alive_ && record.process_id == process_id_) work_.Add(*said);
    return;
  }
  AddHost(record);
}

inline void MarkFold::Impl::AddHost(const MarkRecord& record) {
  if (!BelongsToLife(record)) return;
  NoteTime(record.time_ns);
  if (record.phase == MarkRecord::Phase::kStart) {
    Start(record);
  } else {
    End(record);
  }
}

void MarkFold::Impl::AddInstant(const MarkRecord& record) {
  if (!alive_ || record.process_id != process_id_ || IsCommunication(record)) return;
  if (std::optional<SaidWork> said = WorkOfName(record.name)) work_.Add(*said);
}

// A new incarnation begins with its first step. Other marks of another process do not belong to this rank's steps: they
// come from a forked loader, or from the end of the previous incarnation.
inline bool MarkFold::Impl::BelongsToLife(const MarkRecord& record) {
  if (alive_ && record.process_id == process_id_) return true;
  if (record.phase != MarkRecord::Phase::kStart || IsCommunication(record) || !StepNumber(record.name)) return false;
  BeginLife(record.process_id);
  return true;
}

void MarkFold::Impl::BeginLife(uint32_t process_id) {
  Finish();
  alive_ = true;
  process_id_ = process_id;
  ranges_.Clear();
  losses_.Clear();
  pending_loss_ = 0;
  last_ns_ = 0;
  current_.reset();
  inner_step_.reset();
  ended_.reset();
  saved_ = {};
  work_ = {};
  previous_end_ns_ = 0;
  previous_step_.reset();
  stride_ = 1;
  ++serial_;
}

// Records lost before this record were lost after the previous one.
inline void MarkFold::Impl::NoteTime(uint64_t time_ns) {
  if (pending_loss_ != 0) {
    losses_.Add(std::min(last_ns_, time_ns), std::max(last_ns_, time_ns), pending_loss_);
    pending_loss_ = 0;
  }
  last_ns_ = time_ns;
}

void MarkFold::Impl::Lost(uint64_t records) {
  if (!alive_) return;
  ++losses_seen_;
  pending_loss_ += std::min<uint64_t>(std::max<uint64_t>(records, 1), std::numeric_limits<uint32_t>::max());
}

inline void MarkFold::Impl::Start(const MarkRecord& record) {
  MarkRange range;
  range.order = ++starts_;
  range.losses = losses_seen_;
  range.step_serial = serial_;
  range.host_start_ns = record.time_ns;
  if (IsCommunication(record)) {
    StartOp(record, range);
  } else if (record.domain == "default" || record.domain.empty()) {
    range.kind = KindOfName(record.name);
    if (range.kind == Kind::kIgnored) {
      if (std::optional<int64_t> step = StepNumber(record.name)) range.kind = StartStep(record, *step);
    }
  }
  ranges_.Begin(record.id, range, current_ ? std::optional(current_->id) : std::nullopt);
}

inline void MarkFold::Impl::StartOp(const MarkRecord& record, MarkRange& range) {
  CommName name;
  if (!ParseCommName(record.name, name_storage_, name) || name.group.size() > kMaxGroupName) return;
  const std::optional<uint32_t> group = groups_.IndexOf(name.group);
  if (!group) return losses_.AddOne(record.time_ns);
  range.kind = Kind::kOp;
  range.group = *group;
  range.op = name.op;
  range.peer = name.peer;
  range.bytes = name.bytes;
  range.size_log2 = FloorLog2(name.bytes);
  range.number = groups_.NextNumber(*group, name.op, serial_);
}

Kind MarkFold::Impl::StartStep(const MarkRecord& record, int64_t step) {
  if (current_) {
    if (IsWithinCurrent(step)) {
      if (!inner_step_) inner_step_ = InnerStep{.step = step};
      return Kind::kInnerStep;
    }
    losses_.Add(current_->host_start_ns, record.time_ns, 1);
    ranges_.open().erase(current_->id);
    work_ = {};
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

// A tool or another thread may mark a step within the open one: then the outer step counts. But the inner range is a
// step if the end of the open one was lost. That is assumed after any loss, and when a second inner step begins.
bool MarkFold::Impl::IsWithinCurrent(int64_t step) {
  const bool is_second = inner_step_ && inner_step_->step != step && inner_step_->has_ended;
  return current_->losses == losses_seen_ && !is_second;
}

inline void MarkFold::Impl::End(const MarkRecord& record) {
  auto found = ranges_.open().find(record.id);
  if (found == ranges_.open().end() || found->second.host_ended) return losses_.AddOne(record.time_ns);
  MarkRange& range = found->second;
  range.host_ended = true;
  range.host_end_ns = std::max(record.time_ns, range.host_start_ns);
  if (range.kind == Kind::kStep) {
    EndStep(found);
  } else if (EndRange(range)) {
    ranges_.open().erase(found);
  }
}

// Returns false if the range is kept for its device records.
inline bool MarkFold::Impl::EndRange(MarkRange& range) {
  switch (range.kind) {
    case Kind::kIgnored:
    case Kind::kStep:  // see End()
      break;
    case Kind::kInnerStep:
      if (inner_step_) inner_step_->has_ended = true;
      break;
    case Kind::kDroppedStep:
      ++serial_;
      range.kind = Kind::kIgnored;
      return false;
    case Kind::kForward:
    case Kind::kOp:
      if (uses_device() && !range.is_whole_on_device()) return false;
      ranges_.Complete(range);
      return true;
    case Kind::kCheckpoint:
      NoteSaved(range);
      [[fallthrough]];
    case Kind::kDataLoader:
      ranges_.Complete(range);
      range.kind = Kind::kIgnored;
      break;
  }
  return !uses_device();
}

// A save that began before the newest step ended continues in the background. Only its time since then counts.
void MarkFold::Impl::NoteSaved(const MarkRange& range) {
  if (!current_ && !ended_) return;
  saved_.step = current_ ? current_->step : ended_->step + 1;
  const uint64_t begin_ns = std::max(range.host_start_ns, ended_ ? ended_->host_end_ns : 0);
  saved_.ns += range.host_end_ns - std::min(range.host_end_ns, begin_ns);
}

void MarkFold::Impl::EndStep(OpenIterator found) {
  if (!current_ || current_->id != found->first) {
    ranges_.open().erase(found);
    return;
  }
  Step step = *std::exchange(current_, std::nullopt);
  inner_step_.reset();
  step.host_end_ns = found->second.host_end_ns;
  step.serial = serial_++;
  step.work = std::exchange(work_, {});
  if (found->second.device_started) step.device_start_ns = found->second.device_start_ns;
  if (found->second.device_ended) step.device_end_ns = found->second.device_end_ns;
  ranges_.open().erase(found);
  ended_ = step;
  saved_ = {};
  steps_.push_back(step);
  FoldDue();
}

// ---- Device records

void MarkFold::Impl::AddDevice(const MarkRecord& record) {
  const int id = static_cast<int>(std::min<uint32_t>(record.process_id, std::numeric_limits<int>::max()));
  if (device_id_ < 0 || id < device_id_) device_id_ = id;
  if (record.phase == MarkRecord::Phase::kInstant) return;
  if (!uses_device()) BeginDevice();
  if (alive_ && !StampStep(record)) StampRange(record);
}

// Returns false if the record does not belong to a step that has ended.
inline bool MarkFold::Impl::StampStep(const MarkRecord& record) {
  auto step = std::find_if(steps_.begin(), steps_.end(), [&](const Step& ended) { return ended.id == record.id; });
  if (step == steps_.end()) return false;
  (record.phase == MarkRecord::Phase::kStart ? step->device_start_ns : step->device_end_ns) = record.time_ns;
  stamps_ = Stamps::kDeviceSteps;
  FoldDue();
  return true;
}

inline void MarkFold::Impl::StampRange(const MarkRecord& record) {
  auto found = ranges_.open().find(record.id);
  if (found == ranges_.open().end()) {
    if (folded_on_device_) losses_.AddOne(last_ns_);
    return;
  }
  MarkRange& range = found->second;
  if (record.phase == MarkRecord::Phase::kStart) {
    range.device_started = true;
    range.device_start_ns = record.time_ns;
  } else {
    range.device_ended = true;
    range.device_end_ns = record.time_ns;
  }
  if (range.kind == Kind::kStep) {
    stamps_ = Stamps::kDeviceSteps;
  } else if (range.kind == Kind::kOp) {
    groups_.set_on_device(range.group);
  }
  if (range.host_ended && range.is_whole_on_device()) {
    ranges_.Complete(range);
    ranges_.open().erase(found);
  }
}

// Handles the first device record. Ranges that were taken for host-only ranges are gone by now, so the open step is
// dropped: half of it would be measured by the host.
void MarkFold::Impl::BeginDevice() {
  stamps_ = Stamps::kDevice;
  folded_on_device_ = false;
  ranges_.ClearComplete();
  previous_end_ns_ = 0;
  if (!current_) return;
  auto found = ranges_.open().find(current_->id);
  if (found != ranges_.open().end()) found->second.kind = Kind::kDroppedStep;
  current_.reset();
  inner_step_.reset();
}

void MarkFold::Impl::EndDevice() {
  stamps_ = Stamps::kHost;
  without_device_ = 0;
  previous_end_ns_ = 0;
  groups_.ForgetDevice();
  ranges_.EraseEnded();  // their device records will not come any more
}

// ---- Ranges become step summaries

void MarkFold::Impl::Finish() {
  while (!steps_.empty()) FoldFirst();
}

void MarkFold::Impl::FoldDue() {
  if (!uses_device()) return Finish();
  // The device ends its steps in order. So all records of this step have come when the end of the next one has come,
  // or, if that end is lost, when a third step has ended.
  while (steps_.size() >= 2 &&
         (stamps_ != Stamps::kDeviceSteps || steps_[1].device_end_ns != 0 || steps_.size() >= 3)) {
    FoldFirst();
  }
}

void MarkFold::Impl::FoldFirst() {
  const Step step = steps_.front();
  steps_.pop_front();
  if (stamps_ != Stamps::kDeviceSteps) return Fold(step, step.host_start_ns, step.host_end_ns);
  if (step.device_start_ns != 0 && step.device_end_ns != 0) {
    without_device_ = 0;
    return Fold(step, step.device_start_ns, step.device_end_ns);
  }
  LeaveOut(step);
  if (++without_device_ == kStepsWithoutDevice) EndDevice();
}

void MarkFold::Impl::Fold(const Step& step, uint64_t start_ns, uint64_t end_ns) {
  if (end_ns < start_ns || end_ns <= previous_end_ns_) return LeaveOut(step);
  NoteStride(step.step);

  StepFold fold;
  fold.step = step.step;
  fold.process_id = process_id_;
  fold.start_ns = start_ns;
  fold.end_ns = end_ns;
  fold.previous_end_ns = previous_end_ns_;
  fold.work = step.work.amount;
  fold.works = step.work.marks;
  fold.odd_works = step.work.odd;
  const Period period{previous_end_ns_ != 0 ? previous_end_ns_ : start_ns, end_ns, step.serial};
  const std::vector<TimedOp>& ops = ranges_.TakeOps(period, {.device = uses_device(), .losses = losses_seen_});
  fold.broken = losses_.TakeUntil(end_ns, spans_);
  cutter_.Cut(ops, spans_, period.begin_ns, end_ns, fold);
  TakeSamples(ops, step.serial, fold);
  ranges_.TakeOthers(period, cutter_, fold);
  previous_end_ns_ = end_ns;
  folded_on_device_ = uses_device();
  const bool device_is_gone =
      stamps_ == Stamps::kDevice && fold.host_only && (!fold.ops.empty() || ranges_.has_lost_ops());
  sink_(std::move(fold));
  if (device_is_gone) EndDevice();
}

// Skips a step that cannot be measured. The begin of the next step's period is then unknown.
void MarkFold::Impl::LeaveOut(const Step& step) {
  losses_.Add(step.host_start_ns, step.host_end_ns, 1);
  previous_end_ns_ = 0;
  previous_step_ = step.step;
}

// Detects skipped steps, as while marks were switched off: then the period covers several steps and is unknown. A rank
// that always marks every tenth step has a constant stride, and its periods count.
void MarkFold::Impl::NoteStride(int64_t step) {
  if (previous_step_ && step > *previous_step_) {
    const uint64_t stride = static_cast<uint64_t>(step) - static_cast<uint64_t>(*previous_step_);
    if (stride > 1 && stride != stride_) previous_end_ns_ = 0;
    stride_ = stride;
  }
  previous_step_ = step;
}

// Chooses the samples of a step. Operations are numbered as they are issued since the end of the previous step, in the
// same order on every member. An operation that was issued in an earlier step has a number of that step and is skipped.
// So is an operation that does not end together on all members.
void MarkFold::Impl::TakeSamples(const std::vector<TimedOp>& ops, uint64_t serial, StepFold& fold) {
  for (const TimedOp& op : ops) {
    if (op.open || op.step_serial != serial || !EndsTogether(op.op)) continue;
    if (!IsSampled(op.number) || groups_.HasOneMember(op.group)) continue;
    fold.samples.push_back({static_cast<uint16_t>(op.group), op.op, op.number, op.start_ns, op.end_ns});
  }
  std::stable_sort(fold.samples.begin(), fold.samples.end(), [](const OpSample& a, const OpSample& b) {
    return std::tuple(a.number, a.group, a.op) < std::tuple(b.number, b.group, b.op);
  });
  if (fold.samples.size() > StepFold::kMaxSamples) fold.samples.resize(StepFold::kMaxSamples);
}

MarkFold::MarkFold(Sink sink) : impl_(std::make_unique<Impl>(std::move(sink))) {}
MarkFold::~MarkFold() = default;
void MarkFold::Add(const MarkRecord& record) { impl_->Add(record); }
void MarkFold::Lost(uint64_t records) { impl_->Lost(records); }
void MarkFold::SetGroups(const std::vector<GroupInfo>& groups) { impl_->SetGroups(groups); }
void MarkFold::Finish() { impl_->Finish(); }
const std::vector<GroupInfo>& MarkFold::groups() const { return impl_->groups(); }
uint64_t MarkFold::groups_version() const { return impl_->groups_version(); }
const SavedInStep& MarkFold::saved() const { return impl_->saved(); }
OpenPhase MarkFold::open() const { return impl_->open(); }
int MarkFold::device_id() const { return impl_->device_id(); }

}  // namespace taskd
