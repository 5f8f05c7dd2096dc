#include "agent/route/topology_formats/formats.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "agent/route/topology_formats/csv.h"
#include "agent/route/topology_formats/hypernode.h"
#include "agent/route/topology_formats/ibnetdiscover.h"
#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/rank_table2.h"
#include "agent/route/topology_formats/reading.h"
#include "agent/route/topology_formats/slurm.h"
#include "agent/route/topology_formats/tor_list.h"
#include "agent/route/topology_formats/tor_node_cm.h"
#include "agent/route/topology_formats/yaml_text.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

struct FormatName {
  std::string_view name;
  TopologyFormat format;
};
constexpr FormatName kNames[] = {{"auto", TopologyFormat::kAuto},
                                 {"tor-list", TopologyFormat::kTorList},
                                 {"tor-node-cm", TopologyFormat::kTorNodeCm},
                                 {"slurm", TopologyFormat::kSlurm},
                                 {"ibnetdiscover", TopologyFormat::kIbnetdiscover},
                                 {"hypernode", TopologyFormat::kHypernode},
                                 {"csv", TopologyFormat::kCsv},
                                 {"ranktable2", TopologyFormat::kRankTable2}};

absl::Status NoKnownFormat() {
  return absl::InvalidArgumentError(
      fmt::format("the content is of no known format ({})", kTopologyFormatNames.substr(sizeof("auto, ") - 1)));
}

TopologyFormat JsonFormat(const Json& root) {
  const auto first_has = [](const Json& object, const char* list, const char* key) {
    const auto member = object.is_object() ? object.find(list) : object.end();
    return member != object.end() && member->is_array() && !member->empty() && (*member)[0].is_object() &&
           (*member)[0].contains(key);
  };
  if (root.is_array()) return TopologyFormat::kHypernode;
  if (!root.is_object()) return TopologyFormat::kAuto;
  if (root.contains("rank_list")) return TopologyFormat::kRankTable2;
  if (root.contains("items") || (root.contains("spec") && root.contains("metadata"))) return TopologyFormat::kHypernode;
  if (root.contains("tor_info") || root.contains("data") || first_has(root, "server_list", "server")) {
    return TopologyFormat::kTorNodeCm;
  }
  if (first_has(root, "server_list", "device") || root.contains("status")) return TopologyFormat::kTorList;
  return TopologyFormat::kAuto;
}

TopologyFormat TextFormat(std::string_view text) {
  std::string_view line;
  while (NextLine(text, line)) {
    line = Trim(line);
    if (line.empty() || line[0] == '#') continue;
    const std::string begin = absl::AsciiStrToLower(std::string(line.substr(0, 16)));
    for (const std::string_view key :
         {"switchname=", "blockname=", "blocksizes=", "nodes=", "switches=", "linkspeed="}) {
      if (begin.substr(0, key.size()) == key) return TopologyFormat::kSlurm;
    }
    if (begin.substr(0, 4) == "node") return TopologyFormat::kCsv;
    for (const std::string_view key : {"vendid=", "switch", "ca\t", "ca ", "chassis"}) {
      if (begin.substr(0, key.size()) == key) return TopologyFormat::kIbnetdiscover;
    }
    return TopologyFormat::kAuto;
  }
  return TopologyFormat::kAuto;
}

absl::StatusOr<Topology> ReadYaml(std::string_view text, TopologyFormat format, absl::Span<const std::string> job_names,
                                  InputBudget& budget) {
  absl::StatusOr<Json> documents = ParseYaml(text, budget);
  if (!documents.ok()) return documents.status();
  const bool has_topologies = std::any_of(documents->begin(), documents->end(), [](const Json& document) {
    return document.is_array() && !document.empty() && document[0].contains("topology");
  });
  const bool is_slurm = format == TopologyFormat::kSlurm || (format == TopologyFormat::kAuto && has_topologies);
  if (is_slurm) return ReadSlurmYaml(*documents, budget);
  const bool has_hypernodes = std::any_of(documents->begin(), documents->end(), [](const Json& document) {
    return document.contains("items") || (document.contains("spec") && document.contains("metadata"));
  });
  const bool is_hypernode = format == TopologyFormat::kHypernode || has_hypernodes;
  return is_hypernode ? ReadHypernode(*documents, job_names, budget) : NoKnownFormat();
}

absl::StatusOr<Topology> ReadJson(std::string_view text, TopologyFormat format, absl::Span<const std::string> job_names,
                                  InputBudget& budget) {
  absl::StatusOr<Json> root = ParseJson(text, budget);
  if (!root.ok()) return root.status();
  if (format == TopologyFormat::kAuto) format = JsonFormat(*root);
  if (!root->is_object() && format != TopologyFormat::kHypernode) return NoKnownFormat();
  switch (format) {
    case TopologyFormat::kTorList:
      return ReadTorList(*root, budget);
    case TopologyFormat::kTorNodeCm:
      return ReadTorNodeCm(*root, budget);
    case TopologyFormat::kHypernode:
      return ReadHypernode(*root, job_names, budget);
    case TopologyFormat::kRankTable2:
      return ReadRankTable2(*root, budget);
    default:
      return NoKnownFormat();
  }
}

}  // namespace

std::optional<TopologyFormat> TopologyFormatFromName(std::string_view name) {
  for (const FormatName& known : kNames) {
    if (known.name == name) return known.format;
  }
  return std::nullopt;
}

absl::StatusOr<Topology> ReadTopology(std::string_view content, TopologyFormat format, size_t max_bytes,
                                      absl::Span<const std::string> job_names) {
  InputBudget budget(max_bytes);
  if (!budget.Take(content.size())) return budget.status();
  if (content.substr(0, 3) == "\xEF\xBB\xBF") content.remove_prefix(3);
  if (const size_t nul = content.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(fmt::format("not text: byte {} is 0", nul));
  }
  const std::string_view text = Trim(content);
  if (text.empty()) return absl::InvalidArgumentError("the content is empty");
  const bool is_json = text[0] == '{' || text[0] == '[';
  if (format == TopologyFormat::kAuto && !is_json) {
    if (text[0] == '<') {
      return absl::InvalidArgumentError("XML: NCCL's topology describes the inside of one node, not the network");
    }
    format = LooksLikePackedGzip(text) ? TopologyFormat::kTorList : TextFormat(content);
  }
  const bool may_be_yaml =
      format == TopologyFormat::kAuto || format == TopologyFormat::kSlurm || format == TopologyFormat::kHypernode;
  if (!is_json && may_be_yaml && LooksLikeYaml(content)) return ReadYaml(content, format, job_names, budget);
  switch (format) {
    case TopologyFormat::kSlurm:
      return ReadSlurm(content, budget);
    case TopologyFormat::kIbnetdiscover:
      return ReadIbnetdiscover(content, budget);
    case TopologyFormat::kCsv:
      return ReadCsv(content, budget);
    case TopologyFormat::kAuto:
      return is_json ? ReadJson(text, format, job_names, budget) : NoKnownFormat();
    default:
      break;
  }
  if (format != TopologyFormat::kTorList || is_json) return ReadJson(text, format, job_names, budget);
  absl::StatusOr<std::string> unpacked = UnpackGzip(text, budget);
  if (!unpacked.ok()) return unpacked.status();
  return ReadJson(*unpacked, format, job_names, budget);
}

}  // namespace taskd::route
