#include "agent/route/topology_formats/rank_table2.h"

// A rank table of version 2.0 holds its own tree: the domain of every rank on every layer.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "agent/route/job.h"
#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

struct Rank {
  int64_t id;
  int local_id;
  std::string place;
  std::vector<std::pair<int64_t, std::string_view>> layers;
};

absl::StatusOr<Rank> ReadRank(const Json& object, std::string place) {
  Rank rank = {0, 0, std::move(place), {}};
  absl::StatusOr<int64_t> id = IntegerMember(object, "rank_id", rank.place);
  if (!id.ok()) return id.status();
  rank.id = *id;
  absl::StatusOr<int64_t> local_id = IntegerMember(object, "local_id", rank.place);
  if (!local_id.ok()) return local_id.status();
  if (*local_id < 0 || *local_id > INT32_MAX) {
    return absl::InvalidArgumentError(fmt::format("{}: local_id {} is out of range", rank.place, *local_id));
  }
  rank.local_id = static_cast<int>(*local_id);
  absl::StatusOr<const Json*> levels = ListMember(object, "level_list", rank.place);
  if (!levels.ok()) return levels.status();
  for (const Json& level : **levels) {
    absl::StatusOr<int64_t> layer = IntegerMember(level, "net_layer", rank.place);
    if (!layer.ok()) return layer.status();
    absl::StatusOr<std::string_view> domain = StringMember(level, "net_instance_id", rank.place);
    if (!domain.ok()) return domain.status();
    rank.layers.emplace_back(*layer, *domain);
  }
  std::sort(rank.layers.begin(), rank.layers.end());
  const auto same_layer = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(rank.layers.begin(), rank.layers.end(), same_layer) != rank.layers.end()) {
    return absl::InvalidArgumentError(fmt::format("{}: a net_layer comes twice", rank.place));
  }
  if (rank.layers.empty() || rank.layers[0].first != 0) {
    return absl::InvalidArgumentError(fmt::format("{}: level_list has no net_layer 0", rank.place));
  }
  if (rank.layers.back().first > 63) {
    return absl::InvalidArgumentError(
        fmt::format("{}: net_layer {} is above 63", rank.place, rank.layers.back().first));
  }
  return rank;
}

}  // namespace

absl::StatusOr<Topology> ReadRankTable2(const Json& root, InputBudget& budget) {
  if (!root.is_object()) return absl::InvalidArgumentError("ranktable2: not an object");
  if (absl::Status status = CheckCompleted(root); !status.ok()) return status;
  if (const auto version = root.find("version"); version == root.end() || *version != "2.0") {
    return absl::InvalidArgumentError("ranktable2: version is not \"2.0\"");
  }
  absl::StatusOr<const Json*> list = ListMember(root, "rank_list", "ranktable2");
  if (!list.ok()) return list.status();
  std::vector<Rank> ranks;
  for (size_t i = 0; i < (*list)->size(); ++i) {
    absl::StatusOr<Rank> rank = ReadRank((**list)[i], fmt::format("rank_list[{}]", i));
    if (!rank.ok()) return rank.status();
    if (!budget.Take(2 * sizeof(Rank) + rank->place.size() + 2 * sizeof(rank->layers[0]) * rank->layers.size())) {
      return budget.status();
    }
    ranks.push_back(*std::move(rank));
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) { return a.id < b.id; });
  std::vector<int> local_ids;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0 && ranks[i].id == ranks[i - 1].id) {
      return absl::InvalidArgumentError(fmt::format("{}: rank_id {} comes twice", ranks[i].place, ranks[i].id));
    }
    local_ids.push_back(ranks[i].local_id);
  }
  TopologyBuilder builder(budget);
  size_t first = 0;
  for (const size_t length : SplitRuns(local_ids)) {
    const Rank& node = ranks[first];
    for (size_t i = first + 1; i < first + length; ++i) {
      if (ranks[i].layers != node.layers) {
        return absl::InvalidArgumentError(fmt::format(
            "{}: its net_instance_id differ from those of rank {} on the same node", ranks[i].place, node.id));
      }
    }
    first += length;
    int32_t below = -1;
    for (const auto& [layer, domain] : node.layers) {
      const int32_t id = builder.Switch(domain, static_cast<int>(layer));
      if (below < 0) {
        builder.AddNextRank(id);
      } else if (absl::Status status = builder.SetParent(below, id); !status.ok()) {
        return At(node.place, status);
      }
      below = id;
    }
  }
  return builder.Finish(false);
}

}  // namespace taskd::route
