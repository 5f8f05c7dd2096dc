#include "agent/simulate/folds_again.h"

#include "google/protobuf/io/coded_stream.h"
#include "taskd/v1/node.pb.h"

namespace taskd::simulate {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr int kVarint = 0, kBytes = 2;  // wire types
// Of the numbers that change, so that they change in place: a varint may be longer than it needs to be. Stamps take all nine.
constexpr size_t kNumberBytes = 8;
constexpr size_t kStampBytes = 9;

constexpr uint32_t Tag(int field, int type) { return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type); }

void AppendVarint(uint64_t number, std::string* wire) {
  char bytes[10];
  const uint8_t* end = CodedOutputStream::WriteVarint64ToArray(number, reinterpret_cast<uint8_t*>(bytes));
  wire->append(bytes, static_cast<size_t>(reinterpret_cast<const char*>(end) - bytes));
}

// A field of a number below 2^(7 * size).
char* WriteField(int field, uint64_t number, size_t size, char* to) {
  to = reinterpret_cast<char*>(CodedOutputStream::WriteTagToArray(Tag(field, kVarint), reinterpret_cast<uint8_t*>(to)));
  for (size_t i = 0; i < size; ++i, number >>= 7) {
    *to++ = static_cast<char>(number | (i + 1 < size ? 0x80 : 0));
  }
  return to;
}

// Returns how many bytes it wrote. Of a field that comes twice the last one counts.
size_t WriteChanging(int64_t step, uint64_t end_ns, uint64_t number, char* to) {
  char* end = WriteField(v1::RankStep::kStepFieldNumber, static_cast<uint64_t>(step), kNumberBytes, to);
  end = WriteField(v1::RankStep::kEndNsFieldNumber, end_ns, kStampBytes, end);
  end = WriteField(v1::RankStep::kNumberFieldNumber, number, kNumberBytes, end);
  return static_cast<size_t>(end - to);
}

}  // namespace

FoldsAgain::FoldsAgain(v1::FoldSet folds) : period_ns_(folds.steps(0).period_ns()) {
  char changing[64];
  const size_t changing_bytes = WriteChanging(0, 0, 0, changing);
  std::string steps;
  for (v1::RankStep& step : *folds.mutable_steps()) {
    Fold fold = {0, step.step(), step.end_ns()};
    step.clear_step();
    step.clear_end_ns();
    step.clear_number();
    AppendVarint(Tag(v1::FoldSet::kStepsFieldNumber, kBytes), &steps);
    AppendVarint(step.ByteSizeLong() + changing_bytes, &steps);
    step.AppendToString(&steps);
    fold.at = steps.size();
    steps.append(changing, changing_bytes);
    folds_.push_back(fold);
  }
  AppendVarint(Tag(v1::NodeMessage::kFoldsFieldNumber, kBytes), &message_);
  AppendVarint(steps.size(), &message_);
  for (Fold& fold : folds_) fold.at += message_.size();
  message_ += steps;
}

void FoldsAgain::MoveOn(int64_t steps, uint64_t ns) {
  for (Fold& fold : folds_) {
    fold.step += steps;
    fold.end_ns += ns;
  }
}

const std::string& FoldsAgain::Message(uint64_t first) {
  for (const Fold& fold : folds_) WriteChanging(fold.step, fold.end_ns, first++, message_.data() + fold.at);
  return message_;
}

}  // namespace taskd::simulate
