#include "agent/ranktable/reader.h"

#include <array>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "agent/ranktable/field_reader.h"
#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

constexpr int64_t kMaxRank = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxLevels = 8;  // of a rank

using Field = RankTableField;
using Slot = RankTableSlot;

class TableReader : private RankTableFieldReader {
 public:
  TableReader(ChipRules chip, RankTable& table, RankTableFacts& facts, RankTableErrors& errors)
      : RankTableFieldReader(table, errors), chip_(chip), facts_(facts) {}

  void Read(RankTableCheck& check) {
    if (reader_.First() != '{') {
      errors_.Add("", reader_.Begin(), "a rank table is a JSON object");
      return;
    }
    root_ = reader_.Begin();
    reader_.ForEachMember([&](std::string_view key) {
      for (auto& [name, begin] : members_) {
        if (name == key) begin = reader_.Begin();
      }
    });
    if (!ReadVersion()) return;
    check.version = RankTableVersionName(table_.version);
    if (!ReadStatus(check)) return;
    facts_.readable = true;
    ReadLists();
    facts_.complete = complete_;
  }

 private:
  void ReadLists() {
    switch (table_.version) {
      case RankTableVersion::kStandard:
        return ReadStandard();
      case RankTableVersion::k1_0:
        return ReadServerList();
      case RankTableVersion::k1_1:
        return ReadNodeList();
      case RankTableVersion::k1_2:
        ReadServerList();
        return ReadSuperPodList();
      case RankTableVersion::k2_0:
        return ReadRankList();
    }
  }

  static constexpr uint32_t kAbsent = std::numeric_limits<uint32_t>::max();

  bool is_2_0() const { return table_.version == RankTableVersion::k2_0; }

  uint32_t BeginOf(std::string_view name) const {
    for (const auto& [known, begin] : members_) {
      if (known == name) return begin;
    }
    return kAbsent;
  }

  // ---- the document

  template <typename F>
  size_t ReadRootList(std::string_view name, F&& f) {
    const uint32_t begin = BeginOf(name);
    if (begin == kAbsent) {
      MissingList(name, root_);
      return 0;
    }
    reader_.Seek(begin);
    return ReadList(name, std::forward<F>(f));
  }

  void ReadRootScalar(const Slot& slot) {
    const uint32_t begin = BeginOf(slot.name);
    if (begin == kAbsent) return;
    reader_.Seek(begin);
    ReadScalar(slot);
  }

  bool ReadVersion() {
    if (BeginOf("version") != kAbsent) {
      Field version;
      reader_.Seek(BeginOf("version"));
      ReadScalar(Slot::Text("version", version));
      if (!version.good) return false;
      bool known = false;
      for (const RankTableVersion one :
           {RankTableVersion::k1_0, RankTableVersion::k1_1, RankTableVersion::k1_2, RankTableVersion::k2_0}) {
        if (version.text != RankTableVersionName(one)) continue;
        table_.version = one;
        known = true;
      }
      if (!known) {
        errors_.Add("version", version.span.begin,
                    fmt::format("version is {}; 1.0, 1.1, 1.2, 2.0 and a table without this field are known",
                                QuoteValue(version.text)));
        return false;
      }
    }
    if (chip_ != ChipRules::k950 || is_2_0()) return true;
    if (BeginOf("version") == kAbsent) {
      errors_.AddMissing("version", root_, "chip 950 takes 2.0 only");
    } else {
      errors_.Add("version", BeginOf("version"),
                  fmt::format("version is {}; chip 950 takes 2.0 only", RankTableVersionName(table_.version)));
    }
    return false;
  }

  bool ReadStatus(RankTableCheck& check) {
    Field status;
    ReadRootScalar(Slot::Text("status", status));
    if (!status.present) errors_.AddMissing("status", root_);
    if (!status.good || status.text == "completed") return true;
    check.initializing = status.text == "initializing";
    errors_.Add("status", status.span.begin,
                fmt::format("status is {}, not 'completed'; nothing else was looked at", QuoteValue(status.text)));
    return false;
  }

  // ---- devices

  RankTableDevice* NewDevice(uint32_t object) {
    if (table_.devices.size() == kMaxRankTableDevices) {
      if (errors_.Clean("device_list")) {
        errors_.Add("device_list", object, fmt::format("more than {} devices", kMaxRankTableDevices));
      }
      complete_ = false;
      return nullptr;
    }
    return &table_.devices.emplace_back();
  }

  int64_t MaxDeviceId() const { return chip_ == ChipRules::k910 ? 7 : 15; }

  // The next value: a device of version absent, 1.0 and 1.2.
  void ReadDevice() {
    RankTableDevice* device = NewDevice(reader_.Begin());
    if (device == nullptr) return;
    const bool is_1_2 = table_.version == RankTableVersion::k1_2;
    const bool has_ranks = table_.version != RankTableVersion::kStandard;
    Field device_id, device_ip, rank_id, super_device_id, device_port, backup_ip, backup_port, host_port;
    device->object = ReadObject(
        {Slot::Number("device_id", device_id, 0, MaxDeviceId()), Slot::Text("device_ip", device_ip),
         has_ranks ? Slot::Number("rank_id", rank_id, 0, kMaxRank) : Slot::Text("rank_id", rank_id),
         is_1_2 ? Slot::Number("super_device_id", super_device_id, 0, std::numeric_limits<uint32_t>::max())
                : Slot::Text("super_device_id", super_device_id),
         Slot::Number("device_port", device_port, 1, 65535), Slot::Number("backup_device_port", backup_port, 1, 65535),
         Slot::Number("host_port", host_port, 1, 65535), Slot::Text("backup_device_ip", backup_ip)},
        [](std::string_view) {});
    if (Require("device_id", device_id, device->object.begin)) device->device_id = device_id.number;
    if (has_ranks && Require("rank_id", rank_id, device->object.begin)) SetRank(rank_id, *device);
    CheckAddresses("device_ip", device_ip);
    CheckAddresses("backup_device_ip", backup_ip);
    if (device_ip.good) device->device_ip = device_ip.text;
    if (is_1_2) {
      Require("super_device_id", super_device_id, device->object.begin);
      facts_.super_device_ids.push_back(super_device_id.number);
    }
  }

  void SetRank(const Field& rank_id, RankTableDevice& device) {
    device.rank_id = rank_id.number;
    device.rank_id_value = rank_id.span;
  }

  // The next value: a rank of 1.1.
  void ReadHeterogeneousRank() {
    RankTableDevice* device = NewDevice(reader_.Begin());
    if (device == nullptr) return;
    Field device_id, rank_ip, rank_id, port;
    device->object = ReadObject({Slot::Number("device_id", device_id, 0, MaxDeviceId()), Slot::Text("rank_ip", rank_ip),
                                 Slot::Number("rank_id", rank_id, 0, kMaxRank), Slot::Number("port", port, 1, 65535)},
                                [](std::string_view) {});
    if (Require("device_id", device_id, device->object.begin)) device->device_id = device_id.number;
    if (Require("rank_id", rank_id, device->object.begin)) SetRank(rank_id, *device);
    if (!Require("rank_ip", rank_ip, device->object.begin)) return;
    if (rank_ip.text.empty()) errors_.Add("rank_ip", rank_ip.span.begin, "rank_ip is empty");
    device->device_ip = rank_ip.text;
  }

  // ---- servers

  // The next value: a server, with its devices in the list `list`.
  void ReadServer(std::string_view id, std::string_view list, bool is_instance = false) {
    if (table_.servers.size() == kMaxRankTableServers) {
      if (errors_.Clean("servers")) {
        errors_.Add("servers", reader_.Begin(), fmt::format("more than {} servers", kMaxRankTableServers));
      }
      complete_ = false;
      return;
    }
    RankTableServer server;
    server.first_device = static_cast<uint32_t>(table_.devices.size());
    Field server_id, host_ip, container_ip, pod_name, host_port, host_nic_ip, hardware_type, rank_id;
    bool has_list = false;
    server.object =
        ReadObject({Slot::Text(id, server_id), Slot::Text("host_ip", host_ip), Slot::Text("container_ip", container_ip),
                    Slot::Text("pod_name", pod_name), Slot::Text("host_nic_ip", host_nic_ip),
                    Slot::Text("hardware_type", hardware_type), Slot::Number("host_port", host_port, 1, 65535),
                    facts_.is_lab ? Slot::Number("rank_id", rank_id, 0, kMaxRank) : Slot::Text("rank_id", rank_id)},
                   [&](std::string_view key) {
                     if (key != list) return;
                     has_list = true;
                     ReadList(list, [&] {
                       if (table_.version == RankTableVersion::k1_1) return ReadHeterogeneousRank();
                       ReadDevice();
                     });
                   });
    if (!has_list) MissingList(list, server.object.begin);
    Require(id, server_id, server.object.begin);
    CheckLength(id, server_id, 64);
    server.server_id = server_id.text;
    CheckAddresses("host_ip", host_ip);
    CheckAddresses("container_ip", container_ip);
    if (host_ip.good) server.host_ip = host_ip.text;
    if (container_ip.good) server.container_ip = container_ip.text;
    if (pod_name.good) server.pod_name = pod_name.text;
    server.device_count = static_cast<uint32_t>(table_.devices.size()) - server.first_device;
    if (is_instance && facts_.is_lab) ReadLabRank(rank_id, list, server);
    table_.servers.push_back(server);
  }

  void ReadLabRank(const Field& rank_id, std::string_view list, const RankTableServer& instance) {
    const bool has_rank = Require("rank_id", rank_id, instance.object.begin);
    if (instance.device_count == 1) {
      if (has_rank) SetRank(rank_id, table_.devices[instance.first_device]);
    } else if (instance.device_count > 1) {
      complete_ = false;
      errors_.Add(list, FieldBegin(table_, instance.object.begin, list),
                  fmt::format("an instance with a rank_id has one device, not {}", instance.device_count));
    }
  }

  // ---- versions

  void ReadServerList() {
    Field server_count;
    ReadRootScalar(Slot::Number("server_count", server_count, 1, kMaxRank));
    const size_t count = ReadRootList("server_list", [&] { ReadServer("server_id", "device"); });
    if (count > 0) CheckCount("server_count", server_count, count);
  }

  void ReadNodeList() {
    Field collective_id, mode;
    ReadRootScalar(Slot::Text("collective_id", collective_id));
    Require("collective_id", collective_id, root_);
    CheckLength("collective_id", collective_id, 127);
    ReadRootScalar(Slot::Text("mode", mode));
    if (mode.good && mode.text != "tcp" && mode.text != "rdma") {
      errors_.Add("mode", mode.span.begin, fmt::format("mode is {}, not tcp or rdma", QuoteValue(mode.text)));
    }
    ReadRootList("node_list", [&] { ReadServer("node_addr", "ranks"); });
  }

  void ReadStandard() {
    Field deploy_mode, group_count;
    ReadRootScalar(Slot::Text("deploy_mode", deploy_mode));
    facts_.is_lab = deploy_mode.good && deploy_mode.text == "lab";
    ReadRootScalar(Slot::Number("group_count", group_count, 1, kMaxRank));
    const size_t count = ReadRootList("group_list", [&] { ReadGroup(); });
    if (count > 0) CheckCount("group_count", group_count, count);
    if (facts_.is_lab) MergeInstances();
  }

  void ReadGroup() {
    const size_t first_device = table_.devices.size();
    const bool was_complete = std::exchange(complete_, true);
    size_t instances = 0;
    bool has_list = false;
    Field group_name, device_count, instance_count, device_num, server_num;
    const JsonSpan group = ReadObject(
        {Slot::Text("group_name", group_name), Slot::Number("device_count", device_count, 1, kMaxRank),
         Slot::Number("instance_count", instance_count, 1, kMaxRank),
         Slot::Number("device_num", device_num, 1, kMaxRank), Slot::Number("server_num", server_num, 1, kMaxRank)},
        [&](std::string_view key) {
          if (key != "instance_list") return;
          has_list = true;
          instances = ReadList("instance_list", [&] { ReadServer("server_id", "devices", true); });
        });
    if (!has_list) MissingList("instance_list", group.begin);
    // A list that could not be read has no length.
    if (complete_) CheckCount("instance_count", instance_count, instances);
    if (complete_) CheckCount("device_count", device_count, table_.devices.size() - first_device);
    complete_ = complete_ && was_complete;
  }

  // Instances of one server become one server.
  void MergeInstances() {
    std::unordered_map<std::string_view, size_t> place;
    std::vector<RankTableServer> merged;
    std::vector<std::vector<RankTableDevice>> devices;
    for (const RankTableServer& instance : table_.servers) {
      const auto [found, is_new] = place.try_emplace(instance.server_id, merged.size());
      if (is_new) {
        merged.push_back(instance);
        devices.emplace_back();
      }
      const auto own = table_.DevicesOf(instance);
      devices[found->second].insert(devices[found->second].end(), own.begin(), own.end());
    }
    table_.devices.clear();
    for (size_t i = 0; i < merged.size(); ++i) {
      merged[i].first_device = static_cast<uint32_t>(table_.devices.size());
      merged[i].device_count = static_cast<uint32_t>(devices[i].size());
      table_.devices.insert(table_.devices.end(), devices[i].begin(), devices[i].end());
    }
    table_.servers = std::move(merged);
  }

  void ReadSuperPodList() {
    facts_.super_pod_list = BeginOf("super_pod_list");
    size_t members = 0;
    ReadRootList("super_pod_list", [&] {
      if (facts_.super_pods.size() == kMaxRankTableServers) return;
      RankTableSuperPod pod;
      Field id;
      bool has_list = false;
      const JsonSpan object = ReadObject({Slot::Text("super_pod_id", id)}, [&](std::string_view key) {
        if (key != "server_list") return;
        has_list = true;
        ReadList("server_list", [&] {
          Field server_id;
          const JsonSpan member = ReadObject({Slot::Text("server_id", server_id)}, [](std::string_view) {});
          Require("server_id", server_id, member.begin);
          if (++members <= kMaxRankTableServers) pod.members.push_back({server_id.text, server_id.span.begin});
        });
      });
      if (!has_list) MissingList("server_list", object.begin);
      if (Require("super_pod_id", id, object.begin) && id.text.empty()) {
        errors_.Add("super_pod_id", id.span.begin, "super_pod_id is empty");
      }
      pod.id = id.text;
      pod.begin = object.begin;
      facts_.super_pods.push_back(std::move(pod));
    });
  }

  void ReadRankList() {
    Field rank_count;
    ReadRootScalar(Slot::Number("rank_count", rank_count, 1, kMaxRank));
    Require("rank_count", rank_count, root_);
    const size_t count = ReadRootList("rank_list", [&] { ReadRank(); });
    if (count > 0) CheckCount("rank_count", rank_count, count);
  }

  void ReadRank() {
    RankTableDevice* device = NewDevice(reader_.Begin());
    if (device == nullptr) return;
    device->first_level = static_cast<uint32_t>(table_.levels.size());
    Field rank_id, local_id, device_id, device_port, host_port;
    device->object =
        ReadObject({Slot::Number("rank_id", rank_id, 0, kMaxRank), Slot::Number("local_id", local_id, 0, kMaxRank),
                    Slot::Number("device_id", device_id, 0, MaxDeviceId()),
                    Slot::Number("device_port", device_port, 1, 65535), Slot::Number("host_port", host_port, 1, 65535)},
                   [&](std::string_view key) {
                     if (key == "level_list") ReadLevels();
                   });
    device->level_count = static_cast<uint32_t>(table_.levels.size()) - device->first_level;
    const uint32_t object = device->object.begin;
    if (Require("rank_id", rank_id, object)) SetRank(rank_id, *device);
    if (Require("local_id", local_id, object)) device->local_id = local_id.number;
    if (Require("device_id", device_id, object)) device->device_id = device_id.number;
  }

  void ReadLevels() {
    const uint32_t begin = reader_.Begin();
    size_t count = 0;
    if (reader_.First() != '[') {
      errors_.Add("level_list", begin, "level_list is not a list");
      return;
    }
    reader_.ForEachElement([&] {
      if (++count > kMaxLevels) return;
      if (reader_.First() != '{') {
        errors_.Add("level_list", reader_.Begin(), "what is in level_list is an object");
        return;
      }
      Field net_layer, net_instance_id, net_type;
      ReadObject({Slot::Number("net_layer", net_layer, 0, kMaxRank), Slot::Text("net_instance_id", net_instance_id),
                  Slot::Text("net_type", net_type)},
                 [](std::string_view) {});
      if (net_layer.good && net_instance_id.good) table_.levels.push_back({net_layer.number, net_instance_id.text});
    });
    if (count > kMaxLevels) {
      errors_.Add("level_list", begin, fmt::format("level_list has {} levels, not at most {}", count, kMaxLevels));
    }
  }

  const ChipRules chip_;
  RankTableFacts& facts_;
  uint32_t root_ = 0;
  // Where the document's own members are.
  std::array<std::pair<std::string_view, uint32_t>, 13> members_ = {{{"version", kAbsent},
                                                                     {"status", kAbsent},
                                                                     {"server_count", kAbsent},
                                                                     {"server_list", kAbsent},
                                                                     {"super_pod_list", kAbsent},
                                                                     {"collective_id", kAbsent},
                                                                     {"mode", kAbsent},
                                                                     {"node_list", kAbsent},
                                                                     {"deploy_mode", kAbsent},
                                                                     {"group_count", kAbsent},
                                                                     {"group_list", kAbsent},
                                                                     {"rank_count", kAbsent},
                                                                     {"rank_list", kAbsent}}};
};

}  // namespace

void ReadRankTable(ChipRules chip, RankTable& table, RankTableFacts& facts, RankTableErrors& errors,
                   RankTableCheck& check) {
  TableReader(chip, table, facts, errors).Read(check);
}

uint32_t FieldBegin(const RankTable& table, uint32_t object, std::string_view field) {
  std::deque<std::string> decoded;
  JsonReader reader(*table.text, &decoded);
  reader.Seek(object);
  uint32_t begin = object;
  reader.ForEachMember([&](std::string_view key) {
    if (key == field) begin = reader.Begin();
  });
  return begin;
}

}  // namespace taskd::ranktable
