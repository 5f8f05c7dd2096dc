#include "agent/ranktable/rank_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/ranktable/errors.h"
#include "agent/ranktable/reader.h"
#include "agent/ranktable/rules.h"
#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

// f(element) at the start of each element of the list `name` in the object that comes next.
template <typename F>
void ForEachIn(JsonReader& reader, std::string_view name, F&& f) {
  if (reader.First() != '{') return;
  reader.ForEachMember([&](std::string_view key) {
    if (key == name && reader.First() == '[') reader.ForEachElement(f);
  });
}

// Addresses are read here and not kept with the table: only who asks for one server needs them.
bool HasAddress(const RankTable& table, const RankTableDevice& device, std::string_view address) {
  IpAddress wanted;
  const bool is_ip = ParseIpAddress(address, wanted);
  std::deque<std::string> decoded;
  JsonReader reader(*table.text, &decoded);
  bool found = false;
  reader.Seek(device.object.begin);
  ForEachIn(reader, "level_list", [&] {
    ForEachIn(reader, "rank_addr_list", [&] {
      if (reader.First() != '{') return;
      reader.ForEachMember([&](std::string_view key) {
        if (key != "addr" || reader.First() != '"') return;
        const std::string_view text = reader.ReadString();
        IpAddress read;
        found = found || text == address ||
                (is_ip && ParseIpAddress(text, read) && read.family == wanted.family &&
                 memcmp(read.bytes, wanted.bytes, sizeof read.bytes) == 0);
      });
    });
  });
  return found;
}

}  // namespace

std::string_view RankTableVersionName(RankTableVersion version) {
  switch (version) {
    case RankTableVersion::kStandard:
      return "Standard";
    case RankTableVersion::k1_0:
      return "1.0";
    case RankTableVersion::k1_1:
      return "1.1";
    case RankTableVersion::k1_2:
      return "1.2";
    case RankTableVersion::k2_0:
      return "2.0";
  }
  return "";
}

absl::StatusOr<ChipRules> ParseChipRules(std::string_view value) {
  if (value == "any") return ChipRules::kAny;
  if (value == "910") return ChipRules::k910;
  if (value == "950") return ChipRules::k950;
  return absl::InvalidArgumentError(fmt::format("--chip: {} is not any, 910 or 950", QuoteValue(value)));
}

absl::StatusOr<RankTableCheck> CheckRankTable(std::string text, ChipRules chip, size_t max_bytes) {
  if (absl::Status valid = CheckJsonText(text, max_bytes); !valid.ok()) return valid;
  RankTableCheck check;
  RankTable table;
  table.text = std::make_unique<const std::string>(std::move(text));
  RankTableFacts facts;
  RankTableErrors errors;
  ReadRankTable(chip, table, facts, errors, check);
  if (facts.readable) ApplyRankTableRules(chip, table, facts, errors);
  check.servers = table.servers.size();
  check.devices = table.devices.size();
  errors.MoveInto(*table.text, check);
  if (check.ok()) check.table = std::move(table);
  return check;
}

absl::StatusOr<size_t> ServerOf(const RankTable& table, std::string_view self) {
  for (const auto name : {&RankTableServer::server_id, &RankTableServer::host_ip, &RankTableServer::container_ip,
                          &RankTableServer::pod_name}) {
    size_t found = table.servers.size();
    for (size_t i = 0; i < table.servers.size() && !self.empty(); ++i) {
      if (table.servers[i].*name != self) continue;
      if (found < table.servers.size()) {
        return absl::InvalidArgumentError(
            fmt::format("{} is the name or address of several servers of the rank table", QuoteValue(self)));
      }
      found = i;
    }
    if (found < table.servers.size()) return found;
  }
  return absl::NotFoundError(fmt::format(
      "{} is no server_id, host_ip, container_ip or pod_name of a server of the rank table", QuoteValue(self)));
}

absl::StatusOr<size_t> ServerWithAddress(const RankTable& table, std::string_view address) {
  size_t found = table.servers.size();
  const bool has_addresses = table.version == RankTableVersion::k2_0 && !address.empty();
  for (size_t i = 0; i < table.servers.size() && has_addresses; ++i) {
    const auto devices = table.DevicesOf(table.servers[i]);
    if (std::none_of(devices.begin(), devices.end(),
                     [&](const RankTableDevice& device) { return HasAddress(table, device, address); })) {
      continue;
    }
    if (found < table.servers.size()) {
      return absl::InvalidArgumentError(
          fmt::format("{} is the address of several nodes of the rank table", QuoteValue(address)));
    }
    found = i;
  }
  if (found < table.servers.size()) return found;
  return absl::NotFoundError(fmt::format("{} is no address of a node of the rank table", QuoteValue(address)));
}

}  // namespace taskd::ranktable
