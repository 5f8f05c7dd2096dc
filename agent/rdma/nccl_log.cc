#include "agent/rdma/nccl_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace taskd::rdma {
namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kLongestText = 4096;
constexpr size_t kLongestName = 64;

constexpr size_t kMostProcesses = 1 << 17;

enum class Way { kNone, kGdrdma, kRdma, kIntra };

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

bool HasWord(std::string_view text, std::string_view lower_word) {
  return std::search(text.begin(), text.end(), lower_word.begin(), lower_word.end(), [](char a, char b) {
           return absl::ascii_tolower(static_cast<unsigned char>(a)) == b;
         }) != text.end();
}

// "host:pid" of "… host:pid:tid [0] NCCL INFO …"; empty: it is no such line.
std::string_view ProcessOf(std::string_view line) {
  std::string_view before = line.substr(0, std::min(line.find(" NCCL "), line.size()));
  if (before.size() == line.size()) return "";
  if (before.ends_with(']')) before = before.substr(0, std::min(before.rfind(" ["), before.size()));
  before = before.substr(before.rfind(' ') + 1);
  return before.substr(0, std::min(before.rfind(':'), before.size()));
}

// libfabric's providers that run over TCP or UDP sockets: "tcp;ofi_rxm", "sockets", "udp", "net".
bool IsTcpProvider(std::string_view name) {
  return name.starts_with("tcp") || name.starts_with("sockets") || name.starts_with("udp") || name.starts_with("net");
}

// `text` begins behind "via "; `network`: of a channel between nodes, "IB" or "AWS Libfabric".
Way WayOf(std::string_view text, std::string_view& network) {
  if (text.starts_with("P2P/") || text.starts_with("SHM/")) return Way::kIntra;
  if (!text.starts_with("NET/")) return Way::kNone;
  text.remove_prefix(4);
  // Names may have a blank: "AWS Libfabric".
  const size_t name = text.find('/');
  if (name == text.npos || name == 0 || name > kLongestName) return Way::kNone;
  network = text.substr(0, name);
  text.remove_prefix(name + 1);
  const size_t device = std::min(text.find_first_of(" \t/("), text.size());
  if (device == 0) return Way::kNone;
  text.remove_prefix(device);
  if (text.starts_with("(")) text.remove_prefix(std::min(text.find(')'), text.size() - 1) + 1);
  return text.starts_with("/GDRDMA") ? Way::kGdrdma : Way::kRdma;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// f(way, network) for each "Channel <number> … via X" of a line.
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
    if (via == one.npos) continue;
    std::string_view network;
    const Way way = WayOf(one.substr(via + kVia.size()), network);
    f(way, network);
  }
}

}  // namespace

std::string_view NcclLogReport::verdict() const {
  if (socket > 0) return gdrdma + rdma > 0 ? "mixed" : "socket";
  if (rdma > 0) return "rdma";
  if (gdrdma > 0) return "gdrdma";
  if (intra > 0 || socket_networks == 0) return "unknown";
  return other_networks > 0 ? "mixed" : "socket";
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

// `network` as in "via NET/<network>/…" and "Using network <network>".
bool NcclLogClassifier::IsSocket(std::string_view network, std::string_view line) const {
  if (network == "Socket" || HasWord(network, "tcp")) return true;
  if (!HasWord(network, "libfabric") && !HasWord(network, "ofi")) return false;
  const auto provider = has_tcp_provider_.find(ProcessOf(line));
  return provider != has_tcp_provider_.end() && provider->second;
}

void NcclLogClassifier::Offend(std::string_view line) {
  report_.first_offending_line = line_number_;
  report_.first_offending_text = line.substr(0, kLongestText);
}

// "NET/OFI Selected provider is tcp;ofi_rxm (found 1 nics)", "Using network Socket".
void NcclLogClassifier::ReadNetwork(std::string_view line) {
  constexpr std::string_view kProvider = "rovider is ", kSelected = "NET/OFI Selected ", kUsing = "Using network ";
  if (const size_t provider = line.find(kProvider); provider != line.npos && line.find(kSelected) != line.npos) {
    const std::string_view process = ProcessOf(line);
    const auto known = has_tcp_provider_.find(process);
    const bool is_tcp = IsTcpProvider(line.substr(provider + kProvider.size()));
    if (known != has_tcp_provider_.end()) {
      known->second = is_tcp;
    } else if (has_tcp_provider_.size() < kMostProcesses) {
      has_tcp_provider_.emplace(process.substr(0, kLongestText), is_tcp);
    }
  }
  const size_t use = line.find(kUsing);
  if (use == line.npos) return;
  std::string_view network = line.substr(use + kUsing.size());
  network = network.substr(0, network.find_first_of("\\\"\t"));  // the end of the text where the log is JSON
  while (network.ends_with(' ')) network.remove_suffix(1);
  if (!IsSocket(network, line)) {
    ++report_.other_networks;
    return;
  }
  ++report_.socket_networks;
  if (report_.first_offending_line != 0) return;
  chose_sockets_ = true;
  Offend(line);
}

void NcclLogClassifier::EndLine() {
  if (line_.find("via") != line_.npos || line_.find("NET/OFI Selected ") != line_.npos ||
      line_.find("Using network ") != line_.npos) {
    std::string line = WithoutColours(line_);
    if (line.ends_with('\r')) line.pop_back();
    ReadNetwork(line);
    ForEachChannel(line, [&](Way way, std::string_view network) {
      if (way == Way::kNone) return;
      const bool is_socket = way != Way::kIntra && IsSocket(network, line);
      ++(is_socket             ? report_.socket
         : way == Way::kIntra  ? report_.intra
         : way == Way::kGdrdma ? report_.gdrdma
                               : report_.rdma);
      const bool is_offending = is_socket || way == Way::kRdma;
      if (is_offending && (report_.first_offending_line == 0 || std::exchange(chose_sockets_, false))) Offend(line);
    });
  }
  line_.clear();
  ++line_number_;
}

NcclLogReport NcclLogClassifier::Finish() {
  EndLine();
  // A choice of sockets is no matter where no channel uses them, and where there is no other node.
  if (chose_sockets_ && report_.verdict() != "socket" && report_.verdict() != "mixed") {
    report_.first_offending_line = 0;
    report_.first_offending_text.clear();
  }
  return std::move(report_);
}

}  // namespace taskd::rdma
