// Topology files of every format: a model that a plan can be made of, or one line that says what is wrong.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "agent/route/plan.h"
#include "agent/route/plan_report.h"
#include "agent/route/topology_formats/formats.h"
#include "tests/fuzz/fuzz_target.h"

using taskd::route::ReadTopology;
using taskd::route::RouteNode;
using taskd::route::TopologyFormat;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte picks a format, so that auto does not hide a reader; any other byte is auto.
  std::string_view text(reinterpret_cast<const char*>(data), size);
  TopologyFormat format = TopologyFormat::kAuto;
  if (!text.empty() && text[0] >= '1' && text[0] <= '7') {
    format = static_cast<TopologyFormat>(text[0] - '0');
    text.remove_prefix(1);
  }
  auto topology = ReadTopology(text, format);
  // With less room the answer is the same, or that there is too little.
  if (const auto small = ReadTopology(text, format, 2048); !absl::IsResourceExhausted(small.status())) {
    FUZZ_CHECK(small.status() == topology.status());
  }
  if (!topology.ok()) {
    FUZZ_CHECK(!topology.status().message().empty());
    FUZZ_CHECK(topology.status().message().find('\n') == std::string_view::npos);
    return 0;
  }
  std::vector<RouteNode> nodes;
  for (int i = 0; i < 6; ++i) nodes.push_back({"n" + std::to_string(i), "", "", "", {i}});
  const auto plan = taskd::route::PlanRoutes(nodes, *topology, taskd::route::UnknownNodes::kLast);
  FUZZ_CHECK(plan.ok());
  FUZZ_CHECK(plan->by_new_rank.size() == nodes.size() && plan->by_new_rank[0] == 0);
  FUZZ_CHECK(std::is_permutation(plan->by_new_rank.begin(), plan->by_new_rank.end(), plan->by_old_rank.begin()));
  FUZZ_CHECK(plan->after.cross_tor_flows <= plan->before.cross_tor_flows);
  FUZZ_CHECK(plan->after.max_link_flows <= plan->before.max_link_flows);
  FUZZ_CHECK(plan->after.total_hops >= plan->bound.total_hops);
  FUZZ_CHECK(!taskd::route::PlanJson(nodes, *plan).empty());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const std::string tor_list =
      R"({"status":"completed","server_list":[{"server_id":"n0","device":[{"device_id":"0","tor_ip":"a"},)"
      R"({"device_id":"1","tor_ip":"c"}]},{"server_id":"n1","device":[{"tor_ip":"b"}]},)"
      R"({"server_id":"n2","device":[{"tor_ip":"a"},{"tor_ip":"d"}]}]})";
  const std::string slurm = "SwitchName=a Nodes=n[0,2-3]\nSwitchName=b Nodes=n[1,4]\nSwitchName=c Switches=[a-b]\n";
  return {
      tor_list,
      // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one seed in two literals
      "H4sIAAAAAAAAA6tWKk4tKkstis/"
      "JLC5RsoquhvEzU5SslPIMlHSUUlLLMpNTwXIl+UCJAqBEolJtbK0OmmJDHIqTsCk2wmdybC0A58F6a5gAAAA=",
      R"({"server_list":[{"tor_ip":"a","server":[{"server_ip":"n0"},{"server_ip":"n2"}]},)"
      R"({"tor_ip":"b","server":[{"server_ip":"n1"}]}]})",
      R"({"data":{"tor_info":"{\"server_list\":[{\"tor_ip\":\"a\",\"server\":[{\"server_ip\":\"n0\"}]}]}"}})", slurm,
      "3" + slurm, "SwitchName=a Nodes=n[0-1]x[1-2]\nSwitchName=c Switches=a,b # c\nSwitchName=b Nodes=n0,n2\n",
      "vendid=0x1\nSwitch\t8 \"S-a\"\t# \"a\" lid 1\n[1]\t\"H-0\"[1]\t# \"n0\"\n[2]\t\"S-c\"[1]\n"
      "Switch\t8 \"S-b\"\t# \"b\"\n[1]\t\"H-1\"[1]\n[2]\t\"S-c\"[2]\nSwitch\t8 \"S-c\"\t# \"c\"\n[1]\t\"S-a\"[2]\n"
      "Ca\t1 \"H-0\"\t# \"n0 x\"\n[1]\t\"S-a\"[1]\nCa\t1 \"H-1\"\t# \"n1 x\"\n[1]\t\"S-b\"[1]\n",
      R"({"items":[{"metadata":{"name":"a"},"spec":{"members":[{"type":"Node","selector":{"exactMatch":{"name":"n0"}}}]}},)"
      R"({"metadata":{"name":"b"},"spec":{"members":[{"type":"HyperNode","selector":{"exactMatch":{"name":"a"}}}]}}]})",
      "node,level1,level2\nn0,a,x\nn1,b,y\nn2,a,x\nn3,b,y\n", "6node,level1\nn0,a\nn1,b\nn2,a\nn3,b\n",
      R"({"version":"2.0","rank_list":[{"rank_id":0,"local_id":0,"level_list":[{"net_layer":0,"net_instance_id":"a"}]},)"
      R"({"rank_id":1,"local_id":0,"level_list":[{"net_layer":0,"net_instance_id":"b"}]},)"
      R"({"rank_id":2,"local_id":0,"level_list":[{"net_layer":0,"net_instance_id":"a"}]}]})"};
}
