#include "proto/fold_messages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "proto/packed_numbers.h"
#include "proto/wire_reader.h"

namespace taskd::proto {
namespace {

constexpr size_t kOpNumbers = 15;
constexpr size_t kSampleNumbers = 5;
constexpr int kRunNumbers = 3;
constexpr int kMaxRuns = 1024;
constexpr size_t kMaxNameBytes = 512;
constexpr uint32_t kMaxGroupIndex = 4095;

int64_t Before(uint64_t end_ns, uint64_t stamp_ns) { return static_cast<int64_t>(end_ns - stamp_ns); }

// Reads one number after the other and remembers whether all were in their ranges.
class Numbers {
 public:
  explicit Numbers(const uint64_t* next) : next_(next) {}

  template <typename Number>
  void Read(Number& number, int64_t min = 0, int64_t max = std::numeric_limits<int64_t>::max()) {
    const int64_t value = ZigZag(*next_++);
    if constexpr (sizeof(Number) < 8) max = std::min<int64_t>(max, std::numeric_limits<Number>::max());
    const auto least = static_cast<uint64_t>(min);
    ok_ &= static_cast<uint64_t>(value) - least <= static_cast<uint64_t>(max) - least;
    number = static_cast<Number>(value);
  }
  void ReadOp(CommOp& op) {
    uint8_t number = 0;
    Read(number, 0, kCommOps - 1);
    op = static_cast<CommOp>(number);
  }
  void ReadStamp(uint64_t& stamp_ns, uint64_t end_ns) { stamp_ns = end_ns - static_cast<uint64_t>(ZigZag(*next_++)); }
  bool ok() const { return ok_; }

 private:
  const uint64_t* next_;
  bool ok_ = true;
};

// A number that means the same in a fold and in its message.
template <typename Number>
struct Field {
  uint32_t number;
  Number StepFold::*in_fold;
  void (v1::RankStep::*set)(Number);
};
constexpr Field<uint64_t> kTimes[] = {
    {v1::RankStep::kForwardNsFieldNumber, &StepFold::forward_ns, &v1::RankStep::set_forward_ns},
    {v1::RankStep::kDataloaderNsFieldNumber, &StepFold::dataloader_ns, &v1::RankStep::set_dataloader_ns},
    {v1::RankStep::kCheckpointNsFieldNumber, &StepFold::checkpoint_ns, &v1::RankStep::set_checkpoint_ns},
    {v1::RankStep::kCoveredNsFieldNumber, &StepFold::covered_ns, &v1::RankStep::set_covered_ns},
    {v1::RankStep::kBlockingCoveredNsFieldNumber, &StepFold::blocking_covered_ns,
     &v1::RankStep::set_blocking_covered_ns},
    {v1::RankStep::kCoveredBeforeLastNsFieldNumber, &StepFold::covered_before_last_ns,
     &v1::RankStep::set_covered_before_last_ns},
    {v1::RankStep::kHeadNsFieldNumber, &StepFold::head_ns, &v1::RankStep::set_head_ns},
    {v1::RankStep::kLeadNsFieldNumber, &StepFold::lead_ns, &v1::RankStep::set_lead_ns},
    {v1::RankStep::kTailNsFieldNumber, &StepFold::tail_ns, &v1::RankStep::set_tail_ns},
    {v1::RankStep::kForwardOwnNsFieldNumber, &StepFold::forward_own_ns, &v1::RankStep::set_forward_own_ns},
    {v1::RankStep::kDataloaderOwnNsFieldNumber, &StepFold::dataloader_own_ns, &v1::RankStep::set_dataloader_own_ns},
    {v1::RankStep::kCheckpointOwnNsFieldNumber, &StepFold::checkpoint_own_ns, &v1::RankStep::set_checkpoint_own_ns},
    {v1::RankStep::kIssueP10NsFieldNumber, &StepFold::issue_p10_ns, &v1::RankStep::set_issue_p10_ns},
    {v1::RankStep::kIssueP50NsFieldNumber, &StepFold::issue_p50_ns, &v1::RankStep::set_issue_p50_ns},
    {v1::RankStep::kCpuWaitNsFieldNumber, &StepFold::cpu_wait_ns, &v1::RankStep::set_cpu_wait_ns},
};
constexpr Field<uint32_t> kCounts[] = {
    {v1::RankStep::kProcessIdFieldNumber, &StepFold::process_id, &v1::RankStep::set_process_id},
    {v1::RankStep::kForwardsFieldNumber, &StepFold::forwards, &v1::RankStep::set_forwards},
    {v1::RankStep::kDataloadersFieldNumber, &StepFold::dataloaders, &v1::RankStep::set_dataloaders},
    {v1::RankStep::kCheckpointsFieldNumber, &StepFold::checkpoints, &v1::RankStep::set_checkpoints},
    {v1::RankStep::kIssuesFieldNumber, &StepFold::issues, &v1::RankStep::set_issues},
    {v1::RankStep::kBrokenFieldNumber, &StepFold::broken, &v1::RankStep::set_broken},
    {v1::RankStep::kWorksFieldNumber, &StepFold::works, &v1::RankStep::set_works},
    {v1::RankStep::kOddWorksFieldNumber, &StepFold::odd_works, &v1::RankStep::set_odd_works},
};

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

// Where the numbers that mean the same go, by field.
struct Place {
  uint64_t StepFold::*time = nullptr;
  uint32_t StepFold::*count = nullptr;
};
constexpr uint32_t kPlaces = v1::RankStep::kCpuWaitNsFieldNumber + 1;  // the highest field
constexpr std::array<Place, kPlaces> MakePlaces() {
  std::array<Place, kPlaces> places;
  for (const auto& field : kTimes) places.at(field.number).time = field.in_fold;
  for (const auto& field : kCounts) places.at(field.number).count = field.in_fold;
  return places;
}
constexpr std::array<Place, kPlaces> kPlace = MakePlaces();

// The numbers of operations or samples, of which there may be at most so many.
template <size_t kMost>
class NumberList {
 public:
  void Add(uint64_t number) {
    if (size_ < kMost) numbers_[size_] = number;
    ++size_;
  }
  // False: the wire is broken.
  bool AddPacked(std::string_view wire) {
    const std::optional<size_t> size = ReadPacked(wire, numbers_.data(), size_, kMost);
    size_ = size.value_or(size_);
    return size.has_value();
  }
  size_t size() const { return size_; }
  const uint64_t* data() const { return numbers_.data(); }

 private:
  std::array<uint64_t, kMost> numbers_;
  size_t size_ = 0;
};

// One v1::RankStep, in two passes: stamps are told by their distance from the step's end, which may come later.
class FoldReader {
 public:
  explicit FoldReader(std::string_view wire) : wire_(wire) { fold_.host_only = false; }  // as where nothing is said

  absl::StatusOr<RankFold> Read() {
    while (wire_.Next()) {
      if (wire_.type() == WireReader::Type::kVarint) {
        TakeNumber(wire_.field(), wire_.number());
      } else if (wire_.Is(v1::RankStep::kWorkFieldNumber, WireReader::Type::kFixed64)) {
        const uint64_t bits = wire_.number();
        std::memcpy(&fold_.work, &bits, sizeof bits);
      } else if (wire_.Is(v1::RankStep::kOpsFieldNumber, WireReader::Type::kBytes)) {
        if (!ops_.AddPacked(wire_.bytes())) return Broken();
      } else if (wire_.Is(v1::RankStep::kSamplesFieldNumber, WireReader::Type::kBytes)) {
        if (!samples_.AddPacked(wire_.bytes())) return Broken();
      }
    }
    if (wire_.broken()) return Broken();
    if (absl::Status checked = Check(); !checked.ok()) return checked;
    fold_.start_ns = fold_.end_ns - length_ns_;
    fold_.previous_end_ns = period_ns_ == 0 ? 0 : fold_.end_ns - period_ns_;
    if (!(fold_.work >= 0 && std::isfinite(fold_.work))) {
      fold_.work = 0;
      fold_.odd_works = fold_.works = std::max(1U, fold_.works);
    }
    // Folds wait by the hundred thousand: they take no more than what they hold.
    fold_.ops.reserve(ops_.size() / kOpNumbers);
    for (size_t i = 0; i < ops_.size(); i += kOpNumbers) {
      OpFold op;
      if (!ReadOp(Numbers(ops_.data() + i), fold_.end_ns, op)) return Bad("an operation with a number out of range");
      fold_.ops.push_back(op);
    }
    fold_.samples.reserve(samples_.size() / kSampleNumbers);
    for (size_t i = 0; i < samples_.size(); i += kSampleNumbers) {
      OpSample sample;
      if (!ReadSample(Numbers(samples_.data() + i), fold_.end_ns, sample)) {
        return Bad("a sample with a number out of range");
      }
      fold_.samples.push_back(sample);
    }
    return std::move(read_);
  }

 private:
  // As Protobuf takes it: of too long a number the low bits.
  void TakeNumber(uint32_t field, uint64_t number) {
    switch (field) {
      case v1::RankStep::kRankFieldNumber:
        read_.rank = static_cast<int>(static_cast<uint32_t>(number));
        return;
      case v1::RankStep::kStepFieldNumber:
        fold_.step = static_cast<int64_t>(number);
        return;
      case v1::RankStep::kEndNsFieldNumber:
        fold_.end_ns = number;
        return;
      case v1::RankStep::kLengthNsFieldNumber:
        length_ns_ = number;
        return;
      case v1::RankStep::kPeriodNsFieldNumber:
        period_ns_ = number;
        return;
      case v1::RankStep::kHostOnlyFieldNumber:
        fold_.host_only = number != 0;
        return;
      case v1::RankStep::kNumberFieldNumber:
        read_.number = number;
        return;
      case v1::RankStep::kOpsFieldNumber:
        ops_.Add(number);
        return;
      case v1::RankStep::kSamplesFieldNumber:
        samples_.Add(number);
        return;
      default:
        break;
    }
    if (field >= kPlaces) return;
    const Place& place = kPlace[field];
    if (place.time != nullptr) fold_.*place.time = number;
    if (place.count != nullptr) fold_.*place.count = static_cast<uint32_t>(number);
  }

  absl::Status Check() const {
    if (fold_.step < 0 || fold_.step > StepFold::kMaxStep) return Bad("no step has that number");
    if (ops_.size() % kOpNumbers != 0) return Bad("an incomplete operation");
    if (samples_.size() % kSampleNumbers != 0) return Bad("an incomplete sample");
    if (ops_.size() > StepFold::kMaxOps * kOpNumbers) {
      return Bad(absl::StrCat("more than ", StepFold::kMaxOps, " operations"));
    }
    if (samples_.size() > StepFold::kMaxSamples * kSampleNumbers) {
      return Bad(absl::StrCat("more than ", StepFold::kMaxSamples, " samples"));
    }
    if (length_ns_ > fold_.end_ns || period_ns_ > fold_.end_ns) return Bad("it begins before the clock does");
    return absl::OkStatus();
  }

  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", fold_.step, " of rank ", read_.rank, ": ", std::string(what)));
  }
  static absl::Status Broken() { return absl::DataLossError("no sound taskd.v1.RankStep"); }

  WireReader wire_;
  RankFold read_;
  StepFold& fold_ = read_.fold;
  uint64_t length_ns_ = 0;
  uint64_t period_ns_ = 0;
  NumberList<StepFold::kMaxOps * kOpNumbers> ops_;
  NumberList<StepFold::kMaxSamples * kSampleNumbers> samples_;
};

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
  message->mutable_ops()->Reserve(static_cast<int>(fold.ops.size() * kOpNumbers));
  for (const OpFold& op : fold.ops) FillOp(op, fold.end_ns, message);
  for (const OpSample& sample : fold.samples) FillSample(sample, fold.end_ns, message);
}

absl::StatusOr<RankFold> ReadFold(std::string_view wire) { return FoldReader(wire).Read(); }

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
