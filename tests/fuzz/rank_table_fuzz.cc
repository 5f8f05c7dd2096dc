// A rank table: an error with a message, or a model whose rewrite is a valid table again.
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "agent/ranktable/rank_table.h"
#include "agent/ranktable/reorder.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace taskd;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const ranktable::ChipRules chip :
       {ranktable::ChipRules::kAny, ranktable::ChipRules::k910, ranktable::ChipRules::k950}) {
    absl::StatusOr<ranktable::RankTableCheck> check = ranktable::CheckRankTable(text, chip);
    FUZZ_CHECK(check.ok() || !check.status().message().empty());
    if (!check.ok()) continue;
    FUZZ_CHECK(check->ok() == check->table.has_value());
    for (const ranktable::RankTableError& error : check->errors) FUZZ_CHECK(!error.text.empty());
    if (!check->ok()) continue;
    const ranktable::RankTable& table = *check->table;
    FUZZ_CHECK(!table.servers.empty() && !table.devices.empty());
    FUZZ_CHECK(ranktable::ServerOf(table, table.servers[0].server_id).ok());
    std::vector<uint32_t> order(table.servers.size());
    std::iota(order.rbegin(), order.rend(), 0);
    absl::StatusOr<std::string> moved = ranktable::ReorderRankTable(table, order);
    if (!moved.ok()) continue;
    absl::StatusOr<ranktable::RankTableCheck> again = ranktable::CheckRankTable(*moved, chip);
    FUZZ_CHECK(again.ok() && again->devices == check->devices);
    // Without names of servers (2.0) the runs of ranks may join or break where they meet.
    FUZZ_CHECK(again->ok() || table.version == ranktable::RankTableVersion::k2_0);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"version":"1.0","status":"completed","server_count":"2","server_list":[{"server_id":"a","host_ip":"1.0.0.1","device":[{"device_id":"0","device_ip":"1.1.1.1","rank_id":"0"}]},{"server_id":"b","host_ip":"1.0.0.2","device":[{"device_id":"0","device_ip":"1.1.1.2","rank_id":"1"}]}]})",
      R"({"version":"1.2","status":"completed","server_list":[{"server_id":"a","device":[{"device_id":"0","super_device_id":"0","rank_id":"0"}]},{"server_id":"b","device":[{"device_id":"0","super_device_id":"1","rank_id":"1"}]}],"super_pod_list":[{"super_pod_id":"0","server_list":[{"server_id":"a"},{"server_id":"b"}]}]})",
      R"({"version":"1.1","status":"completed","collective_id":"c","node_list":[{"node_addr":"n","ranks":[{"rank_id":"0","device_id":"0","rank_ip":"1.1.1.1","port":"9527"}]}]})",
      R"({"status":"completed","group_count":"1","group_list":[{"device_count":"1","instance_count":"1","instance_list":[{"pod_name":"p","server_id":"s","devices":[{"device_id":"0","device_ip":"1.1.1.1"}]}]}]})",
      R"({"deploy_mode":"lab","status":"completed","group_list":[{"instance_list":[{"rank_id":"0","server_id":"s","devices":[{"device_id":"0"}]}]}]})",
      R"({"version":"2.0","status":"completed","rank_count":2,"rank_list":[{"rank_id":0,"local_id":0,"device_id":0,"level_list":[{"net_layer":0,"net_instance_id":"L0"}]},{"rank_id":1,"local_id":0,"device_id":0}]})",
      R"({"status":"initializing"})",
      "[[[[",
      R"({"a":"\u00e9\ud83d\ude00"})"};
}
