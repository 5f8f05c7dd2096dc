#include "agent/route/topology_formats/ibnetdiscover.h"

// The output of ibnetdiscover: blocks of one node each, with the link of every port. A graph, of which we read the tree
// that it is, or only the leaf switches where it is none. Where hosts hang on several leaf switches, each is a rail: a host's
// rails are in the order of its HCAs' names.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr size_t kIndexBytes = 96;  // a node's place by its GUID
constexpr size_t kLinkBytes = 128;  // with the neighbours that it makes

bool StartsWith(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }

// The text between the next two quotes; `text` then begins behind them.
bool TakeQuoted(std::string_view& text, std::string_view& inside) {
  const size_t open = text.find('"');
  if (open == std::string_view::npos) return false;
  const size_t close = text.find('"', open + 1);
  if (close == std::string_view::npos) return false;
  inside = text.substr(open + 1, close - open - 1);
  text.remove_prefix(close + 1);
  return true;
}

// A Ca whose description has no host's name: that of a card's maker ("MT4129 ConnectX7   Mellanox Technologies"), also that
// of the engine which reduces inside of a switch ("Mellanox Technologies Aggregation Node"), or a host that had no name yet.
bool IsNameless(std::string_view host, std::string_view description) {
  const bool is_model =
      host.size() > 2 && StartsWith(host, "MT") &&
      std::all_of(host.begin() + 2, host.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  return is_model || host.empty() || StartsWith(host, "localhost") || StartsWith(host, "(none)") ||
         description.find("Mellanox Technologies") != std::string_view::npos ||
         description.find("Aggregation Node") != std::string_view::npos;
}

// "HCA-2" before "HCA-10".
bool CardBefore(std::string_view a, std::string_view b) {
  const auto number_of = [](std::string_view text) {
    const size_t last = text.find_last_not_of("0123456789");
    return text.substr(last == std::string_view::npos ? 0 : last + 1);
  };
  const std::string_view x = number_of(a), y = number_of(b);
  const std::string_view begin_a = a.substr(0, a.size() - x.size()), begin_b = b.substr(0, b.size() - y.size());
  return std::tuple(begin_a, x.size(), x) < std::tuple(begin_b, y.size(), y);
}

class FabricReader {
 public:
  explicit FabricReader(InputBudget& budget) : budget_(budget) {}

  absl::Status AddLine(std::string_view line) {
    if (line[0] == '[') return AddLink(line);
    for (const std::string_view kind : {"Switch", "Ca", "Rt"}) {
      if (StartsWith(line, kind) && line.size() > kind.size() && absl::ascii_isspace(line[kind.size()])) {
        return AddNode(line, kind);
      }
    }
    // vendid=…, switchguid=…; the headings that -g adds.
    const size_t equals = line.find('=');
    const bool property = equals != std::string_view::npos && equals > 0 &&
                          std::all_of(line.begin(), line.begin() + static_cast<ptrdiff_t>(equals),
                                      [](char c) { return absl::ascii_islower(static_cast<unsigned char>(c)); });
    if (property || StartsWith(line, "Chassis") || StartsWith(line, "Non-Chassis")) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{} is no line of ibnetdiscover", Quoted(line)));
  }

  absl::StatusOr<Topology> Finish();

 private:
  struct Node {
    std::string id;
    std::string host;  // Ca: first word of its description
    std::string card;  // and the rest of it
    bool is_switch = false;
    bool is_host = false;           // Ca, but none that a switch has inside
    bool is_leaf = false;           // switch with a host
    std::vector<int32_t> switches;  // neighbours
  };

  absl::Status AddNode(std::string_view line, std::string_view kind);
  absl::Status AddLink(std::string_view line);
  absl::Status ResolveLinks();
  // The root if the switches without hosts are one tree and every leaf hangs on one of them, else -1.
  int32_t Root() const;
  void SetParents(int32_t root, std::vector<int32_t>& parent) const;

  InputBudget& budget_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<std::string, int32_t> by_id_;
  std::vector<std::pair<int32_t, std::string>> links_;
  int32_t current_ = -1;
};

absl::Status FabricReader::AddNode(std::string_view line, std::string_view kind) {
  std::string_view id;
  std::string_view description;
  if (!TakeQuoted(line, id) || id.empty()) {
    return absl::InvalidArgumentError(fmt::format("{} without a GUID in quotes", kind));
  }
  if (!TakeQuoted(line, description)) {
    return absl::InvalidArgumentError(fmt::format("{} {} without a description in quotes", kind, Quoted(id)));
  }
  current_ = static_cast<int32_t>(nodes_.size());
  if (!by_id_.try_emplace(std::string(id), current_).second) {
    return absl::InvalidArgumentError(
        fmt::format("{} {} is defined twice", kind == "Switch" ? "switch" : kind, Quoted(id)));
  }
  Node node;
  node.id = id;
  node.is_switch = kind == "Switch";
  description = Trim(description);
  node.host = description.substr(0, description.find_first_of(" \t"));
  node.card = Trim(description.substr(node.host.size()));
  node.is_host = kind == "Ca" && !IsNameless(node.host, description);
  budget_.Take(2 * sizeof(Node) + kIndexBytes + 2 * (node.id.size() + description.size()));
  nodes_.push_back(std::move(node));
  return budget_.status();
}

absl::Status FabricReader::AddLink(std::string_view line) {
  std::string_view peer;
  std::string_view rest = line;
  if (current_ < 0) return absl::InvalidArgumentError(fmt::format("{}: a port before any node", Quoted(line)));
  if (!TakeQuoted(rest, peer) || peer.empty() || rest.empty() || rest[0] != '[' ||
      rest.find(']') == std::string_view::npos) {
    return absl::InvalidArgumentError(fmt::format("{} is not [port] \"peer\"[port]", Quoted(line)));
  }
  budget_.Take(kLinkBytes + peer.size());
  links_.emplace_back(current_, peer);
  return budget_.status();
}

absl::Status FabricReader::ResolveLinks() {
  for (const auto& [from, peer] : links_) {
    const auto found = by_id_.find(peer);
    if (found == by_id_.end()) {
      return absl::InvalidArgumentError(fmt::format("{} has a link to {}, which the file does not describe: it is cut",
                                                    Quoted(nodes_[from].id), Quoted(peer)));
    }
    Node& a = nodes_[from];
    Node& b = nodes_[found->second];
    if (a.is_switch) b.switches.push_back(from);
    if (b.is_switch) a.switches.push_back(found->second);
  }
  for (Node& node : nodes_) {
    std::sort(node.switches.begin(), node.switches.end());
    node.switches.erase(std::unique(node.switches.begin(), node.switches.end()), node.switches.end());
    if (!node.is_host) continue;  // nor are cards without a link: their host has others, or is unknown
    for (const int32_t leaf : node.switches) nodes_[leaf].is_leaf = true;
  }
  return absl::OkStatus();
}

int32_t FabricReader::Root() const {
  size_t uppers = 0;
  size_t ends = 0;  // of links between upper switches
  std::vector<int32_t> degree(nodes_.size(), 0);
  std::vector<int32_t> outer;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.is_switch) continue;
    for (const int32_t other : node.switches) {
      if (node.is_leaf && nodes_[other].is_leaf) return -1;
      if (!nodes_[other].is_leaf) ++degree[i];
    }
    if (node.is_leaf) {
      if (degree[i] != 1) return -1;
      continue;
    }
    ++uppers;
    ends += static_cast<size_t>(degree[i]);
    if (degree[i] <= 1) outer.push_back(static_cast<int32_t>(i));
  }
  if (uppers == 0 || ends != 2 * (uppers - 1)) return -1;
  // Take away the outermost switches until the centre is left: one, or two with a link (then the smaller GUID).
  size_t left = uppers;
  std::vector<bool> gone(nodes_.size(), false);
  while (left > 2) {
    if (outer.empty()) return -1;  // a ring somewhere, so not connected either
    std::vector<int32_t> next;
    for (const int32_t at : outer) {
      gone[at] = true;
      --left;
      for (const int32_t other : nodes_[at].switches) {
        if (!nodes_[other].is_leaf && !gone[other] && --degree[other] == 1) next.push_back(other);
      }
    }
    outer = std::move(next);
  }
  int32_t root = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const bool candidate = nodes_[i].is_switch && !nodes_[i].is_leaf && !gone[i];
    if (candidate && (root < 0 || nodes_[i].id < nodes_[root].id)) root = static_cast<int32_t>(i);
  }
  return root;
}

void FabricReader::SetParents(int32_t root, std::vector<int32_t>& parent) const {
  std::vector<int32_t> queue = {root};
  for (size_t i = 0; i < queue.size(); ++i) {
    for (const int32_t other : nodes_[queue[i]].switches) {
      if (other == parent[queue[i]]) continue;
      parent[other] = queue[i];
      queue.push_back(other);
    }
  }
}

absl::StatusOr<Topology> FabricReader::Finish() {
  if (absl::Status status = ResolveLinks(); !status.ok()) return status;
  std::map<std::string_view, std::vector<const Node*>> cards;  // by host
  for (const Node& node : nodes_) {
    if (node.is_host && !node.switches.empty()) cards[node.host].push_back(&node);
  }
  TopologyBuilder builder(budget_);
  bool has_rails = false;
  for (auto& [host, own] : cards) {
    std::stable_sort(own.begin(), own.end(), [](const Node* a, const Node* b) { return CardBefore(a->card, b->card); });
    std::vector<int32_t> leaves;
    for (const Node* card : own) {
      for (const int32_t leaf : card->switches) leaves.push_back(builder.Switch(nodes_[leaf].id));
    }
    // Several cards on one switch are one rail.
    if (std::all_of(leaves.begin(), leaves.end(), [&](int32_t leaf) { return leaf == leaves[0]; })) leaves.resize(1);
    has_rails = has_rails || leaves.size() > 1;
    if (absl::Status status = builder.AddNode(host, "", leaves); !status.ok()) return status;
  }
  std::vector<int32_t> parent(nodes_.size(), -1);
  if (const int32_t root = has_rails ? -1 : Root(); root >= 0) SetParents(root, parent);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].is_switch || parent[i] < 0) continue;
    const absl::Status status = builder.SetParent(builder.Switch(nodes_[i].id), builder.Switch(nodes_[parent[i]].id));
    if (!status.ok()) return status;
  }
  return builder.Finish(false);
}

}  // namespace

absl::StatusOr<Topology> ReadIbnetdiscover(std::string_view text, InputBudget& budget) {
  FabricReader reader(budget);
  std::string_view line;
  for (size_t number = 1; NextLine(text, line); ++number) {
    line = Trim(line);
    if (line.empty() || line[0] == '#') continue;
    if (absl::Status status = reader.AddLine(line); !status.ok()) return At(fmt::format("line {}", number), status);
  }
  return reader.Finish();
}

}  // namespace taskd::route
