#include "readers/ascend_profile.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/utf8.h"
#include "readers/json_stream.h"
#include "readers/number_text.h"

namespace taskd::readers {
namespace {

constexpr size_t kMaxProfiledSteps = 1 << 20;
constexpr size_t kMaxSumsBytes = size_t{64} << 20;
constexpr uint64_t kMaxUnits = uint64_t{1} << 52;
constexpr uint64_t kBeginNs = 1'000'000'000;  // begin of steps without times

// Reads "15.409448" of a larger unit. 0: it is not a number, or too large.
uint64_t ReadUnits(std::string_view text, double of_unit) {
  const double count = ReadNumber(text, -1.0) * of_unit;
  return count > 0 && count < static_cast<double>(kMaxUnits) ? static_cast<uint64_t>(count) : 0;
}

}  // namespace

// Example: {"step12": {"p2p": {…}, "collective": {"hcom_allReduce__844_0_1@13681369207305868844": {
//   "Communication Time Info": {"Start Timestamp(us)": …, "Elapse Time(ms)": …, …},
//   "Communication Bandwidth Info": {"RDMA": {"Transit Size(MB)": …}, …}}}}}
class AscendProfile::OpsHandler : public JsonHandler<OpsHandler> {
 public:
  OpsHandler(JsonStream& stream, AscendProfile& profile) : JsonHandler(stream), profile_(profile) {}

  bool Name(std::string_view name) {
    field_ = Field::kNone;
    switch (depth()) {
      case 1:
        step_ = name.substr(0, kMaxNameBytes);
        break;
      case 3:
        op_ = name.substr(0, kMaxNameBytes);
        start_.reset();
        length_ns_ = 0;
        transport_bytes_.fill(0);
        break;
      case 4:
        part_ = name == "Communication Time Info"        ? Part::kTime
                : name == "Communication Bandwidth Info" ? Part::kBandwidth
                                                         : Part::kNone;
        break;
      case 5:
        if (part_ == Part::kTime && name == "Start Timestamp(us)") field_ = Field::kStart;
        if (part_ == Part::kTime && name == "Elapse Time(ms)") field_ = Field::kElapse;
        if (part_ == Part::kBandwidth) transport_ = name == "RDMA" ? kRdma : name == "SDMA" ? kSdma : kOthers;
        break;
      case 6:
        if (part_ == Part::kBandwidth && name == "Transit Size(MB)") field_ = Field::kSize;
        break;
      default:
        break;
    }
    return true;
  }
  bool Number(std::string_view text) {
    const Field field = std::exchange(field_, Field::kNone);
    if (field == Field::kStart) start_ = ReadStamp(text);
    if (field == Field::kElapse) length_ns_ = ReadUnits(text, 1e6);
    if (field == Field::kSize) transport_bytes_[transport_] += ReadUnits(text, 1e6);
    return true;
  }
  bool Text(std::string_view text) { return Number(text); }  // some releases quote their stamps
  bool End(bool) {
    if (depth() != 3 || !start_ || start_->ns > UINT64_MAX / 4) return true;
    // SDMA sums up HCCS, PCIe and SIO.
    const uint64_t bytes = transport_bytes_[kRdma] + std::max(transport_bytes_[kSdma], transport_bytes_[kOthers]);
    profile_.AddOp(step_, op_, start_->ns, length_ns_, bytes);
    start_.reset();
    return true;
  }

 private:
  enum class Part : uint8_t { kNone, kTime, kBandwidth };
  enum class Field : uint8_t { kNone, kStart, kElapse, kSize };
  enum Transport : uint8_t { kRdma, kSdma, kOthers };

  AscendProfile& profile_;
  std::string step_, op_;
  Part part_ = Part::kNone;
  Field field_ = Field::kNone;
  Transport transport_ = kOthers;
  std::optional<Stamp> start_;
  uint64_t length_ns_ = 0;
  std::array<uint64_t, 3> transport_bytes_{};
};

// Column numbers in a row; -1: missing.
struct AscendProfile::Columns {
  int device = -1, step = -1, computing = -1, exposed = -1, communication = -1, free = -1, bubble = -1;
  int count = 0;

  explicit Columns(std::string_view row) {
    int& index = count;
    for (absl::string_view name : absl::StrSplit(absl::string_view(row.data(), row.size()), ',')) {
      name = absl::StripAsciiWhitespace(name);
      if (name == "Device_id") device = index;
      if (name == "Step") step = index;
      if (name == "Computing") computing = index;
      if (name == "Communication(Not Overlapped)") exposed = index;
      if (name == "Communication") communication = index;
      if (name == "Free") free = index;
      if (name == "Bubble") bubble = index;
      ++index;
    }
  }
  bool are_usable() const { return step >= 0 && computing >= 0 && exposed >= 0 && communication >= 0 && free >= 0; }
};

void AscendProfile::Read(ByteSource& source) {
  std::array<char, 1> first{};
  do {
    if (source.Read(first.data(), 1) == 0) return AddNote(source.damage());
  } while (absl::ascii_isspace(static_cast<unsigned char>(first[0])));
  source.PutBack(std::string(1, first[0]));
  if (first[0] != '{') return ReadSums(source);
  auto stream = std::make_unique<JsonStream>(source);
  OpsHandler handler(*stream, *this);
  AddNote(ReadJson(source, *stream, handler));
}

void AscendProfile::ReadSums(ByteSource& source) {
  std::string text;
  std::array<char, size_t{64} << 10> buffer;
  while (const size_t got = source.Read(buffer.data(), buffer.size())) {
    if (text.size() + got > kMaxSumsBytes) {
      AddNote("step_trace_time.csv has more than 64 MiB");
      break;
    }
    text.append(buffer.data(), got);
  }
  AddNote(source.damage());
  std::string_view rest = text;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  std::optional<Columns> columns;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view row = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!columns) {
      columns = Columns(row);
      if (!columns->are_usable()) return AddNote("step_trace_time.csv lacks columns");
    } else {
      AddSums(*columns, row);
    }
  }
}

void AscendProfile::AddSums(const Columns& columns, std::string_view row) {
  const std::vector<absl::string_view> values = absl::StrSplit(absl::string_view(row.data(), row.size()), ',');
  const auto value = [&values](int column) {
    if (column < 0 || static_cast<size_t>(column) >= values.size()) return std::string_view();
    const absl::string_view text = absl::StripAsciiWhitespace(values[static_cast<size_t>(column)]);
    return std::string_view(text.data(), text.size());
  };
  if (values.size() < static_cast<size_t>(columns.count)) return;  // the row is cut, or empty
  const std::string_view device = value(columns.device);
  if (trace_.records == 0 || device_.empty()) device_ = device.substr(0, kMaxNameBytes);
  ++trace_.records;
  if (device != device_) {
    ++of_other_devices_;
    return;
  }
  Step* step = StepOf(value(columns.step));
  if (step == nullptr) return;
  step->computing_ns = ReadUnits(value(columns.computing), 1e3);
  step->exposed_ns = ReadUnits(value(columns.exposed), 1e3);
  step->communication_ns = ReadUnits(value(columns.communication), 1e3);
  step->free_ns = ReadUnits(value(columns.free), 1e3);
  is_pipeline_ = is_pipeline_ || ReadUnits(value(columns.bubble), 1e3) > 0;
}

// Null: the text has no number, or there are too many steps.
AscendProfile::Step* AscendProfile::StepOf(std::string_view text) {
  if (text.starts_with("step")) text.remove_prefix(4);
  const int64_t number = ReadNumber<int64_t>(text, -1);
  if (number < 0 || number > StepFold::kMaxStep) return nullptr;
  const auto found = steps_.find(number);
  if (found != steps_.end()) return &found->second;
  return steps_.size() < kMaxProfiledSteps ? &steps_[number] : nullptr;
}

void AscendProfile::AddOp(std::string_view step_text, std::string_view name, uint64_t start_ns, uint64_t length_ns,
                          uint64_t bytes) {
  const std::optional<HcomName> read = ReadHcomName(name);
  if (!read) return;  // "Total Op Info"
  ++trace_.records;
  Step* step = StepOf(step_text);
  if (step == nullptr) return;
  if (trace_.events.size() >= max_events_) {
    ++left_out_;
    return;
  }
  TraceEvent event;
  event.kind = TraceEvent::Kind::kDeviceOp;
  event.op = OpOfName(read->op);
  event.bytes = bytes;
  event.start_ns = start_ns;
  event.end_ns = start_ns + length_ns;
  const std::string group_name = ValidUtf8(std::string(read->group));
  auto group = group_index_.find(group_name);
  if (group == group_index_.end() && trace_.groups.size() < kMaxGroups) {
    group = group_index_.emplace(group_name, static_cast<uint32_t>(trace_.groups.size())).first;
    trace_.groups.push_back({.name = group_name, .label = "", .members = {}});
  }
  if (group != group_index_.end()) event.group = group->second;
  trace_.events.push_back(event);
  step->first_start_ns = step->last_end_ns == 0 ? start_ns : std::min(step->first_start_ns, start_ns);
  step->last_end_ns = std::max(step->last_end_ns, event.end_ns);
}

void AscendProfile::AddNote(std::string_view note) {
  if (!note.empty()) trace_.note.append(trace_.note.empty() ? "" : "; ").append(note);
}

TraceRank AscendProfile::Take() {
  const bool has_ops = this->has_ops();
  if (!has_ops) trace_.groups = {{}};  // a group of all ranks
  int64_t before = -2;
  uint64_t end_ns = kBeginNs;
  for (const auto& [number, step] : steps_) {
    TraceEvent event;
    event.step = number;
    const uint64_t period_ns = step.computing_ns + step.exposed_ns + step.free_ns;
    if (has_ops) {
      if (step.last_end_ns == 0 || (before >= 0 && step.last_end_ns <= end_ns)) continue;
      event.start_ns = before == number - 1 ? end_ns : step.first_start_ns;
      event.end_ns = step.last_end_ns;
    } else {
      if (period_ns == 0 || end_ns > UINT64_MAX / 4) continue;
      event.start_ns = end_ns;
      event.end_ns = end_ns + period_ns;
      TraceEvent all = event;
      all.kind = TraceEvent::Kind::kDeviceOp;
      all.start_ns = event.end_ns - std::min(period_ns, step.communication_ns);
      if (step.communication_ns > 0) trace_.events.push_back(all);
    }
    before = number;
    end_ns = event.end_ns;
    trace_.events.push_back(event);
    const uint64_t hidden_ns = step.communication_ns - std::min(step.exposed_ns, step.communication_ns);
    if (step.computing_ns > hidden_ns) trace_.busy_ns[number] = step.computing_ns - hidden_ns;
  }
  if (left_out_ > 0) AddNote(absl::StrCat("of its operations ", left_out_, " were left out: it has too many"));
  if (of_other_devices_ > 0) {
    AddNote(absl::StrCat("of several devices only the first was read: ", of_other_devices_, " rows are of others"));
  }
  return std::move(trace_);
}

}  // namespace taskd::readers
