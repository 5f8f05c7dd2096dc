#include "agent/ranktable/rank_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "agent/ranktable/reorder.h"

namespace taskd::ranktable {
namespace {

using Json = nlohmann::ordered_json;

// Two servers of eight devices.
Json Table10(int servers = 2, int devices = 8) {
  Json table = {{"version", "1.0"}, {"status", "completed"}, {"server_count", std::to_string(servers)}};
  for (int s = 0; s < servers; ++s) {
    Json server = {{"server_id", "node_" + std::to_string(s)},
                   {"host_ip", "172.16.0." + std::to_string(100 + s)},
                   {"container_ip", "10.1.0." + std::to_string(s)},
                   {"pod_name", "job-worker-" + std::to_string(s)}};
    for (int d = 0; d < devices; ++d) {
      server["device"].push_back({{"device_id", std::to_string(d)},
                                  {"device_ip", "192.168." + std::to_string(s) + "." + std::to_string(d + 1)},
                                  {"rank_id", std::to_string(s * devices + d)}});
    }
    table["server_list"].push_back(server);
  }
  return table;
}

// Four servers of two devices in two super pods.
Json Table12() {
  Json table = Table10(4, 2);
  table["version"] = "1.2";
  for (int s = 0; s < 4; ++s) {
    for (int d = 0; d < 2; ++d) {
      table["server_list"][s]["device"][d]["super_device_id"] = std::to_string(s % 2 * 2 + d);
    }
    table["super_pod_list"][s / 2]["super_pod_id"] = std::to_string(s / 2);
    table["super_pod_list"][s / 2]["server_list"].push_back({{"server_id", "node_" + std::to_string(s)}});
  }
  return table;
}

Json TableStandard() {
  return Json::parse(R"({"status":"completed","group_count":"1","group_list":[{"group_name":"worker",
    "device_count":"4","instance_count":"2","instance_list":[
      {"pod_name":"job-worker-0","server_id":"10.0.0.1","devices":[{"device_id":"1","device_ip":"192.168.100.101"},
                                                                  {"device_id":"0","device_ip":"192.168.100.102"}]},
      {"pod_name":"job-worker-1","server_id":"10.0.0.2","devices":[{"device_id":"0","device_ip":"192.168.101.101"},
                                                                  {"device_id":"1","device_ip":"192.168.101.102"}]}]}]})");
}

Json TableLab() {
  Json table = {{"deploy_mode", "lab"}, {"status", "completed"}, {"group_count", "1"}};
  Json group = {{"device_num", "4"}, {"server_num", "2"}, {"group_name", ""}, {"instance_count", "4"}};
  for (int i = 0; i < 4; ++i) {
    group["instance_list"].push_back(
        {{"devices", {{{"device_id", std::to_string(i % 2)}, {"device_ip", "192.1.27." + std::to_string(i + 1)}}}},
         {"rank_id", std::to_string(i)},
         {"server_id", "10.155.111." + std::to_string(i / 2)}});
  }
  table["group_list"].push_back(group);
  return table;
}

Json Table11() {
  return Json::parse(R"({"version":"1.1","status":"completed","collective_id":"192.168.3.3-9527-0001","node_list":[
    {"node_addr":"192.168.1.100","ranks":[{"rank_id":"0","device_id":"0","port":"9527","rank_ip":"192.168.1.100"},
                                          {"rank_id":"1","device_id":"1","port":"9528","rank_ip":"192.168.1.100"}]},
    {"node_addr":"192.168.1.101","ranks":[{"rank_id":"2","device_id":"0","port":"9527","rank_ip":"192.168.1.101"}]}]})");
}

Json Table20(int nodes = 2, int devices = 4) {
  Json table = {{"version", "2.0"}, {"status", "completed"}, {"rank_count", nodes * devices}};
  for (int r = 0; r < nodes * devices; ++r) {
    table["rank_list"].push_back(
        {{"rank_id", r},
         {"local_id", r % devices},
         {"device_id", r % devices},
         {"level_list",
          {{{"net_layer", 0}, {"net_instance_id", "L" + std::to_string(r / devices)}, {"net_type", "TOPO_FILE_DESC"}},
           {{"net_layer", 1}, {"net_instance_id", "top"}, {"net_type", "CLOS"}}}}});
  }
  return table;
}

RankTableCheck Check(const Json& table, ChipRules chip = ChipRules::kAny) {
  absl::StatusOr<RankTableCheck> check = CheckRankTable(table.dump(), chip);
  EXPECT_TRUE(check.ok()) << check.status();
  return check.ok() ? *std::move(check) : RankTableCheck();
}

std::string Errors(const RankTableCheck& check) {
  std::string all;
  for (const RankTableError& error : check.errors) all += error.path + ": " + error.text + "\n";
  return all;
}

RankTable Valid(const Json& table, ChipRules chip = ChipRules::kAny) {
  RankTableCheck check = Check(table, chip);
  EXPECT_TRUE(check.ok()) << Errors(check);
  return check.ok() ? *std::move(check.table) : RankTable();
}

// One rule broken: one error, at that path, that names the field.
struct Breakage {
  const char* path;
  std::function<void(Json&)> break_it;
  ChipRules chip = ChipRules::kAny;
};

void ExpectEach(const Json& table, const std::vector<Breakage>& breakages) {
  for (const Breakage& breakage : breakages) {
    SCOPED_TRACE(breakage.path);
    Json broken = table;
    breakage.break_it(broken);
    const RankTableCheck check = Check(broken, breakage.chip);
    ASSERT_EQ(check.errors.size(), 1u) << Errors(check) << broken.dump(1);
    EXPECT_EQ(check.errors[0].path, breakage.path) << check.errors[0].text;
    EXPECT_FALSE(check.table.has_value());
    const std::string path = breakage.path;
    std::string field = path.substr(path.rfind('.') + 1);
    field = field.substr(0, field.find('['));
    EXPECT_NE(check.errors[0].text.find(field), std::string::npos) << check.errors[0].text;
  }
}

TEST(RankTable, TakesEveryVersion) {
  const struct {
    Json table;
    const char* version;
    size_t servers, devices;
  } cases[] = {{Table10(), "1.0", 2, 16},           {Table12(), "1.2", 4, 8},       {Table11(), "1.1", 2, 3},
               {TableStandard(), "Standard", 2, 4}, {TableLab(), "Standard", 2, 4}, {Table20(), "2.0", 2, 8},
               {Table10(1, 1), "1.0", 1, 1}};
  for (const auto& one : cases) {
    const RankTableCheck check = Check(one.table);
    EXPECT_TRUE(check.ok()) << Errors(check);
    EXPECT_EQ(check.version, one.version);
    EXPECT_EQ(check.servers, one.servers);
    EXPECT_EQ(check.devices, one.devices);
  }
}

TEST(RankTable, RulesOfEveryDocument) {
  for (const Json& table : {Table10(), Table12(), Table11(), TableStandard(), TableLab(), Table20()}) {
    ExpectEach(table, {{"version", [](Json& t) { t["version"] = "1.3"; }},
                       {"version", [](Json& t) { t["version"] = 1.0; }},
                       {"version", [](Json& t) { t["version"] = nullptr; }},
                       {"status", [](Json& t) { t["status"] = "initializing"; }},
                       {"status", [](Json& t) { t["status"] = "failed"; }},
                       {"status", [](Json& t) { t["status"] = 1; }},
                       {"status", [](Json& t) { t.erase("status"); }}});
  }
  EXPECT_TRUE(Check(Json{{"status", "initializing"}}).initializing);
  EXPECT_FALSE(Check(Json{{"status", "failed"}}).initializing);
  EXPECT_EQ(Check(Json{{"status", "initializing"}}).errors.size(), 1u);
  const RankTableCheck list = Check(Json::array());
  ASSERT_EQ(list.errors.size(), 1u);
  EXPECT_EQ(list.errors[0].path, "");
  const std::string all = Errors(Check(Json{{"version", "3"}}));
  for (const char* known : {"1.0", "1.1", "1.2", "2.0"}) EXPECT_NE(all.find(known), std::string::npos) << all;
}

TEST(RankTable, RulesOf10) {
  const auto device = [](Json& t, int s, int d) -> Json& { return t["server_list"][s]["device"][d]; };
  ExpectEach(
      Table10(),
      {{"server_count", [](Json& t) { t["server_count"] = "3"; }},
       {"server_count", [](Json& t) { t["server_count"] = "0"; }},
       {"server_count", [](Json& t) { t["server_count"] = 2; }},
       {"server_count", [](Json& t) { t["server_count"] = "two"; }},
       {"server_count", [](Json& t) { t["server_list"].erase(0); }},
       {"server_list", [](Json& t) { t.erase("server_list"); }},
       {"server_list", [](Json& t) { t["server_list"] = Json::array(); }},
       {"server_list", [](Json& t) { t["server_list"] = "x"; }},
       {"server_list[1]", [](Json& t) { t["server_list"][1] = 5; }},
       {"server_list[0].server_id", [](Json& t) { t["server_list"][0]["server_id"] = ""; }},
       {"server_list[1].server_id", [](Json& t) { t["server_list"][1]["server_id"] = "node_0"; }},
       {"server_list[1].server_id", [](Json& t) { t["server_list"][1]["server_id"] = std::string(65, 'x'); }},
       {"server_list[1].server_id", [](Json& t) { t["server_list"][1].erase("server_id"); }},
       {"server_list[1].server_id", [](Json& t) { t["server_list"][1]["server_id"] = 7; }},
       {"server_list[1].host_ip", [](Json& t) { t["server_list"][1].erase("host_ip"); }},
       {"server_list[0].host_ip", [](Json& t) { t["server_list"][0]["host_ip"] = 5; }},
       {"server_list[0].host_ip", [](Json& t) { t["server_list"][0]["host_ip"] = "300.1.1.1"; }},
       {"server_list[0].host_ip", [](Json& t) { t["server_list"][0]["host_ip"] = "1.2.3.4 "; }},
       {"server_list[0].host_ip", [](Json& t) { t["server_list"][0]["host_ip"] = "fe80::1::2"; }},
       {"server_list[0].host_ip", [](Json& t) { t["server_list"][0]["host_ip"] = "node-0"; }},
       {"server_list[1].container_ip", [](Json& t) { t["server_list"][1]["container_ip"] = "10.1.0.256"; }},
       {"server_list[0].host_port", [](Json& t) { t["server_list"][0]["host_port"] = "0"; }},
       {"server_list[0].pod_name", [](Json& t) { t["server_list"][0]["pod_name"] = Json::array(); }},
       {"server_list[0].device", [](Json& t) { t["server_list"][0]["device"] = Json::array(); }},
       {"server_list[0].device", [](Json& t) { t["server_list"][0].erase("device"); }},
       {"server_list[0].device", [](Json& t) { t["server_list"][0]["device"] = Json::object(); }},
       {"server_list[0].device[3]", [&](Json& t) { device(t, 0, 3) = "x"; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = 0; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = "a"; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = ""; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = "-1"; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = "16"; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0).erase("device_id"); }},
       {"server_list[1].device[1].device_id", [&](Json& t) { device(t, 1, 1)["device_id"] = "0"; }},
       {"server_list[1].device[0].device_id", [&](Json& t) { device(t, 1, 0)["device_id"] = "8"; }, ChipRules::k910},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = "1.2.3"; }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = "1.2.3.4,"; }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = "host"; }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = 5; }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = ""; }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0).erase("device_ip"); }},
       {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0)["device_ip"] = "192.168.0.1"; }},
       {"server_list[0].device[0].device_ip", [&](Json& t) { device(t, 0, 0)["device_ip"] = "fe80::1"; }},
       {"server_list[0].device[0].device_ip", [&](Json& t) { device(t, 0, 0)["device_ip"] = "1.2.3.4,1.2.3.5"; }},
       {"server_list[0].device[0].device_port", [&](Json& t) { device(t, 0, 0)["device_port"] = "65536"; }},
       {"server_list[0].device[0].backup_device_port", [&](Json& t) { device(t, 0, 0)["backup_device_port"] = "0"; }},
       {"server_list[0].device[0].backup_device_ip", [&](Json& t) { device(t, 0, 0)["backup_device_ip"] = "x"; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = "7"; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = "16"; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = "99999999999999999999"; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = 8; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = "8 "; }},
       {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0).erase("rank_id"); }},
       {"server_list[1].device[7].rank_id",  // they begin with 1
        [&](Json& t) {
          for (int r = 0; r < 16; ++r) device(t, r / 8, r % 8)["rank_id"] = std::to_string(r + 1);
        }},
       {"server_list[0].device[7].rank_id",  // {0, …, 6, 15} and {7, …, 14}
        [&](Json& t) {
          device(t, 0, 7)["rank_id"] = "15";
          for (int d = 0; d < 8; ++d) device(t, 1, d)["rank_id"] = std::to_string(7 + d);
        }},
       {"version", [](Json&) {}, ChipRules::k950}});
  // Both servers have odd ones out: one error each.
  Json table = Table10();
  for (int r = 0; r < 16; ++r) device(table, r % 2, r / 2)["rank_id"] = std::to_string(r);
  EXPECT_EQ(Check(table).errors.size(), 2u) << Errors(Check(table));
}

TEST(RankTable, RanksOfAServerMayHaveAnyOrder) {
  Json table = Table10();
  for (int r = 0; r < 16; ++r) table["server_list"][1 - r / 8]["device"][7 - r % 8]["rank_id"] = std::to_string(r);
  Valid(table);
}

TEST(RankTable, WhatIsFineIn10) {
  Json table = Table10(1, 4);
  for (Json& device : table["server_list"][0]["device"]) device.erase("device_ip");
  Valid(table);  // one server needs no network
  table = Table10();
  table.erase("server_count");
  for (Json& server : table["server_list"]) server.erase("host_ip");
  table["server_list"][0]["server_id"] = "300.1.1.1";  // a name
  table["server_list"][1]["container_ip"] = "fe80::1";
  table["unknown"] = 1.5;
  table["server_list"][0]["unknown"] = {{"a", {1, true, nullptr}}};
  table["server_list"][0]["device"][0]["device_id"] = "15";
  Valid(table);
  for (Json& server : table["server_list"]) {
    for (Json& device : server["device"]) {
      const std::string ip = device["device_ip"];
      device["device_ip"] = ip + ",10.1." + ip.substr(8);
    }
  }
  Valid(table);
}

TEST(RankTable, RulesOfChip910) {
  for (const int devices : {1, 2, 4, 8}) Valid(Table10(1, devices), ChipRules::k910);
  Valid(Table10(3, 8), ChipRules::k910);
  Valid(Table20(2, 4), ChipRules::k910);
  const RankTableCheck three = Check(Table10(1, 3), ChipRules::k910);
  ASSERT_EQ(three.errors.size(), 1u) << Errors(three);
  EXPECT_EQ(three.errors[0].path, "server_list[0].device");
  Valid(Table10(1, 3));
  Json uneven = Table10(2, 8);
  uneven["server_list"][1]["device"].erase(7);
  const RankTableCheck check = Check(uneven, ChipRules::k910);
  ASSERT_EQ(check.errors.size(), 1u) << Errors(check);
  EXPECT_EQ(check.errors[0].path, "server_list[1].device");
  Valid(uneven);
  Valid(Table20(), ChipRules::k950);
  EXPECT_EQ(Check(TableStandard(), ChipRules::k950).errors.size(), 1u);
  EXPECT_FALSE(ParseChipRules("911").ok());
  EXPECT_EQ(*ParseChipRules("910"), ChipRules::k910);
}

TEST(RankTable, RulesOfStandard) {
  const auto instance = [](Json& t, int i) -> Json& { return t["group_list"][0]["instance_list"][i]; };
  ExpectEach(TableStandard(),
             {{"group_count", [](Json& t) { t["group_count"] = "2"; }},
              {"group_list", [](Json& t) { t.erase("group_list"); }},
              {"group_list", [](Json& t) { t["group_list"] = Json::array(); }},
              {"group_list[0].instance_count", [](Json& t) { t["group_list"][0]["instance_count"] = "3"; }},
              {"group_list[0].instance_count", [](Json& t) { t["group_list"][0]["instance_list"].erase(1); }},
              {"group_list[0].device_count", [](Json& t) { t["group_list"][0]["device_count"] = "2"; }},
              {"group_list[0].device_count", [](Json& t) { t["group_list"][0]["device_count"] = 4; }},
              {"group_list[0].instance_list", [](Json& t) { t["group_list"][0].erase("instance_list"); }},
              {"group_list[0].instance_list[1].server_id", [&](Json& t) { instance(t, 1)["server_id"] = "10.0.0.1"; }},
              {"group_list[0].instance_list[1].server_id", [&](Json& t) { instance(t, 1).erase("server_id"); }},
              {"group_list[0].instance_list[1].devices", [&](Json& t) { instance(t, 1)["devices"] = Json::array(); }},
              {"group_list[0].instance_list[1].devices[0].device_id",
               [&](Json& t) { instance(t, 1)["devices"][0]["device_id"] = "1x"; }},
              {"group_list[0].instance_list[1].devices[1].device_ip",
               [&](Json& t) { instance(t, 1)["devices"][1]["device_ip"] = "192.168.100.101"; }},
              {"group_list[0].instance_list[1].pod_name", [&](Json& t) { instance(t, 1)["pod_name"] = 3; }}});
  // Ranks count through the servers, in each by device_id; the devices stay in the order of the file.
  const RankTable table = Valid(TableStandard());
  ASSERT_EQ(table.devices.size(), 4u);
  EXPECT_EQ(table.devices[0].rank_id, 1);
  EXPECT_EQ(table.devices[1].rank_id, 0);
  EXPECT_EQ(table.devices[3].rank_id, 3);
}

TEST(RankTable, RulesOfLabMode) {
  ExpectEach(TableLab(), {{"group_list[0].instance_list[3].rank_id",
                           [](Json& t) { t["group_list"][0]["instance_list"][3]["rank_id"] = "4"; }},
                          {"group_list[0].instance_list[3].rank_id",
                           [](Json& t) { t["group_list"][0]["instance_list"][3]["rank_id"] = "2"; }},
                          {"group_list[0].instance_list[3].rank_id",
                           [](Json& t) { t["group_list"][0]["instance_list"][3].erase("rank_id"); }},
                          {"group_list[0].instance_list[3].devices[0].device_id",
                           [](Json& t) { t["group_list"][0]["instance_list"][3]["devices"][0]["device_id"] = "0"; }},
                          {"group_list[0].instance_list[0].devices",  // 3 on the first server
                           [](Json& t) {
                             Json& instances = t["group_list"][0]["instance_list"];
                             instances[2]["server_id"] = instances[0]["server_id"];
                             instances[2]["devices"][0]["device_id"] = "2";
                           }}});
}

TEST(RankTable, RulesOf11) {
  ExpectEach(Table11(),
             {{"collective_id", [](Json& t) { t.erase("collective_id"); }},
              {"collective_id", [](Json& t) { t["collective_id"] = ""; }},
              {"collective_id", [](Json& t) { t["collective_id"] = std::string(128, 'c'); }},
              {"mode", [](Json& t) { t["mode"] = "udp"; }},
              {"node_list", [](Json& t) { t["node_list"] = Json::array(); }},
              {"node_list[0].node_addr", [](Json& t) { t["node_list"][0]["node_addr"] = ""; }},
              {"node_list[0].ranks", [](Json& t) { t["node_list"][0].erase("ranks"); }},
              {"node_list[0].ranks[1].rank_ip", [](Json& t) { t["node_list"][0]["ranks"][1]["rank_ip"] = ""; }},
              {"node_list[0].ranks[1].rank_ip", [](Json& t) { t["node_list"][0]["ranks"][1].erase("rank_ip"); }},
              {"node_list[0].ranks[1].port", [](Json& t) { t["node_list"][0]["ranks"][1]["port"] = "70000"; }},
              {"node_list[1].ranks[0].rank_id", [](Json& t) { t["node_list"][1]["ranks"][0]["rank_id"] = "1"; }},
              {"node_list[0].ranks[1].device_id", [](Json& t) { t["node_list"][0]["ranks"][1]["device_id"] = "0"; }}});
  Json table = Table11();
  table["mode"] = "rdma";
  table["collective_id"] = std::string(127, 'c');
  Valid(table);
}

TEST(RankTable, RulesOf12) {
  const auto device = [](Json& t, int s, int d) -> Json& { return t["server_list"][s]["device"][d]; };
  ExpectEach(Table12(),
             {{"server_list[1].device[0].super_device_id", [&](Json& t) { device(t, 1, 0).erase("super_device_id"); }},
              {"server_list[1].device[0].super_device_id", [&](Json& t) { device(t, 1, 0)["super_device_id"] = ""; }},
              {"server_list[1].device[0].super_device_id", [&](Json& t) { device(t, 1, 0)["super_device_id"] = 2; }},
              {"server_list[1].device[0].super_device_id", [&](Json& t) { device(t, 1, 0)["super_device_id"] = "0"; }},
              {"server_list[1].device[0].rank_id", [&](Json& t) { device(t, 1, 0)["rank_id"] = "0"; }},
              {"server_list[0].device[1].rank_id",
               [&](Json& t) {
                 device(t, 0, 1)["rank_id"] = "3";
                 device(t, 1, 0)["rank_id"] = "1";
                 device(t, 1, 1)["rank_id"] = "2";
               }},
              {"server_list[1].device[0].device_ip", [&](Json& t) { device(t, 1, 0).erase("device_ip"); }},
              {"super_pod_list", [](Json& t) { t.erase("super_pod_list"); }},
              {"super_pod_list", [](Json& t) { t["super_pod_list"] = Json::array(); }},
              {"super_pod_list[1].super_pod_id", [](Json& t) { t["super_pod_list"][1]["super_pod_id"] = "0"; }},
              {"super_pod_list[1].super_pod_id", [](Json& t) { t["super_pod_list"][1]["super_pod_id"] = ""; }},
              {"super_pod_list[1].super_pod_id", [](Json& t) { t["super_pod_list"][1].erase("super_pod_id"); }},
              {"super_pod_list[1].server_list", [](Json& t) { t["super_pod_list"][1].erase("server_list"); }},
              {"super_pod_list[1].server_list", [](Json& t) { t["super_pod_list"][1]["server_list"] = Json::array(); }},
              {"super_pod_list[1].server_list[0].server_id",
               [](Json& t) { t["super_pod_list"][1]["server_list"][0]["server_id"] = "node_9"; }},
              {"super_pod_list[1].server_list[0].server_id",
               [](Json& t) { t["super_pod_list"][1]["server_list"][0]["server_id"] = "node_1"; }},
              {"super_pod_list[1].server_list[0].server_id",
               [](Json& t) { t["super_pod_list"][1]["server_list"][0].erase("server_id"); }},
              {"server_list[3].server_id", [](Json& t) { t["super_pod_list"][1]["server_list"].erase(1); }},
              {"super_pod_list[1].server_list", [](Json& t) {  // 3 and 1
                 t["super_pod_list"][0]["server_list"].push_back({{"server_id", "node_2"}});
                 t["super_pod_list"][1]["server_list"].erase(0);
                 for (int d = 0; d < 2; ++d)
                   t["server_list"][2]["device"][d]["super_device_id"] = std::to_string(d + 10);
               }}});
  // One super pod has a network of its own.
  Json one = Table12();
  for (int s = 0; s < 4; ++s) {
    for (int d = 0; d < 2; ++d) {
      device(one, s, d).erase("device_ip");
      device(one, s, d)["super_device_id"] = std::to_string(2 * s + d);
    }
  }
  one["super_pod_list"] = Json::array({{{"super_pod_id", "0"}, {"server_list", Json::array()}}});
  for (int s = 0; s < 4; ++s) {
    one["super_pod_list"][0]["server_list"].push_back({{"server_id", "node_" + std::to_string(s)}});
  }
  Valid(one);
}

TEST(RankTable, RulesOf20) {
  ExpectEach(Table20(), {{"rank_count", [](Json& t) { t["rank_count"] = 7; }},
                         {"rank_count", [](Json& t) { t["rank_count"] = "8"; }},
                         {"rank_count", [](Json& t) { t.erase("rank_count"); }},
                         {"rank_count", [](Json& t) { t["rank_list"].erase(0); }},
                         {"rank_list", [](Json& t) { t.erase("rank_list"); }},
                         {"rank_list", [](Json& t) { t["rank_list"] = Json::array(); }},
                         {"rank_list[2]", [](Json& t) { t["rank_list"][2] = Json::array(); }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2]["rank_id"] = "2"; }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2]["rank_id"] = 2.0; }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2]["rank_id"] = 1; }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2]["rank_id"] = -2; }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2]["rank_id"] = 8; }},
                         {"rank_list[2].rank_id", [](Json& t) { t["rank_list"][2].erase("rank_id"); }},
                         {"rank_list[2].local_id", [](Json& t) { t["rank_list"][2].erase("local_id"); }},
                         {"rank_list[2].local_id", [](Json& t) { t["rank_list"][2]["local_id"] = "2"; }},
                         {"rank_list[2].device_id", [](Json& t) { t["rank_list"][2]["device_id"] = 16; }},
                         {"rank_list[2].device_id", [](Json& t) { t["rank_list"][2]["device_id"] = 1; }},
                         {"rank_list[2].device_id", [](Json& t) { t["rank_list"][2].erase("device_id"); }},
                         {"rank_list[2].device_port", [](Json& t) { t["rank_list"][2]["device_port"] = 0; }},
                         {"rank_list[2].level_list[0].net_layer",
                          [](Json& t) { t["rank_list"][2]["level_list"][0]["net_layer"] = "0"; }},
                         {"rank_list[2].level_list[0].net_instance_id",
                          [](Json& t) { t["rank_list"][2]["level_list"][0]["net_instance_id"] = 0; }},
                         {"rank_list[2].level_list", [](Json& t) {
                            for (int i = 0; i < 7; ++i) t["rank_list"][2]["level_list"].push_back(Json::object());
                          }}});
  // Nodes are runs of ranks by rank_id, whatever the order of the file.
  Json shuffled = Table20();
  std::reverse(shuffled["rank_list"].begin(), shuffled["rank_list"].end());
  const RankTable table = Valid(shuffled);
  ASSERT_EQ(table.servers.size(), 2u);
  EXPECT_EQ(table.servers[1].server_id, "node1");
  EXPECT_EQ(table.DevicesOf(table.servers[1])[0].rank_id, 4);
  const auto levels = table.LevelsOf(table.DevicesOf(table.servers[1])[0]);
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels[0].net_layer, 0);
  EXPECT_EQ(levels[0].net_instance_id, "L1");
}

TEST(RankTable, SeveralBrokenRulesAreSeveralErrorsInTheOrderOfTheText) {
  Json table = Table10();
  table["server_count"] = "5";
  table["server_list"][0]["device"][1]["device_id"] = "x";
  table["server_list"][1]["server_id"] = "";
  const RankTableCheck check = Check(table);
  ASSERT_EQ(check.errors.size(), 3u) << Errors(check);
  EXPECT_EQ(check.errors[0].path, "server_count");
  EXPECT_EQ(check.errors[1].path, "server_list[0].device[1].device_id");
  EXPECT_EQ(check.errors[2].path, "server_list[1].server_id");
}

TEST(RankTable, ErrorsAreBounded) {
  Json table = Table10(1, 1);
  for (int i = 0; i < 500; ++i) table["server_list"][0]["device"].push_back(Json::object());
  const RankTableCheck check = Check(table);
  EXPECT_EQ(check.errors.size(), kMaxRankTableErrors);
  EXPECT_EQ(check.errors_left_off, 1000 - kMaxRankTableErrors);
  table = Table10();
  table["server_list"][0]["server_id"] = "\x1b[31m" + std::string(100000, 'x');
  const std::string text = Check(table).errors[0].text;
  EXPECT_LT(text.size(), 200u);
  EXPECT_EQ(text.find('\x1b'), text.npos);
}

TEST(RankTable, HostileTextIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string(1'000'000, '['), std::string("{\"status\":\"\xff\"}"),
        std::string(R"({"version":"1.0","version":"1.2"})")}) {
    const auto check = CheckRankTable(text, ChipRules::kAny);
    EXPECT_TRUE(absl::IsInvalidArgument(check.status())) << text.substr(0, 40);
  }
  // More devices than are taken: an end, not all of the memory.
  std::string many = R"({"version":"1.0","status":"completed","server_list":[{"server_id":"a","device":[)";
  for (size_t i = 0; i < kMaxRankTableDevices + 5; ++i) many += "{},";
  many.back() = ']';
  many += "}]}";
  EXPECT_TRUE(absl::IsResourceExhausted(CheckRankTable(many, ChipRules::kAny).status()));
  const auto check = CheckRankTable(many, ChipRules::kAny, size_t{1} << 30);
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_FALSE(check->ok());
  EXPECT_EQ(check->devices, kMaxRankTableDevices);
}

TEST(RankTable, ServerOf) {
  Json json = Table10();
  const RankTable table = Valid(json);
  for (const char* self : {"node_1", "172.16.0.101", "10.1.0.1", "job-worker-1"}) {
    EXPECT_EQ(*ServerOf(table, self), 1u) << self;
  }
  EXPECT_TRUE(absl::IsNotFound(ServerOf(table, "").status()));
  EXPECT_TRUE(absl::IsNotFound(ServerOf(table, "node_2").status()));
  json["server_list"][1]["pod_name"] = "job-worker-0";
  EXPECT_TRUE(absl::IsInvalidArgument(ServerOf(Valid(json), "job-worker-0").status()));
  json["server_list"][1]["pod_name"] = "node_0";  // server_id comes first
  EXPECT_EQ(*ServerOf(Valid(json), "node_0"), 0u);
}

TEST(RankTable, ServerWithAddress) {
  Json json = Table20();  // 2 nodes of 4 devices
  const auto set = [&](size_t rank, const Json& list) {
    json["rank_list"][rank]["level_list"][0]["rank_addr_list"] = list;
  };
  set(1, {{{"addr_type", "IPV4"}, {"addr", "10.0.0.1"}}, {{"addr_type", "IPV6"}, {"addr", "fd00::0:1"}}});
  set(2, {{{"addr", "10.0.0.1"}}});
  set(3, {{{"addr_type", "EID"}, {"addr", "00a\n\u00e9"}}});
  set(4, {{{"addr", "10.0.0.2"}}});
  // What no rule is about.
  set(5, {{{"addr", 7}}, "10.0.0.3", {"10.0.0.3"}});
  set(6, "10.0.0.3");
  set(7, {{"addr", "10.0.0.3"}});
  const RankTable table = Valid(json);
  EXPECT_EQ(*ServerWithAddress(table, "10.0.0.1"), 0u);
  EXPECT_EQ(*ServerWithAddress(table, "fd00::1"), 0u);
  EXPECT_EQ(*ServerWithAddress(table, "00a\n\u00e9"), 0u);
  EXPECT_EQ(*ServerWithAddress(table, "10.0.0.2"), 1u);
  for (const char* none : {"", "10.0.0.3", "node0", "7"}) {
    EXPECT_TRUE(absl::IsNotFound(ServerWithAddress(table, none).status())) << none;
  }
  set(4, {{{"addr", "10.0.0.1"}}});
  EXPECT_TRUE(absl::IsInvalidArgument(ServerWithAddress(Valid(json), "10.0.0.1").status()));
  EXPECT_TRUE(absl::IsNotFound(ServerWithAddress(Valid(Table10()), "172.16.0.101").status()));
}

TEST(ReorderRankTable, ChangesRanksAndOrderOnly) {
  // Blanks, unknown fields, number spelling, order of keys and devices, escapes.
  const std::string text = R"( {"x":1.50e+03, "server_list":[
   {"device":[{"rank_id":"1" ,"device_ip":"1.0.0.2","device_id":"1","u":"\u00e9"}, {"device_id":"0","device_ip":"1.0.0.1","rank_id":"0"}],
    "server_id":"a", "z":[1,  2.0]} ,
   {"server_id":"b","device":[{"device_id":"0","device_ip":"1.0.0.3","rank_id":"2"}]}
  ],"version" : "1.0", "status":"completed"}
)";
  absl::StatusOr<RankTableCheck> check = CheckRankTable(text, ChipRules::kAny);
  ASSERT_TRUE(check.ok() && check->ok()) << check.status();
  const std::vector<uint32_t> same = {0, 1}, other = {1, 0};
  EXPECT_EQ(*ReorderRankTable(*check->table, same), text);
  EXPECT_EQ(*ReorderRankTable(*check->table, other), R"( {"x":1.50e+03, "server_list":[
   {"server_id":"b","device":[{"device_id":"0","device_ip":"1.0.0.3","rank_id":"0"}]} ,
   {"device":[{"rank_id":"2" ,"device_ip":"1.0.0.2","device_id":"1","u":"\u00e9"}, {"device_id":"0","device_ip":"1.0.0.1","rank_id":"1"}],
    "server_id":"a", "z":[1,  2.0]}
  ],"version" : "1.0", "status":"completed"}
)");
}

TEST(ReorderRankTable, MovesRanksOf20) {
  Json shuffled = Table20(3, 2);
  std::reverse(shuffled["rank_list"].begin(), shuffled["rank_list"].end());
  const RankTable table = Valid(shuffled);
  const std::vector<uint32_t> order = {2, 0, 1};
  const Json result = Json::parse(*ReorderRankTable(table, order));
  std::string seen;
  for (const Json& rank : result["rank_list"]) {
    seen += std::to_string(rank["rank_id"].get<int>()) + rank["level_list"][0]["net_instance_id"].get<std::string>() +
            std::to_string(rank["local_id"].get<int>()) + " ";
  }
  EXPECT_EQ(seen, "0L20 1L21 2L00 3L01 4L10 5L11 ");
  EXPECT_TRUE(Check(result).ok());
}

TEST(ReorderRankTable, EveryResultIsValidAndTheWayBackExists) {
  const RankTable table = Valid(Table12());
  const std::vector<uint32_t> order = {2, 3, 1, 0}, back = {3, 2, 0, 1};
  absl::StatusOr<RankTableCheck> moved = CheckRankTable(*ReorderRankTable(table, order), ChipRules::kAny);
  ASSERT_TRUE(moved.ok() && moved->ok()) << Errors(*moved);
  EXPECT_EQ(moved->table->servers[0].server_id, "node_2");
  EXPECT_EQ(*ReorderRankTable(*moved->table, back), *table.text);
}

TEST(ReorderRankTable, RefusesWhatIsNoOrder) {
  const RankTable table = Valid(Table10());
  for (const std::vector<uint32_t>& order : {std::vector<uint32_t>{0}, {0, 0}, {0, 2}, {0, 1, 1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReorderRankTable(table, order).status()));
  }
  const std::vector<uint32_t> order = {0, 1};
  EXPECT_TRUE(absl::IsUnimplemented(ReorderRankTable(Valid(TableStandard()), order).status()));
}

}  // namespace
}  // namespace taskd::ranktable
