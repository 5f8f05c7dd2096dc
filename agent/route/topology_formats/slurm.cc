#include "agent/route/topology_formats/slurm.h"

// A block is a leaf switch. Block sizes above the base make levels: so many neighbouring blocks are one of the next level.
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "common/hostlist.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr size_t kNameBytes = 128;  // while a list is expanded

// One line without its comment, and what it was made of.
struct SlurmLine {
  std::string name;
  std::string block;
  std::string nodes;
  std::string switches;
  std::string speed;
  std::string sizes;  // of blocks, of the whole topology
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
    std::string* value = key == "switchname"   ? &line.name
                         : key == "blockname"  ? &line.block
                         : key == "nodes"      ? &line.nodes
                         : key == "switches"   ? &line.switches
                         : key == "linkspeed"  ? &line.speed
                         : key == "blocksizes" ? &line.sizes
                                               : nullptr;
    if (value == nullptr || equals == std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{} is not SwitchName=, BlockName=, Nodes=, Switches=, LinkSpeed= or BlockSizes=", Quoted(word)));
    }
    if (equals + 1 == word.size()) return absl::InvalidArgumentError(fmt::format("{} has no value", Quoted(word)));
    if (!value->empty()) return absl::InvalidArgumentError(fmt::format("{} is the second of its key", Quoted(word)));
    *value = word.substr(equals + 1);
  }
  if (!line.sizes.empty() && line.name.empty() && line.block.empty()) return line;
  if (!line.block.empty()) {
    if (line.name.empty() && line.switches.empty() && !line.nodes.empty()) return line;
    return absl::InvalidArgumentError(fmt::format("block {} has Nodes, and nothing else", Quoted(line.block)));
  }
  if (line.name.empty()) return absl::InvalidArgumentError("no SwitchName= and no BlockName=");
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
    if (!line.block.empty()) return AddBlock(line.block, line.nodes);
    if (!line.sizes.empty()) return AddSizes(line.sizes);
    return line.nodes.empty() ? AddSwitches(line.name, line.switches) : AddNodes(line.name, line.nodes);
  }
  absl::Status AddNodes(std::string_view name, std::string_view list) {
    const int32_t id = builder_.Switch(name);
    return ForEach(name, id, list, [&](const std::string& node) { return builder_.AddNode(node, "", {id}); });
  }
  absl::Status AddSwitches(std::string_view name, std::string_view list) {
    const int32_t id = builder_.Switch(name);
    return ForEach(name, id, list,
                   [&](const std::string& child) { return builder_.SetParent(builder_.Switch(child), id); });
  }
  absl::Status AddBlock(std::string_view name, std::string_view list) {
    blocks_.push_back(builder_.Switch(name));
    return AddNodes(name, list);
  }
  // "8,16,32": the base size, and sizes of which each is the base size times a power of two.
  absl::Status AddSizes(std::string_view list) {
    std::string_view rest = list;
    while (!rest.empty()) {
      const std::string_view text = Trim(rest.substr(0, rest.find(',')));
      rest.remove_prefix(std::min(rest.find(','), rest.size() - 1) + 1);
      uint64_t size = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
      const bool is_number = error == std::errc() && end == text.data() + text.size() && size > 0 && size <= UINT32_MAX;
      if (!is_number) return absl::InvalidArgumentError(fmt::format("block size {} is no number", Quoted(text)));
      sizes_.push_back(size);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Topology> Finish() {
    if (absl::Status status = AddLevels(); !status.ok()) return status;
    return builder_.Finish(true);
  }

 private:
  // Defines the switch, and calls f(name) for each name of the list.
  template <typename F>
  absl::Status ForEach(std::string_view name, int32_t id, std::string_view list, F&& f) {
    if (absl::Status status = builder_.Define(id); !status.ok()) return status;
    std::vector<std::string> names;
    const absl::Status expanded = ExpandHostlist(list, budget_.left() / kNameBytes, names);
    if (absl::IsResourceExhausted(expanded)) budget_.Take(budget_.left() + 1);
    if (!expanded.ok())
      return budget_.status().ok() ? At(fmt::format("switch {}", Quoted(name)), expanded) : budget_.status();
    for (const std::string& one : names) {
      if (absl::Status status = f(one); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AddLevels() {
    std::vector<int32_t> level = blocks_;
    std::sort(sizes_.begin(), sizes_.end());
    for (size_t i = 1; i < sizes_.size() && level.size() > 1; ++i) {
      const uint64_t of_next = sizes_[i] / sizes_[i - 1];
      if (of_next < 2) continue;
      std::vector<int32_t> next;
      for (size_t block = 0; block < level.size(); ++block) {
        if (block % of_next == 0) {
          next.push_back(builder_.Switch(fmt::format("blocks of {}, number {}", sizes_[i], next.size()), 1));
          if (absl::Status status = builder_.Define(next.back()); !status.ok()) return status;
        }
        if (absl::Status status = builder_.SetParent(level[block], next.back()); !status.ok()) return status;
      }
      level = std::move(next);
    }
    return absl::OkStatus();
  }

  InputBudget& budget_;
  TopologyBuilder builder_;
  std::vector<int32_t> blocks_;  // in their order
  std::vector<uint64_t> sizes_;
};

const Json& Member(const Json& object, const char* key) {
  static const Json none;
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member == object.end() ? none : *member;
}

// One list of a topology: `name_key` names each of its objects.
template <typename F>
absl::Status ForEachObject(const Json& list, const char* name_key, F&& f) {
  for (const Json& one : list) {
    absl::StatusOr<std::string_view> name = StringMember(one, name_key, name_key);
    if (!name.ok()) return name.status();
    if (absl::Status status = f(std::string(*name), one); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AddYamlSwitch(const std::string& name, const Json& one, SlurmReader& reader) {
  const Json &nodes = Member(one, "nodes"), &children = Member(one, "children");
  if (nodes.is_string() == children.is_string()) {
    return absl::InvalidArgumentError(fmt::format("switch {} has nodes or children, one of them", Quoted(name)));
  }
  return nodes.is_string() ? reader.AddNodes(name, nodes.get<std::string>())
                           : reader.AddSwitches(name, children.get<std::string>());
}

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

absl::StatusOr<Topology> ReadSlurmYaml(const Json& documents, InputBudget& budget) {
  const Json* chosen = nullptr;
  for (const Json& document : documents) {
    for (const Json& topology : document) {
      if (!Member(topology, "tree").is_object() && !Member(topology, "block").is_object()) continue;
      if (chosen == nullptr || Member(topology, "cluster_default") == "true") chosen = &topology;
    }
  }
  if (chosen == nullptr) return absl::InvalidArgumentError("no topology with tree or block in it");
  SlurmReader reader(budget);
  absl::Status status =
      ForEachObject(Member(Member(*chosen, "tree"), "switches"), "switch",
                    [&](const std::string& name, const Json& one) { return AddYamlSwitch(name, one, reader); });
  const Json& block = Member(*chosen, "block");
  for (const Json& size : Member(block, "block_sizes")) {
    if (status.ok()) status = reader.AddSizes(size.is_string() ? size.get<std::string>() : "");
  }
  if (status.ok()) {
    status =
        ForEachObject(Member(block, "blocks"), "block", [&](const std::string& name, const Json& one) -> absl::Status {
          absl::StatusOr<std::string_view> nodes = StringMember(one, "nodes", name);
          return nodes.ok() ? reader.AddBlock(name, *nodes) : nodes.status();
        });
  }
  if (!status.ok()) return status;
  return reader.Finish();
}

}  // namespace taskd::route
