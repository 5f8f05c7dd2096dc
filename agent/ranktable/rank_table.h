// Rank tables: which devices a job has, on which servers, and which rank each of them is.
//
// Design:
// 1. A table is read from its text, which it keeps: names and addresses are views into it, and each rank's number is
//    known by its place. A rewrite copies the text and replaces only those places and the order of the servers, so all
//    that this code does not know stays as it was, byte for byte.
// 2. What others wrote is judged by rules that are the same for every reader of the file (HCCL refuses a table as a
//    whole, without a path). Each broken rule is one error. What cannot be judged because of it is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/ranktable/json_text.h"

namespace taskd::ranktable {

enum class RankTableVersion { kStandard, k1_0, k1_1, k1_2, k2_0 };  // kStandard: no field `version`

// "Standard", "1.0", …
std::string_view RankTableVersionName(RankTableVersion version);

// kAny: device_id 0 to 15. k910: device_id 0 to 7, as many devices on each server, 1, 2, 4 or a multiple of 8 in all.
// k950: version 2.0 only.
enum class ChipRules { kAny, k910, k950 };

// "any", "910", "950". INVALID_ARGUMENT for all else.
absl::StatusOr<ChipRules> ParseChipRules(std::string_view value);

struct RankTableError {
  std::string path;  // as in "server_list[1].device[0].rank_id"; empty for the document itself
  std::string text;  // value and rule
};

struct RankTableDevice {
  std::string_view device_ip;  // a comma list of addresses; empty: none
  int64_t device_id = -1;
  int64_t rank_id = -1;   // version absent: counted through the servers, in each by device_id
  int64_t local_id = -1;  // 2.0 only
  JsonSpan object;
  JsonSpan rank_id_value;    // empty where the table gives no rank
  uint32_t first_level = 0;  // in RankTable::levels
  uint32_t level_count = 0;
};

// 2.0: one layer of the network above a device.
struct RankTableLevel {
  int64_t net_layer = -1;
  std::string_view net_instance_id;
};

// 1.1: a node. 2.0, which names no servers: a run of ranks, sorted by rank_id, that ends where local_id does not grow;
// its name is node<k>.
struct RankTableServer {
  std::string_view server_id;
  std::string_view host_ip;  // these three are empty where the table does not have them
  std::string_view container_ip;
  std::string_view pod_name;
  JsonSpan object;  // 2.0: none
  uint32_t first_device = 0;
  uint32_t device_count = 0;
};

// Passive data, made by CheckRankTable. Moving it keeps the views valid.
struct RankTable {
  std::span<const RankTableDevice> DevicesOf(const RankTableServer& server) const {
    return std::span(devices).subspan(server.first_device, server.device_count);
  }
  std::span<const RankTableLevel> LevelsOf(const RankTableDevice& device) const {
    return std::span(levels).subspan(device.first_level, device.level_count);
  }

  std::unique_ptr<const std::string> text;
  RankTableVersion version = RankTableVersion::kStandard;
  std::vector<RankTableServer> servers;  // in the order of the file; 2.0: of their ranks
  std::vector<RankTableDevice> devices;  // server by server, in each in the order of the file; 2.0: of their ranks
  std::vector<RankTableLevel> levels;
  std::deque<std::string> decoded;  // what views cannot point to in `text`
};

struct RankTableCheck {
  bool ok() const { return errors.empty(); }
  // Whether the only fault is that the table is still being made.
  bool initializing = false;

  std::string version;  // "Standard", "1.0", …; "" if it is none of them
  size_t servers = 0;   // as far as they could be read
  size_t devices = 0;
  std::vector<RankTableError> errors;  // in the order of the text; at most kMaxRankTableErrors
  size_t errors_left_off = 0;
  std::optional<RankTable> table;  // if ok
};

inline constexpr size_t kMaxRankTableErrors = 100;
inline constexpr size_t kMaxRankTableDevices = 2u << 20;
inline constexpr size_t kMaxRankTableServers = 1u << 20;

// INVALID_ARGUMENT: no JSON that is accepted (json_text.h). RESOURCE_EXHAUSTED: it takes more than `max_bytes`. Takes
// time and memory in proportion to the text.
absl::StatusOr<RankTableCheck> CheckRankTable(std::string text, ChipRules chip, size_t max_bytes = kDefaultInputBytes);

// The server whose server_id, else host_ip, else container_ip, else pod_name is `self`, by its place in table.servers.
// NOT_FOUND: none. INVALID_ARGUMENT: several.
absl::StatusOr<size_t> ServerOf(const RankTable& table, std::string_view self);

// 2.0: the server with a device that has this address in a rank_addr_list, by its place in table.servers. NOT_FOUND:
// none, as in all other versions. INVALID_ARGUMENT: several.
absl::StatusOr<size_t> ServerWithAddress(const RankTable& table, std::string_view address);

}  // namespace taskd::ranktable
