#include "agent/route/topology_formats/slurm.h"

// Slurm's topology.conf of the tree plugin.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "agent/route/topology_formats/reading.h"
#include "common/hostlist.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr size_t kNameBytes = 128;  // while a list is expanded

// One line without its comment, and what it was made of.
struct SlurmLine {
  std::string name;
  std::string nodes;
  std::string switches;
  std::string speed;
};

absl::StatusOr<SlurmLine> ParseLine(std::string_view text) {
  SlurmLine line;
  while (true) {
    text = Trim(text);
    if (text.empty()) break;
    const std::string_view word = text.substr(0, text.find_first_of(" \t"));
    text.remove_prefix(word.size());
    const size_t equals = word.find('=');
    const std::string key = absl::AsciiStrToLower(std::string(word.substr(0, equals)));
    std::string* value = key == "switchname"  ? &line.name
                         : key == "nodes"     ? &line.nodes
                         : key == "switches"  ? &line.switches
                         : key == "linkspeed" ? &line.speed
                                              : nullptr;
    if (value == nullptr || equals == std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{} is not SwitchName=, Nodes=, Switches= or LinkSpeed=", Quoted(word)));
    }
    if (equals + 1 == word.size()) return absl::InvalidArgumentError(fmt::format("{} has no value", Quoted(word)));
    if (!value->empty()) return absl::InvalidArgumentError(fmt::format("{} is the second of its key", Quoted(word)));
    *value = word.substr(equals + 1);
  }
  if (line.name.empty()) return absl::InvalidArgumentError("no SwitchName=");
  if (!line.nodes.empty() && !line.switches.empty()) {
    return absl::InvalidArgumentError(fmt::format("switch {} has both Nodes and Switches", Quoted(line.name)));
  }
  if (line.nodes.empty() && line.switches.empty()) {
    return absl::InvalidArgumentError(fmt::format("switch {} has neither Nodes nor Switches", Quoted(line.name)));
  }
  return line;
}

class SlurmReader {
 public:
  explicit SlurmReader(InputBudget& budget) : budget_(budget), builder_(budget) {}

  absl::Status Add(const SlurmLine& line) {
    const int32_t id = builder_.Switch(line.name);
    if (absl::Status status = builder_.Define(id); !status.ok()) return status;
    std::vector<std::string> names;
    const std::string& list = line.nodes.empty() ? line.switches : line.nodes;
    const absl::Status expanded = ExpandHostlist(list, budget_.left() / kNameBytes, names);
    if (absl::IsResourceExhausted(expanded)) budget_.Take(budget_.left() + 1);
    if (!expanded.ok()) return budget_.status().ok() ? expanded : budget_.status();
    for (const std::string& name : names) {
      absl::Status status =
          line.nodes.empty() ? builder_.SetParent(builder_.Switch(name), id) : builder_.AddNode(name, "", {id});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<Topology> Finish() { return builder_.Finish(true); }

 private:
  InputBudget& budget_;
  TopologyBuilder builder_;
};

}  // namespace

absl::StatusOr<Topology> ReadSlurm(std::string_view text, InputBudget& budget) {
  SlurmReader reader(budget);
  std::string_view piece;
  std::string joined;  // a line goes on behind a backslash
  size_t begin = 1;
  for (size_t number = 1; NextLine(text, piece); ++number) {
    if (joined.empty()) begin = number;
    piece = Trim(piece.substr(0, piece.find('#')));
    const bool goes_on = !piece.empty() && piece.back() == '\\';
    if (goes_on) piece.remove_suffix(1);
    joined += piece;
    joined += ' ';
    if (goes_on && !text.empty()) continue;
    const std::string line = std::exchange(joined, {});
    if (Trim(line).empty()) continue;
    const std::string context = fmt::format("line {}", begin);
    absl::StatusOr<SlurmLine> parsed = ParseLine(line);
    if (!parsed.ok()) return At(context, parsed.status());
    if (absl::Status status = reader.Add(*parsed); !status.ok()) return At(context, status);
  }
  return reader.Finish();
}

}  // namespace taskd::route
