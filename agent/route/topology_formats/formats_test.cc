#include "agent/route/topology_formats/formats.h"

#include <zlib.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "agent/route/plan.h"
#include "agent/route/testing/jobs.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace taskd::route {
namespace {

using ::testing::HasSubstr;

// The way from a node to its root, by rail: "a b" is leaf a below b; several rails with "|".
std::string Path(const Topology& topology, const std::string& name) {
  const auto found = topology.node_by_name.find(name);
  if (found == topology.node_by_name.end()) return "unknown";
  std::string path;
  for (const int32_t leaf : topology.LeavesOf(found->second)) {
    if (!path.empty()) path += "|";
    std::string rail;
    for (int32_t at = leaf; at >= 0; at = topology.switch_parent[at]) {
      rail += (rail.empty() ? "" : " ") + topology.switch_name[at];
    }
    path += rail;
  }
  return path;
}

// Reads with the format itself and with auto, which must agree.
Topology Read(const std::string& content, const std::string& format) {
  auto named = ReadTopology(content, *TopologyFormatFromName(format));
  auto automatic = ReadTopology(content, TopologyFormat::kAuto);
  EXPECT_TRUE(named.ok()) << format << ": " << named.status();
  EXPECT_TRUE(automatic.ok()) << "auto: " << automatic.status();
  if (!named.ok() || !automatic.ok()) return {};
  for (const auto& [name, node] : named->node_by_name) EXPECT_EQ(Path(*named, name), Path(*automatic, name));
  EXPECT_EQ(named->nodes.size(), automatic->nodes.size());
  return *std::move(named);
}

// The message, which must be one line.
std::string Error(const std::string& content, const std::string& format) {
  auto topology = ReadTopology(content, *TopologyFormatFromName(format));
  if (topology.ok()) return "no error";
  std::string message(topology.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_FALSE(message.empty());
  return message;
}

void ExpectError(const std::string& content, const std::string& format, const std::string& part) {
  const std::string message = Error(content, format);
  EXPECT_NE(message.find(part), std::string::npos) << "expected " << part << " in: " << message;
}

std::string PackedGzip(const std::string& text) {
  std::string packed(text.size() + 1024, '\0');
  z_stream stream = {};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return absl::Base64Escape(packed);
}

const char kTorList[] = R"({"status":"completed","version":"1.0","server_count":"2","server_list":[
  {"pod_name":"job-worker-0","server_id":"10.0.0.1","device":[
    {"device_id":"1","device_ip":"1.1.1.2","rank_id":"1","tor_ip":"t1","tor_port":"8"},
    {"device_id":"0","device_ip":"1.1.1.1","rank_id":"0","tor_ip":"t0","tor_port":"7"}]},
  {"pod_name":"job-worker-1","server_id":"10.0.0.2","device":[
    {"device_id":"0","device_ip":"1.1.1.3","rank_id":"2","tor_ip":"t0","tor_port":"9"}]}]})";

TEST(FormatsTest, TorList) {
  const Topology topology = Read(kTorList, "tor-list");
  EXPECT_EQ(Path(topology, "10.0.0.1"), "t0|t1");  // by device_id
  EXPECT_EQ(Path(topology, "job-worker-0"), "t0|t1");
  EXPECT_EQ(Path(topology, "10.0.0.2"), "t0");
}

TEST(FormatsTest, TorListPacked) {
  std::string packed = PackedGzip(kTorList);
  packed.insert(40, "\n");  // base64 programs break lines
  EXPECT_EQ(Path(Read(packed, "tor-list"), "10.0.0.1"), "t0|t1");
  std::string damaged = PackedGzip(kTorList);
  damaged[60] = damaged[60] == 'A' ? 'B' : 'A';
  for (const char* format : {"tor-list", "auto"}) {
    ExpectError(PackedGzip(kTorList).substr(0, 100), format, "the gzip data is cut");
    EXPECT_NE(Error(damaged, format), "no error");
  }
  ExpectError("H4sI!", "tor-list", "not base64");
  ExpectError(absl::Base64Escape("no gzip at all"), "tor-list", "broken gzip data");
}

TEST(FormatsTest, TorListThatIsNotCompletedYetIsNoError) {
  const auto topology = ReadTopology(R"({"status":"initializing"})", TopologyFormat::kAuto);
  EXPECT_EQ(topology.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(topology.status().message().find("initializing"), std::string::npos);
}

TEST(FormatsTest, TorListErrors) {
  ExpectError(R"({"status":"completed","server_list":[]})", "tor-list", "no node");
  ExpectError(R"({"server_list":[{"server_id":"a","device":[{"device_id":"0"}]}]})", "tor-list",
              "server_list[0].device[0]: tor_ip");
  ExpectError(R"({"server_list":[{"server_id":"a","device":[]}]})", "tor-list", "server_list[0]: device is empty");
  ExpectError(R"({"server_list":[{"server_id":"a","device":[{"tor_ip":"t"}]},
                                 {"server_id":"a","device":[{"tor_ip":"u"}]}]})",
              "tor-list", R"(node "a" comes twice with different switches, "t" and "u")");
  ExpectError(R"({"server_list":[{"server_id":"a","device":[{"tor_ip":"t"}]},
                                 {"server_id":"a","device":[{"tor_ip":"t"},{"tor_ip":"u"}]}]})",
              "tor-list", R"(switches, none and "u")");
}

const char kTorInfo[] = R"({"version":"1.0","tor_count":2,"server_list":[
  {"tor_id":0,"tor_ip":"10.9.0.1","server":[{"server_ip":"10.0.0.1","npu_count":8,"slice_id":0},
                                            {"server_ip":"10.0.0.2","npu_count":8,"slice_id":1}]},
  {"tor_id":1,"tor_ip":"10.9.0.2","server":[{"server_ip":"10.0.0.3","npu_count":8,"slice_id":0}]}]})";

TEST(FormatsTest, TorNodeCm) {
  const nlohmann::json config_map = {{"kind", "ConfigMap"},
                                     {"data", {{"tor_level", "double_layer"}, {"tor_info", kTorInfo}}}};
  const nlohmann::json bare = {{"tor_level", "single_layer"}, {"tor_info", nlohmann::json::parse(kTorInfo)}};
  for (const std::string& content : {std::string(kTorInfo), config_map.dump(2), bare.dump()}) {
    const Topology topology = Read(content, "tor-node-cm");
    EXPECT_EQ(Path(topology, "10.0.0.2"), "10.9.0.1");
    EXPECT_EQ(Path(topology, "10.0.0.3"), "10.9.0.2");
  }
  ExpectError(R"({"data":{"tor_info":"{\"server_list\":["}})", "tor-node-cm", "tor_info: not JSON");
  ExpectError(R"({"data":{"tor_info":7}})", "tor-node-cm", "server_list is not a list");
  ExpectError(R"({"data":{}})", "tor-node-cm", "server_list is not a list");
  ExpectError(R"({"server_list":[{"tor_ip":"t","server":[{"server_ip":"a"}]},{"tor_ip":"t","server":[]}]})",
              "tor-node-cm", R"(switch "t" is defined twice)");
  ExpectError(R"({"server_list":[{"tor_ip":"t","server":[{"server_ip":"a"}]},
                                 {"tor_ip":"u","server":[{"server_ip":"a"}]}]})",
              "tor-node-cm", R"(node "a" comes twice)");
}

TEST(FormatsTest, Slurm) {
  const Topology topology = Read(
      "SwitchName=s0 Nodes=n[01-03,7],x LinkSpeed=10  # another\r\n"
      "switchname=s1\tNODES=a[0-1]b[2-3] \\\n"
      "  LinkSpeed=5\n"
      "LinkSpeed=5 SwitchName=s2 switches=s[0-1]\n"
      "SwitchName=other Nodes=z[098-100]",
      "slurm");
  EXPECT_EQ(Path(topology, "n01"), "s0 s2");
  EXPECT_EQ(Path(topology, "n1"), "unknown");
  EXPECT_EQ(Path(topology, "n03"), "s0 s2");
  EXPECT_EQ(Path(topology, "n7"), "s0 s2");
  EXPECT_EQ(Path(topology, "x"), "s0 s2");
  for (const char* name : {"a0b2", "a0b3", "a1b2", "a1b3"}) EXPECT_EQ(Path(topology, name), "s1 s2");
  EXPECT_EQ(Path(topology, "z098"), "other");
  EXPECT_EQ(Path(topology, "z100"), "other");
  EXPECT_EQ(topology.nodes.size(), 12U);
}

TEST(FormatsTest, SlurmErrors) {
  ExpectError("SwitchName=s Nodes=n[3-1]", "slurm", "the range \"3-1\" goes down");
  ExpectError("SwitchName=s Nodes=n[1-", "slurm", "a bracket has no partner");
  ExpectError("SwitchName=s Nodes=n[]", "slurm", "is not a number");
  ExpectError("SwitchName=s Nodes=n[a-b]", "slurm", "is not a number");
  ExpectError("SwitchName=s Nodes=n[1-]", "slurm", "is not a range");
  ExpectError("SwitchName=s Nodes=n[1,,2]", "slurm", "is not a number");
  ExpectError("SwitchName=s Nodes=n[1-2]]", "slurm", "a bracket has no partner");
  ExpectError("SwitchName=s Nodes=n[[1-2]]", "slurm", "a bracket has no partner");
  ExpectError("SwitchName=s Nodes=n1,,n2", "slurm", "a name is empty");
  ExpectError("SwitchName=s Nodes=n[0-99999999999]", "slurm", "takes more than 64 MiB");
  ExpectError("SwitchName=s Nodes=n[0-999][0-999][0-999][0-999]", "slurm", "takes more than 64 MiB");
  ExpectError("SwitchName=s Nodes=n[99999999999999999999]", "slurm", "is not a number");
  ExpectError("SwitchName=s Nodes=a\nSwitchName=s Nodes=b", "slurm", "line 2: switch \"s\" is defined twice");
  ExpectError("SwitchName=s Nodes=a\nSwitchName=t Nodes=a", "slurm", "node \"a\" comes twice");
  ExpectError("SwitchName=s Nodes=a Switches=t", "slurm", "has both Nodes and Switches");
  ExpectError("SwitchName=s", "slurm", "has neither Nodes nor Switches");
  ExpectError("SwitchName=s Nodes=a\nSwitchName=t Switches=s,tor9", "slurm", "switch \"tor9\" is named as a child");
  ExpectError("SwitchName=s Nodes=a\nSwitchName=t Switches=s\nSwitchName=u Switches=s", "slurm",
              "switch \"s\" is below two switches, \"t\" and \"u\"");
  ExpectError("SwitchName=l Nodes=a\nSwitchName=s Switches=t\nSwitchName=t Switches=s", "slurm", "is below itself");
  ExpectError("SwitchName=s Switches=s", "slurm", "is below itself");
  ExpectError("SwitchName=s Nod", "slurm", "\"Nod\" is not SwitchName=");
  ExpectError("SwitchName=s Nodes=", "slurm", "has no value");
  ExpectError("Nodes=a", "slurm", "no SwitchName=");
  ExpectError("BlockName=b Nodes=", "slurm", "has no value");
  ExpectError("BlockName=b", "slurm", "block \"b\" has Nodes, and nothing else");
  ExpectError("BlockName=b Switches=s", "slurm", "block \"b\" has Nodes, and nothing else");
  ExpectError("BlockName=b Nodes=a\nBlockName=b Nodes=c", "slurm", "switch \"b\" is defined twice");
  ExpectError("BlockName=b Nodes=a\nBlockSizes=2,x", "slurm", "block size \"x\" is no number");
}

TEST(FormatsTest, SlurmBlocks) {
  const Topology topology = Read(
      "# rack=1\nBlockName=a Nodes=n[0-1]\nBlockName=b Nodes=n[2-3]\nblockname=c nodes=n4\nBlockSizes=2,4", "slurm");
  EXPECT_EQ(Path(topology, "n1"), "a blocks of 4, number 0");
  EXPECT_EQ(Path(topology, "n2"), "b blocks of 4, number 0");
  EXPECT_EQ(Path(topology, "n4"), "c blocks of 4, number 1");
  EXPECT_EQ(Path(Read("BlockSizes=2\nBlockName=a Nodes=n[0-2]", "slurm"), "n2"), "a");
}

TEST(FormatsTest, SlurmYaml) {
  const std::string tree = R"(---
- topology: other
  cluster_default: false
  flat: true
- topology: 'tree'   # the default
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - {switch: s1, nodes: "n[0-1]"}
      - switch: s2
        nodes: n2
)";
  EXPECT_EQ(Path(Read(tree, "slurm"), "n1"), "s1 root");
  const std::string block =
      "- topology: b\n  block:\n    block_sizes:\n    - 1\n    - 2\n    blocks:\n    - block: x\n      nodes: n0\n    "
      "- block: y\n      nodes: n1\n";
  EXPECT_EQ(Path(Read(block, "slurm"), "n1"), "y blocks of 2, number 0");
  ExpectError("- topology: b\n  flat: true\n", "slurm", "no topology with tree or block");
  ExpectError("- topology: b\n  tree:\n    switches:\n      - switch: s\n", "slurm",
              "switch \"s\" has nodes or children");
  ExpectError("- topology: b\n  tree: &x\n", "slurm", "line 2: \"tree: &x\" is YAML that is not read here");
}

TEST(FormatsTest, YamlErrors) {
  for (const char* text : {"a: b\n  c: d\n e: f\n", "a: [b\n", "a: {b}\n", "a: \"b\n", "a: b\na: c\n", "- a\nb\n",
                           "a: *b\n", "\"a\\q\": b\n", "a:\n    b: c\n  d: e\n"}) {
    EXPECT_NE(Error(text, "hypernode"), "no error") << text;
  }
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  ExpectError(deep, "hypernode", "nested too deeply");
  ExpectError("a: " + std::string(100'000, '['), "hypernode", "nested too deeply");
}

// Two ToRs with two hosts each; what is above is put together from `middle`.
std::string Fabric(const std::string& uplinks0, const std::string& uplinks1, const std::string& middle) {
  const auto tor = [](int i, const std::string& uplinks) {
    return fmt::format(
        "vendid=0x2c9\ndevid=0xb924\nsysimgguid=0x1\nswitchguid=0x20{0}(20{0})\n"
        "Switch\t8 \"S-t{0}\"\t\t# \"tor{0}\" base port 0 lid 3 lmc 0\n"
        "[1]\t\"H-{0}0\"[1](1) \t\t# \"host{0}0 mlx5_0\" lid 1 4xSDR\n"
        "[2]\t\"H-{0}1\"[1](1) \t\t# \"host{0}1 mlx5_0\" lid 2 4xSDR\n{1}\n",
        i, uplinks);
  };
  std::string text = "#\n# Topology file: generated on some day\n#\n\n" + tor(0, uplinks0) + tor(1, uplinks1) + middle;
  for (const char* host : {"00", "01", "10", "11"}) {
    text += fmt::format(
        "vendid=0x2c9\ncaguid=0x1\nCa\t2 \"H-{0}\"\t\t# \"host{0} mlx5_0\"\n"
        "[1](100) \t\"S-t{1}\"[1]\t\t# lid 1 lmc 0 \"tor{1}\" lid 3 4xSDR\n\n",
        host, host[0]);
  }
  return text;
}

std::string Spine(const std::string& id, const std::vector<std::string>& peers) {
  std::string text = fmt::format("vendid=0x2c9\nSwitch\t8 \"S-{0}\"\t\t# \"{0}\" base port 0 lid 9 lmc 0\n", id);
  for (size_t i = 0; i < peers.size(); ++i)
    text += fmt::format("[{0}]\t\"S-{1}\"[7]\t\t# \"x\" lid 1\n", i + 1, peers[i]);
  return text + "\n";
}

TEST(FormatsTest, Ibnetdiscover) {
  const std::string up = "[7]\t\"S-top\"[1]\t\t# \"top\" lid 9 4xSDR\n[8]\t\"S-top\"[3]\t\t# \"top\" lid 9 4xSDR\n";
  const Topology topology = Read(Fabric(up, up, Spine("top", {"t0", "t1", "t0", "t1"})), "ibnetdiscover");
  EXPECT_EQ(Path(topology, "host00"), "S-t0 S-top");
  EXPECT_EQ(Path(topology, "host11"), "S-t1 S-top");
  EXPECT_EQ(topology.nodes.size(), 4U);
}

TEST(FormatsTest, IbnetdiscoverTreeIsRootedAtItsCentre) {
  // t0 - m0 - top - m1 - t1
  const Topology topology =
      Read(Fabric("[7]\t\"S-m0\"[1]\n", "[7]\t\"S-m1\"[1]\n",
                  Spine("m0", {"t0", "top"}) + Spine("top", {"m0", "m1"}) + Spine("m1", {"t1", "top"})),
           "ibnetdiscover");
  EXPECT_EQ(Path(topology, "host00"), "S-t0 S-m0 S-top");
  EXPECT_EQ(Path(topology, "host10"), "S-t1 S-m1 S-top");
}

TEST(FormatsTest, IbnetdiscoverFatTreeHasOneRoot) {
  const std::string up = "[7]\t\"S-a\"[1]\n[8]\t\"S-b\"[1]\n";
  const Topology topology = Read(Fabric(up, up, Spine("a", {"t0", "t1"}) + Spine("b", {"t0", "t1"})), "ibnetdiscover");
  EXPECT_EQ(Path(topology, "host00"), "S-t0");
  EXPECT_EQ(Path(topology, "host10"), "S-t1");
  EXPECT_EQ(Path(Read(Fabric("[8]\t\"S-t1\"[8]\n", "[8]\t\"S-t0\"[8]\n", ""), "ibnetdiscover"), "host10"), "S-t1");
}

TEST(FormatsTest, IbnetdiscoverSwitchEnginesAreNoHosts) {
  const std::string up = "[7]\t\"S-top\"[1]\n";
  const std::string engine =
      "Ca\t1 \"H-e0\"\t\t# \"Mellanox Technologies Aggregation Node\"\n[1](5)\t\"S-top\"[9]\t\t# lid 1\n\n"
      "Ca\t1 \"H-e1\"\t\t# \"Mellanox Technologies Aggregation Node\"\n[1](5)\t\"S-t0\"[9]\t\t# lid 1\n\n";
  const Topology topology = Read(Fabric(up, up, Spine("top", {"t0", "t1"}) + engine), "ibnetdiscover");
  EXPECT_EQ(topology.nodes.size(), 4U);
  EXPECT_EQ(Path(topology, "host00"), "S-t0 S-top");
}

// A second card on another switch is a second rail, in any order of the file's entries.
TEST(FormatsTest, IbnetdiscoverRails) {
  const std::string up = "[7]\t\"S-top\"[1]\n";
  const std::string whole = Fabric(up, up, Spine("top", {"t0", "t1"}));
  const auto card = [](const std::string& id, const std::string& description, const std::string& tor) {
    return fmt::format("Ca\t1 \"H-{}\"\t# \"{}\"\n[1](1)\t\"S-{}\"[5]\n", id, description, tor);
  };
  const Topology rails =
      Read(whole + card("8", "host00 mlx5_10", "top") + card("9", "host00 mlx5_2", "t1"), "ibnetdiscover");
  const int32_t node = rails.node_by_name.at("host00");
  ASSERT_EQ(rails.LeavesOf(node).size(), 3U);
  EXPECT_EQ(rails.switch_name[static_cast<size_t>(rails.LeavesOf(node)[1])], "S-t1") << "mlx5_2 is before mlx5_10";
  EXPECT_EQ(rails.LeavesOf(rails.node_by_name.at("host01")).size(), 1U);
  EXPECT_EQ(Path(rails, "host01"), "S-t0") << "rails have no inner switches";
  // Two cards on one switch are one rail.
  EXPECT_EQ(Path(Read(whole + card("9", "host00 mlx5_1", "t0"), "ibnetdiscover"), "host00"), "S-t0 S-top");
}

TEST(FormatsTest, IbnetdiscoverCardsWithoutAHostDoNotMatter) {
  const std::string up = "[7]\t\"S-top\"[1]\n";
  std::string text = Fabric(up, up, Spine("top", {"t0", "t1"}));
  int id = 100;
  for (const char* name :
       {"MT4129 ConnectX7   Mellanox Technologies", "MT4123", "localhost mlx5_0", "localhost HCA-1", ""}) {
    for (const char* leaf : {"t0", "t1"})
      text += fmt::format("Ca\t1 \"H-{}\"\t# \"{}\"\n[1](1)\t\"S-{}\"[5]\n", id++, name, leaf);
  }
  text += "Ca\t1 \"H-9\"\t# \"host99 mlx5_0\"\n";  // without a link
  const Topology topology = Read(text, "ibnetdiscover");
  EXPECT_EQ(topology.nodes.size(), 4U);
  EXPECT_EQ(Path(topology, "host11"), "S-t1 S-top");
}

TEST(FormatsTest, IbnetdiscoverErrors) {
  const std::string up = "[7]\t\"S-top\"[1]\n";
  const std::string whole = Fabric(up, up, Spine("top", {"t0", "t1"}));
  for (const double part : {0.2, 0.4, 0.6, 0.8}) {
    EXPECT_NE(Error(whole.substr(0, static_cast<size_t>(part * static_cast<double>(whole.size()))), "ibnetdiscover"),
              "no error")
        << part;
  }
  ExpectError(whole + Spine("top", {}), "ibnetdiscover", "switch \"S-top\" is defined twice");
  ExpectError("[1]\t\"S-1\"[2]\n", "ibnetdiscover", "line 1");
  ExpectError("Switch\t8 \"S-1", "ibnetdiscover", "without a GUID");
}

const char kHypernodes[] = R"({"apiVersion":"v1","kind":"List","items":[
  {"kind":"HyperNode","metadata":{"name":"s0"},"spec":{"tier":1,"members":[
    {"type":"Node","selector":{"exactMatch":{"name":"n0"}}},{"type":"Node","selector":{"exactMatch":{"name":"n1"}}}]}},
  {"kind":"HyperNode","metadata":{"name":"s2"},"spec":{"tier":2,"members":[
    {"type":"HyperNode","selector":{"exactMatch":{"name":"s0"}}},
    {"type":"HyperNode","selector":{"exactMatch":{"name":"s1"}}}]}},
  {"kind":"HyperNode","metadata":{"name":"s1"},"spec":{"tier":1,"members":[
    {"type":"Node","selector":{"exactMatch":{"name":"n2"}}}]}}]})";

TEST(FormatsTest, Hypernode) {
  const nlohmann::json list = nlohmann::json::parse(kHypernodes);
  for (const std::string& content : {std::string(kHypernodes), list["items"].dump()}) {
    const Topology topology = Read(content, "hypernode");
    EXPECT_EQ(Path(topology, "n1"), "s0 s2");
    EXPECT_EQ(Path(topology, "n2"), "s1 s2");
  }
  EXPECT_EQ(Path(Read(list["items"][0].dump(), "hypernode"), "n0"), "s0");
  nlohmann::json twice = list;
  twice["items"].push_back(list["items"][0]);
  ExpectError(twice.dump(), "hypernode", "switch \"s0\" is defined twice");
  nlohmann::json unknown = list;
  unknown["items"].erase(2);
  ExpectError(unknown.dump(), "hypernode", "switch \"s1\" is named as a child");
  nlohmann::json other = list;
  other["items"][0]["spec"]["members"][0]["selector"] = {{"fieldMatch", {{"name", "n0"}}}};
  ExpectError(other.dump(), "hypernode", "items[0].spec.members[0]: the selector is not exactMatch");
  nlohmann::json cycle = list;
  cycle["items"][0]["spec"]["members"][0] = {{"type", "HyperNode"}, {"selector", {{"exactMatch", {{"name", "s2"}}}}}};
  ExpectError(cycle.dump(), "hypernode", "is below itself");
  ExpectError(R"({"metadata":{"name":"x"},"spec":{}})", "hypernode", "members is not a list");
  ExpectError("[1]", "hypernode", "items[0]");
}

nlohmann::json WithSelector(const nlohmann::json& selector, const char* type = "Node") {
  nlohmann::json list = nlohmann::json::parse(kHypernodes);
  list["items"][type == std::string("Node") ? 0 : 1]["spec"]["members"] = {{{"type", type}, {"selector", selector}}};
  return list;
}

TEST(FormatsTest, HypernodePatterns) {
  const std::vector<std::string> job = {"n0", "n1", "n2", "m0"};
  const auto read = [&](const nlohmann::json& list) {
    auto topology = ReadTopology(list.dump(), TopologyFormat::kAuto, kDefaultInputBytes, job);
    EXPECT_TRUE(topology.ok()) << topology.status();
    return topology.ok() ? *std::move(topology) : Topology();
  };
  const Topology nodes = read(WithSelector({{"regexMatch", {{"pattern", "^[nm][01]$"}}}}));
  EXPECT_EQ(Path(nodes, "m0"), "s0 s2");
  EXPECT_EQ(Path(nodes, "n1"), "s0 s2");
  EXPECT_EQ(Path(nodes, "n2"), "s1 s2");
  EXPECT_EQ(Path(read(WithSelector({{"regexMatch", {{"pattern", "s[01]"}}}}, "HyperNode")), "n2"), "s1 s2");
  ExpectError(WithSelector({{"regexMatch", {{"pattern", "n("}}}}).dump(), "hypernode",
              "pattern \"n(\" is no regular expression");
}

TEST(FormatsTest, HypernodeLabels) {
  nlohmann::json list = WithSelector({{"labelMatch", {{"matchLabels", {{"rack", "r1"}}}}}});
  ExpectError(list.dump(), "hypernode", "labelMatch needs the nodes' labels: kubectl get hypernodes,nodes -o json");
  for (const char* name : {"n0", "n1", "n2"}) {
    list["items"].push_back(
        {{"kind", "Node"},
         {"metadata", {{"name", name}, {"labels", {{"rack", name == std::string("n2") ? "r2" : "r1"}}}}}});
  }
  EXPECT_EQ(Path(Read(list.dump(), "hypernode"), "n1"), "s0 s2");
  const nlohmann::json expression = {{"key", "rack"}, {"operator", "In"}, {"values", {"r1", "r3"}}};
  list["items"][0]["spec"]["members"][0]["selector"] = {{"labelMatch", {{"matchExpressions", {expression}}}}};
  EXPECT_EQ(Path(Read(list.dump(), "hypernode"), "n0"), "s0 s2");
}

// As `kubectl get -o yaml` and manifests have them.
TEST(FormatsTest, HypernodeYaml) {
  const std::string manifest = R"(apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"x","kind": "HyperNode"}
  name: s0
spec:
  tier: 1
  members:
  - type: Node
    selector:
      exactMatch:
        name: "n0"
---
# the other
kind: HyperNode
metadata: {name: s1}
spec:
  members:
    - type: HyperNode
      selector: {exactMatch: {name: s0}}
---
)";
  EXPECT_EQ(Path(Read(manifest, "hypernode"), "n0"), "s0 s1");
  std::string list =
      "apiVersion: v1\nkind: List\nitems:\n- kind: HyperNode\n  metadata:\n    name: s0\n  spec:\n    members:\n"
      "    - selector:\n        exactMatch:\n          name: n0\n      type: Node\n";
  EXPECT_EQ(Path(Read(list, "hypernode"), "n0"), "s0");
  EXPECT_EQ(Path(Read("\xef\xbb\xbf" + list, "hypernode"), "n0"), "s0");
}

TEST(FormatsTest, Csv) {
  const Topology topology =
      Read("# ours\nnode,level1,level2\nn0,a,x\r\nn1, a ,x\n\n# more\nn2,b,x\nn3,x,y\nn3,x,y", "csv");
  EXPECT_EQ(Path(topology, "n1"), "a x");
  EXPECT_EQ(Path(topology, "n2"), "b x");
  EXPECT_EQ(Path(topology, "n3"), "x y") << "names count on their level only";
  EXPECT_EQ(topology.nodes.size(), 4U);
  ExpectError("n0,a,x\n", "csv", "line 1: \"n0,a,x\" is not the header");
  ExpectError("node\n", "csv", "is not the header");
  ExpectError("node,level2\n", "csv", "is not the header");
  ExpectError("node,level1\nn0,a\nn1\n", "csv", "line 3: \"n1\" has 1 fields, the header has 2");
  ExpectError("node,level1\nn0,a,b\n", "csv", "has 3 fields");
  ExpectError("node,level1\nn0,\n", "csv", "empty field");
  ExpectError("node,level1\n", "csv", "no node");
  ExpectError("#\n", "csv", "no header");
  ExpectError("node,level1\nn0,a\nn0,b\n", "csv", "node \"n0\" comes twice");
  ExpectError("node,level1,level2\nn0,a,x\nn1,a,y\n", "csv", "switch \"a\" is below two switches, \"x\" and \"y\"");
}

std::string Rank2(int rank, int local, const std::string& leaf, const std::string& top) {
  return fmt::format(R"({{"rank_id":{},"local_id":{},"device_id":{},"level_list":[
      {{"net_layer":1,"net_instance_id":"{}","net_type":"CLOS"}},
      {{"net_layer":0,"net_instance_id":"{}","net_type":"TOPO_FILE_DESC"}}]}})",
                     rank, local, local, top, leaf);
}

std::string Table2(const std::vector<std::string>& ranks) {
  return fmt::format(R"({{"version":"2.0","status":"completed","rank_count":{},"rank_list":[{}]}})", ranks.size(),
                     fmt::join(ranks, ","));
}

TEST(FormatsTest, RankTable2) {
  const Topology topology = Read(Table2({Rank2(2, 0, "b", "x"), Rank2(0, 0, "a", "x"), Rank2(1, 1, "a", "x"),
                                         Rank2(3, 3, "b", "x"), Rank2(4, 3, "a", "x")}),
                                 "ranktable2");
  ASSERT_EQ(topology.nodes.size(), 3U);  // ranks 0 1, 2 3, 4
  EXPECT_TRUE(topology.by_old_rank);
  EXPECT_EQ(topology.LeavesOf(0)[0], topology.LeavesOf(2)[0]);
  EXPECT_NE(topology.LeavesOf(0)[0], topology.LeavesOf(1)[0]);
  ExpectError(Table2({Rank2(0, 0, "a", "x"), Rank2(1, 1, "b", "x")}), "ranktable2",
              "rank_list[1]: its net_instance_id");
  ExpectError(Table2({Rank2(0, 0, "a", "x"), Rank2(0, 0, "a", "x")}), "ranktable2", "rank_id 0 comes twice");
  ExpectError(Table2({Rank2(0, 0, "a", "x"), Rank2(1, 0, "a", "y")}), "ranktable2", "is below two switches");
  ExpectError(R"({"version":"2.0","rank_list":[{"rank_id":0,"local_id":0,"level_list":[]}]})", "ranktable2",
              "no net_layer 0");
  ExpectError(R"({"version":"1.0","rank_list":[]})", "ranktable2", "version is not \"2.0\"");
}

TEST(FormatsTest, UnknownContent) {
  for (const char* content : {"", " \n", "hello\n", "\x1f\x8b\x08", "{}", "7", "\"x\"", "[]", "{\"data\":3}", "null",
                              "<system version=\"1\"></system>", "# only a comment\n", "\xff\xfe\x00"}) {
    EXPECT_NE(Error(content, "auto"), "no error") << content;
  }
  ExpectError("<system/>", "auto", "NCCL");
  ExpectError(std::string("node,level1\0", 12), "auto", "byte 11 is 0");
  ExpectError("{\"server_list\":[\xff\"]}", "auto", "not JSON");
  EXPECT_FALSE(TopologyFormatFromName("yaml").has_value());
}

TEST(FormatsTest, EveryJsonThatIsCutIsRefused) {
  for (const std::string& whole : {std::string(kTorList), std::string(kTorInfo), std::string(kHypernodes)}) {
    for (size_t length = 1; length < whole.size(); ++length) {
      ASSERT_FALSE(ReadTopology(whole.substr(0, length), TopologyFormat::kAuto).ok()) << length;
    }
  }
}

TEST(FormatsTest, DeepInputsAreBounded) {
  const int kDepth = 1000000;
  ExpectError(std::string(kDepth, '['), "auto", "nested deeper than 64");
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"items\":[";
  ExpectError(nested, "hypernode", "nested deeper than 64");
}

TEST(FormatsTest, AMillionSwitchesDeep) {
  const int kDepth = 1000000;
  std::string text = "SwitchName=s0 Nodes=n[0-3]\n";
  for (int i = 1; i < kDepth; ++i) fmt::format_to(std::back_inserter(text), "SwitchName=s{} Switches=s{}\n", i, i - 1);
  constexpr size_t kMaxBytes = size_t{1} << 30;
  auto topology = ReadTopology(text, TopologyFormat::kSlurm, kMaxBytes);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const auto plan = PlanRoutes(NumberedJob(4), *topology, UnknownNodes::kLast);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->outcome, RoutePlan::Outcome::kIdentity);
  text += fmt::format("SwitchName=t Switches=s{}\nSwitchName=u Switches=t,w\nSwitchName=w Switches=u\n", kDepth - 1);
  EXPECT_THAT(std::string(ReadTopology(text, TopologyFormat::kSlurm, kMaxBytes).status().message()),
              HasSubstr("is below itself"));
}

// What is small as a file and large in memory.
TEST(FormatsTest, WhatAFileBecomesCounts) {
  constexpr size_t kLimit = size_t{1} << 20;
  const auto repeated = [](const std::string& begin, const std::string& piece, size_t count) {
    std::string text = begin;
    for (size_t i = 0; i < count; ++i) text += piece;
    return text;
  };
  const std::string config_map = nlohmann::json{{"data", {{"tor_info", repeated("[0", ",[]", 40'000) + "]"}}}}.dump();
  std::string csv = "node,level1\n";
  for (int i = 0; i < 40'000; ++i) fmt::format_to(std::back_inserter(csv), "{},a\n", i);
  const std::pair<const char*, std::string> cases[] = {
      {"arrays", repeated("[0", ",[]", 40'000) + "]"},
      {"objects", repeated("{\"items\":[0", ",{}", 40'000) + "]}"},
      {"numbers", repeated("[0", ",0", 150'000) + "]"},
      {"strings", repeated("[0", ",\"\"", 40'000) + "]"},
      {"members", repeated("[0", ",{\"a\":0}", 20'000) + "]"},
      {"zeros in gzip", PackedGzip(std::string(size_t{2} << 20, '0'))},
      {"arrays in gzip", PackedGzip(repeated("[0", ",[]", 40'000) + "]")},
      {"JSON in a string of JSON", config_map},
      {"names of one line", "SwitchName=a Nodes=n[0-40000]\n"},
      {"switches of one line", "SwitchName=a Switches=n[0-40000]\n"},
      {"short lines", csv},
      {"ports", repeated("Switch\t1 \"S\" # \"S\"\n", "[1] \"S\"[1]\n", 40'000)},
      {"bytes", std::string(kLimit + 1, ' ')},
  };
  for (const auto& [what, text] : cases) {
    const absl::Status status = ReadTopology(text, TopologyFormat::kAuto, kLimit).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("takes more than 1 MiB")) << what;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << what;
  }
}

TEST(FormatsTest, ALargeNetworkIsBelowTheLimit) {
  nlohmann::json servers = nlohmann::json::array();
  for (int i = 0; i < 4'000; ++i) {
    nlohmann::json devices = nlohmann::json::array();
    for (int k = 0; k < 8; ++k) {
      devices.push_back({{"device_id", std::to_string(k)}, {"tor_ip", fmt::format("10.{}.{}.1", k, i / 128)}});
    }
    servers.push_back({{"server_id", fmt::format("node-{}", i)}, {"device", devices}});
  }
  const std::string text = nlohmann::json{{"status", "completed"}, {"server_list", servers}}.dump();
  constexpr size_t kMaxBytes = kDefaultInputBytes * 4 / 10;  // as 10,000 nodes have it
  EXPECT_TRUE(ReadTopology(text, TopologyFormat::kAuto, kMaxBytes).ok());
  EXPECT_TRUE(ReadTopology(PackedGzip(text), TopologyFormat::kAuto, kMaxBytes).ok());
}

}  // namespace
}  // namespace taskd::route
