#include "proto/fold_messages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace taskd::proto {
namespace {

constexpr int kOpNumbers = 15;
constexpr int kSampleNumbers = 5;
constexpr int kRunNumbers = 3;
constexpr int kMaxRuns = 1024;
constexpr size_t kMaxNameBytes = 512;
constexpr uint32_t kMaxGroupIndex = 4095;

int64_t Before(uint64_t end_ns, uint64_t stamp_ns) { return static_cast<int64_t>(end_ns - stamp_ns); }

// Reads one number after the other and remembers whether all were in their ranges.
class Numbers {
 public:
  explicit Numbers(const int64_t* next) : next_(next) {}

  template <typename Number>
  void Read(Number& number, int64_t min = 0, int64_t max = std::numeric_limits<int64_t>::max()) {
    const int64_t value = *next_++;
    ok_ = ok_ && value >= min && value <= max &&
          (sizeof(Number) == 8 || value <= static_cast<int64_t>(std::numeric_limits<Number>::max()));
    number = static_cast<Number>(value);
  }
  void ReadOp(CommOp& op) {
    uint8_t number = 0;
    Read(number, 0, kCommOps - 1);
    op = static_cast<CommOp>(number);
  }
  void ReadStamp(uint64_t& stamp_ns, uint64_t end_ns) { stamp_ns = end_ns - static_cast<uint64_t>(*next_++); }
  bool ok() const { return ok_; }

 private:
  const int64_t* next_;
  bool ok_ = true;
};

absl::Status Bad(const v1::RankStep& message, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("step ", message.step(), " of rank ", message.rank(), ": ", std::string(what)));
}

// A number that means the same in a fold and in its message.
template <typename Number>
struct Field {
  Number StepFold::*in_fold;
  Number (v1::RankStep::*get)() const;
  void (v1::RankStep::*set)(Number);
};
constexpr Field<uint64_t> kTimes[] = {
    {&StepFold::forward_ns, &v1::RankStep::forward_ns, &v1::RankStep::set_forward_ns},
    {&StepFold::dataloader_ns, &v1::RankStep::dataloader_ns, &v1::RankStep::set_dataloader_ns},
    {&StepFold::checkpoint_ns, &v1::RankStep::checkpoint_ns, &v1::RankStep::set_checkpoint_ns},
    {&StepFold::covered_ns, &v1::RankStep::covered_ns, &v1::RankStep::set_covered_ns},
    {&StepFold::blocking_covered_ns, &v1::RankStep::blocking_covered_ns, &v1::RankStep::set_blocking_covered_ns},
    {&StepFold::head_ns, &v1::RankStep::head_ns, &v1::RankStep::set_head_ns},
    {&StepFold::lead_ns, &v1::RankStep::lead_ns, &v1::RankStep::set_lead_ns},
    {&StepFold::tail_ns, &v1::RankStep::tail_ns, &v1::RankStep::set_tail_ns},
    {&StepFold::forward_own_ns, &v1::RankStep::forward_own_ns, &v1::RankStep::set_forward_own_ns},
    {&StepFold::dataloader_own_ns, &v1::RankStep::dataloader_own_ns, &v1::RankStep::set_dataloader_own_ns},
    {&StepFold::checkpoint_own_ns, &v1::RankStep::checkpoint_own_ns, &v1::RankStep::set_checkpoint_own_ns},
    {&StepFold::issue_p10_ns, &v1::RankStep::issue_p10_ns, &v1::RankStep::set_issue_p10_ns},
    {&StepFold::issue_p50_ns, &v1::RankStep::issue_p50_ns, &v1::RankStep::set_issue_p50_ns},
};
constexpr Field<uint32_t> kCounts[] = {
    {&StepFold::process_id, &v1::RankStep::process_id, &v1::RankStep::set_process_id},
    {&StepFold::forwards, &v1::RankStep::forwards, &v1::RankStep::set_forwards},
    {&StepFold::dataloaders, &v1::RankStep::dataloaders, &v1::RankStep::set_dataloaders},
    {&StepFold::checkpoints, &v1::RankStep::checkpoints, &v1::RankStep::set_checkpoints},
    {&StepFold::issues, &v1::RankStep::issues, &v1::RankStep::set_issues},
    {&StepFold::broken, &v1::RankStep::broken, &v1::RankStep::set_broken},
    {&StepFold::works, &v1::RankStep::works, &v1::RankStep::set_works},
    {&StepFold::odd_works, &v1::RankStep::odd_works, &v1::RankStep::set_odd_works},
};

absl::Status CheckStep(const v1::RankStep& message) {
  if (message.step() < 0 || message.step() > StepFold::kMaxStep) return Bad(message, "no step has that number");
  if (message.ops_size() % kOpNumbers != 0) return Bad(message, "an incomplete operation");
  if (message.samples_size() % kSampleNumbers != 0) return Bad(message, "an incomplete sample");
  if (static_cast<size_t>(message.ops_size()) > StepFold::kMaxOps * kOpNumbers) {
    return Bad(message, absl::StrCat("more than ", StepFold::kMaxOps, " operations"));
  }
  if (static_cast<size_t>(message.samples_size()) > StepFold::kMaxSamples * kSampleNumbers) {
    return Bad(message, absl::StrCat("more than ", StepFold::kMaxSamples, " samples"));
  }
  if (message.length_ns() > message.end_ns() || message.period_ns() > message.end_ns()) {
    return Bad(message, "it begins before the clock does");
  }
  return absl::OkStatus();
}

void FillOp(const OpFold& op, uint64_t end_ns, v1::RankStep* message) {
  for (int64_t number :
       {static_cast<int64_t>(op.group), static_cast<int64_t>(op.op), static_cast<int64_t>(op.peer),
        static_cast<int64_t>(op.size_log2), static_cast<int64_t>(op.count), static_cast<int64_t>(op.bytes),
        static_cast<int64_t>(op.duration_ns), static_cast<int64_t>(op.min_duration_ns),
        Before(end_ns, op.first_start_ns), Before(end_ns, op.last_end_ns), static_cast<int64_t>(op.gaps),
        static_cast<int64_t>(op.gap_ns), static_cast<int64_t>(op.max_gap_ns), static_cast<int64_t>(op.blocking_gaps),
        static_cast<int64_t>(op.blocking_gap_ns)}) {
    message->add_ops(number);
  }
}

// False: a number is out of its range.
bool ReadOp(Numbers numbers, uint64_t end_ns, OpFold& op) {
  numbers.Read(op.group, 0, kMaxGroupIndex);
  numbers.ReadOp(op.op);
  numbers.Read(op.peer, -1);
  numbers.Read(op.size_log2, 0, 63);
  numbers.Read(op.count);
  numbers.Read(op.bytes);
  numbers.Read(op.duration_ns);
  numbers.Read(op.min_duration_ns);
  numbers.ReadStamp(op.first_start_ns, end_ns);
  numbers.ReadStamp(op.last_end_ns, end_ns);
  numbers.Read(op.gaps);
  numbers.Read(op.gap_ns);
  numbers.Read(op.max_gap_ns);
  numbers.Read(op.blocking_gaps);
  numbers.Read(op.blocking_gap_ns);
  return numbers.ok();
}

void FillSample(const OpSample& sample, uint64_t end_ns, v1::RankStep* message) {
  for (int64_t number :
       {static_cast<int64_t>(sample.group), static_cast<int64_t>(sample.op), static_cast<int64_t>(sample.number),
        Before(end_ns, sample.start_ns), Before(end_ns, sample.end_ns)}) {
    message->add_samples(number);
  }
}

bool ReadSample(Numbers numbers, uint64_t end_ns, OpSample& sample) {
  numbers.Read(sample.group, 0, kMaxGroupIndex);
  numbers.ReadOp(sample.op);
  numbers.Read(sample.number);
  numbers.ReadStamp(sample.start_ns, end_ns);
  numbers.ReadStamp(sample.end_ns, end_ns);
  return numbers.ok();
}

// Names of marks are any bytes, strings of messages are UTF-8: as in the files, what is none becomes U+FFFD.
std::string Text(const std::string& name) {
  std::string text = ValidUtf8(name);
  CutUtf8(&text, kMaxNameBytes);
  return text;
}

}  // namespace

void FillFold(int rank, const StepFold& fold, v1::RankStep* message) {
  message->set_rank(rank);
  message->set_step(fold.step);
  message->set_end_ns(fold.end_ns);
  message->set_length_ns(fold.end_ns - fold.start_ns);
  message->set_period_ns(fold.period_ns());
  for (const auto& field : kTimes) (message->*field.set)(fold.*field.in_fold);
  for (const auto& field : kCounts) (message->*field.set)(fold.*field.in_fold);
  message->set_host_only(fold.host_only);
  message->set_work(fold.work);
  message->mutable_ops()->Reserve(static_cast<int>(fold.ops.size()) * kOpNumbers);
  for (const OpFold& op : fold.ops) FillOp(op, fold.end_ns, message);
  for (const OpSample& sample : fold.samples) FillSample(sample, fold.end_ns, message);
}

absl::StatusOr<StepFold> ReadFold(const v1::RankStep& message) {
  if (absl::Status checked = CheckStep(message); !checked.ok()) return checked;
  StepFold fold;
  fold.step = message.step();
  fold.start_ns = message.end_ns() - message.length_ns();
  fold.end_ns = message.end_ns();
  fold.previous_end_ns = message.period_ns() == 0 ? 0 : message.end_ns() - message.period_ns();
  for (const auto& field : kTimes) fold.*field.in_fold = (message.*field.get)();
  for (const auto& field : kCounts) fold.*field.in_fold = (message.*field.get)();
  fold.host_only = message.host_only();
  if (message.work() >= 0 && std::isfinite(message.work())) {
    fold.work = message.work();
  } else {
    fold.odd_works = fold.works = std::max(1U, fold.works);
  }
  // Folds wait by the hundred thousand: they take no more than what they hold.
  fold.ops.resize(static_cast<size_t>(message.ops_size() / kOpNumbers));
  const int64_t* numbers = message.ops().data();
  for (OpFold& op : fold.ops) {
    if (!ReadOp(Numbers(numbers), fold.end_ns, op)) return Bad(message, "an operation with a number out of range");
    numbers += kOpNumbers;
  }
  fold.samples.resize(static_cast<size_t>(message.samples_size() / kSampleNumbers));
  numbers = message.samples().data();
  for (OpSample& sample : fold.samples) {
    if (!ReadSample(Numbers(numbers), fold.end_ns, sample)) return Bad(message, "a sample with a number out of range");
    numbers += kSampleNumbers;
  }
  return fold;
}

void FillGroup(const GroupInfo& group, v1::Group* message) {
  message->set_name(Text(group.name));
  message->set_label(Text(group.label));
  // A group in more pieces than any layout makes is one whose members are unknown.
  if (group.members.size() > kMaxRuns) return;
  for (const MemberRun& run : group.members) {
    message->add_runs(run.first);
    message->add_runs(run.stride);
    message->add_runs(run.count);
  }
}

absl::StatusOr<GroupInfo> ReadGroup(const v1::Group& message) {
  for (const std::string* name : {&message.name(), &message.label()}) {
    if (name->size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: a name of ", name->size(), " bytes, the limit is ", kMaxNameBytes));
    }
  }
  if (message.runs_size() % kRunNumbers != 0 || message.runs_size() > kMaxRuns * kRunNumbers) {
    return absl::InvalidArgumentError(absl::StrCat("group '", message.name(), "': ", message.runs_size(),
                                                   " numbers of members, not three for each of up to ", kMaxRuns,
                                                   " runs"));
  }
  GroupInfo group;
  group.name = message.name();
  group.label = message.label();
  for (int i = 0; i < message.runs_size(); i += kRunNumbers) {
    const MemberRun run = {message.runs(i), message.runs(i + 1), message.runs(i + 2)};
    if (run.count < 0) {
      return absl::InvalidArgumentError(absl::StrCat("group '", message.name(), "': a run of ", run.count, " members"));
    }
    group.members.push_back(run);
  }
  return group;
}

}  // namespace taskd::proto
