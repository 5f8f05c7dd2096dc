#include "agent/rdma/nccl_log.h"

#include <algorithm>
#include <utility>

namespace taskd::rdma {
namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kLongestText = 4096;
constexpr size_t kLongestName = 64;

enum class Way { kNone, kGdrdma, kRdma, kSocket, kIntra };

// Without terminal sequences: ESC [ parameters letter.
std::string WithoutColours(std::string_view line) {
  std::string clean;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      clean += line[i];
    } else if (i + 1 < line.size() && line[i + 1] == '[') {
      for (i += 2; i < line.size() && (line[i] < '@' || line[i] > '~');) ++i;
    }
  }
  return clean;
}

// `text` begins behind "via ".
Way WayOf(std::string_view text) {
  if (text.starts_with("P2P/") || text.starts_with("SHM/")) return Way::kIntra;
  if (!text.starts_with("NET/")) return Way::kNone;
  text.remove_prefix(4);
  // Names may have a blank: "AWS Libfabric".
  const size_t name = text.find('/');
  if (name == text.npos || name == 0 || name > kLongestName) return Way::kNone;
  if (text.substr(0, name) == "Socket") return Way::kSocket;
  text.remove_prefix(name + 1);
  const size_t device = std::min(text.find_first_of(" \t/("), text.size());
  if (device == 0) return Way::kNone;
  text.remove_prefix(device);
  if (text.starts_with("(")) text.remove_prefix(std::min(text.find(')'), text.size() - 1) + 1);
  return text.starts_with("/GDRDMA") ? Way::kGdrdma : Way::kRdma;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// f(way) for each "Channel <number> … via X" of a line.
template <typename F>
void ForEachChannel(std::string_view line, F&& f) {
  constexpr std::string_view kChannel = "Channel ";
  constexpr std::string_view kVia = " via ";
  size_t at = line.find(kChannel);
  while (at != line.npos) {
    const size_t next = line.find(kChannel, at + kChannel.size());
    const std::string_view one =
        line.substr(at + kChannel.size(), next == line.npos ? next : next - at - kChannel.size());
    at = next;
    const size_t number = one.find_first_not_of(' ');
    if (number == one.npos || !IsDigit(one[number])) continue;
    const size_t via = one.find(kVia);
    if (via != one.npos) f(WayOf(one.substr(via + kVia.size())));
  }
}

}  // namespace

std::string_view NcclLogReport::verdict() const {
  if (socket > 0) return gdrdma + rdma > 0 ? "mixed" : "socket";
  if (rdma > 0) return "rdma";
  return gdrdma > 0 ? "gdrdma" : "unknown";
}

void NcclLogClassifier::Add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    Append(bytes.substr(0, end));
    if (end == bytes.npos) return;
    EndLine();
    bytes.remove_prefix(end + 1);
  }
}

void NcclLogClassifier::Append(std::string_view part) {
  line_ += part.substr(0, kLongestLine - std::min(kLongestLine, line_.size()));
}

void NcclLogClassifier::EndLine() {
  if (line_.find("via") != line_.npos) {
    std::string line = WithoutColours(line_);
    if (line.ends_with('\r')) line.pop_back();
    ForEachChannel(line, [&](Way way) {
      if (way == Way::kGdrdma) ++report_.gdrdma;
      if (way == Way::kRdma) ++report_.rdma;
      if (way == Way::kSocket) ++report_.socket;
      if (way == Way::kIntra) ++report_.intra;
      if ((way == Way::kRdma || way == Way::kSocket) && report_.first_offending_line == 0) {
        report_.first_offending_line = line_number_;
        report_.first_offending_text = line.substr(0, kLongestText);
      }
    });
  }
  line_.clear();
  ++line_number_;
}

NcclLogReport NcclLogClassifier::Finish() {
  EndLine();
  return std::move(report_);
}

}  // namespace taskd::rdma
