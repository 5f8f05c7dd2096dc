#include "agent/ranktable/rules.h"

#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

// Of several that ought to be equal, the first that differs from most.
template <typename T>
size_t FirstThatDiffers(const std::vector<T>& values) {
  // The usual case, of a table of any size.
  if (std::all_of(values.begin(), values.end(), [&](const T& value) { return value == values.front(); })) {
    return values.size();
  }
  std::map<T, size_t> times;
  for (const T& value : values) ++times[value];
  // Of two that are as frequent the one that came first is right.
  const auto better = [&](const T& a, const T& b) { return times[a] < times[b]; };
  const T usual = *std::max_element(values.begin(), values.end(), better);
  return static_cast<size_t>(
      std::find_if(values.begin(), values.end(), [&](const T& value) { return value != usual; }) - values.begin());
}

// The same for the same address; IPv4 as IPv6 maps it.
std::pair<uint64_t, uint64_t> AddressKey(const IpAddress& address) {
  uint64_t high = 0;
  uint64_t low = 0;
  if (address.family == AF_INET) {
    uint32_t number = 0;
    memcpy(&number, address.bytes, sizeof number);
    return {0, uint64_t{0xffff} << 32 | ntohl(number)};
  }
  memcpy(&high, address.bytes, sizeof high);
  memcpy(&low, address.bytes + sizeof high, sizeof low);
  return {be64toh(high), be64toh(low)};
}

class Rules {
 public:
  Rules(ChipRules chip, RankTable& table, const RankTableFacts& facts, RankTableErrors& errors)
      : chip_(chip), table_(table), facts_(facts), errors_(errors) {}

  void Apply() {
    if (table_.version == RankTableVersion::kStandard && !facts_.is_lab) {
      if (facts_.complete && errors_.empty()) CountRanks();
    } else {
      CheckRanks();
    }
    if (table_.version == RankTableVersion::k2_0) {
      if (!facts_.complete || !errors_.Clean("rank_id") || !errors_.Clean("local_id")) return;
      MakeNodes();
    }
    CheckDeviceIds();
    if (table_.version != RankTableVersion::k1_1 && table_.version != RankTableVersion::k2_0) {
      CheckServerIds();
      const bool has_ranks = table_.version != RankTableVersion::kStandard;
      if (has_ranks && facts_.complete && errors_.Clean("rank_id")) CheckRanksOfServers();
      CheckHostIps();
      CheckDeviceIps();
    }
    if (table_.version == RankTableVersion::k1_2) CheckSuperPods();
    if (facts_.complete) CheckDeviceCounts();
  }

 private:
  void AddToDevice(std::string_view field, const RankTableDevice& device, std::string text) {
    AddToObject(field, device.object.begin, std::move(text));
  }
  void AddToServer(std::string_view field, const RankTableServer& server, std::string text) {
    AddToObject(field, server.object.begin, std::move(text));
  }
  void AddToObject(std::string_view field, uint32_t object, std::string text) {
    errors_.AddToObject(field, object, FieldBegin(table_, object, field), std::move(text));
  }

  std::string_view DeviceListName() const {
    return table_.version == RankTableVersion::kStandard ? "devices"
           : table_.version == RankTableVersion::k1_1    ? "ranks"
                                                         : "device";
  }

  // Each of 0 to N-1 is taken if none is N or more and none is there twice.
  void CheckRanks() {
    const auto count = static_cast<int64_t>(table_.devices.size());
    const bool count_is_known = facts_.complete && errors_.Clean("rank_id");
    std::vector<bool> seen(table_.devices.size());
    std::unordered_set<int64_t> seen_beyond;
    for (const RankTableDevice& device : table_.devices) {
      const int64_t rank = device.rank_id;
      if (rank < 0) continue;
      const bool is_twice = rank < count ? seen[static_cast<size_t>(rank)] : !seen_beyond.insert(rank).second;
      if (rank < count) seen[static_cast<size_t>(rank)] = true;
      if (is_twice) {
        errors_.Add("rank_id", device.rank_id_value.begin, fmt::format("rank_id {} is there twice", rank));
      } else if (count_is_known && rank >= count) {
        errors_.Add("rank_id", device.rank_id_value.begin,
                    fmt::format("rank_id is {}; the ranks of {} devices are 0 to {}", rank, count, count - 1));
      }
    }
  }

  // HCCL takes no servers whose ranks are interleaved (CANN, "rank table", rank_id: {0,1,2,7} and {3,4,5,6} are its
  // counterexample). The order within a server is free.
  void CheckRanksOfServers() {
    for (const RankTableServer& server : table_.servers) {
      std::vector<const RankTableDevice*> own;
      for (const RankTableDevice& device : table_.DevicesOf(server)) own.push_back(&device);
      std::sort(own.begin(), own.end(), [](auto* a, auto* b) { return a->rank_id < b->rank_id; });
      for (size_t i = 1; i < own.size(); ++i) {
        const int64_t before = own[i - 1]->rank_id;
        if (own[i]->rank_id <= before + 1) continue;
        errors_.Add(
            "rank_id", own[i]->rank_id_value.begin,
            fmt::format("rank_id is {}, after {} on server {}; HCCL takes the ranks of a server only without those of "
                        "other servers between them",
                        own[i]->rank_id, before, QuoteValue(server.server_id)));
        break;
      }
    }
  }

  // The table gives no ranks: through the servers in their order, in each by device_id.
  void CountRanks() {
    int64_t rank = 0;
    for (const RankTableServer& server : table_.servers) {
      std::vector<RankTableDevice*> own;
      for (uint32_t i = 0; i < server.device_count; ++i) own.push_back(&table_.devices[server.first_device + i]);
      std::stable_sort(own.begin(), own.end(), [](auto* a, auto* b) { return a->device_id < b->device_id; });
      for (RankTableDevice* device : own) device->rank_id = rank++;
    }
  }

  void MakeNodes() {
    std::vector<RankTableDevice>& ranks = table_.devices;
    std::sort(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.rank_id < b.rank_id; });
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      if (i == 0 || ranks[i].local_id <= ranks[i - 1].local_id) {
        RankTableServer node;
        node.server_id = table_.decoded.emplace_back(fmt::format("node{}", table_.servers.size()));
        node.first_device = i;
        table_.servers.push_back(node);
      }
      ++table_.servers.back().device_count;
    }
  }

  void CheckDeviceIds() {
    for (const RankTableServer& server : table_.servers) {
      uint32_t seen = 0;
      for (const RankTableDevice& device : table_.DevicesOf(server)) {
        if (device.device_id < 0) continue;
        const uint32_t bit = 1u << device.device_id;
        if (seen & bit) {
          AddToDevice(
              "device_id", device,
              fmt::format("device_id {} is twice on server {}", device.device_id, QuoteValue(server.server_id)));
        }
        seen |= bit;
      }
    }
  }

  void CheckServerIds() {
    std::unordered_set<std::string_view> seen;
    for (const RankTableServer& server : table_.servers) {
      if (server.server_id.empty() || seen.insert(server.server_id).second) continue;
      AddToServer("server_id", server, fmt::format("server_id {} is there twice", QuoteValue(server.server_id)));
    }
  }

  void CheckHostIps() {
    if (table_.servers.empty() || !errors_.Clean("host_ip")) return;
    std::vector<bool> has;
    for (const RankTableServer& server : table_.servers) has.push_back(!server.host_ip.empty());
    const size_t odd = FirstThatDiffers(has);
    if (odd == has.size()) return;
    AddToServer("host_ip", table_.servers[odd],
                fmt::format("server {} has {} host_ip; all servers have one, or none has",
                            QuoteValue(table_.servers[odd].server_id), has[odd] ? "a" : "no"));
  }

  void CheckDeviceIps() {
    const bool may_lack =
        table_.servers.size() < 2 || facts_.super_pods.size() == 1 || !errors_.Clean("super_pod_list");
    absl::flat_hash_set<std::pair<uint64_t, uint64_t>> seen;
    std::vector<const RankTableDevice*> with;
    std::vector<size_t> counts;
    std::vector<int> families;
    std::vector<const RankTableDevice*> owners;  // of families
    const bool clean = errors_.Clean("device_ip");
    for (const RankTableDevice& device : table_.devices) {
      if (device.device_ip.empty()) {
        if (!may_lack && clean) {
          AddToDevice("device_ip", device,
                      "device_ip is missing; every device of a job with several servers has an address");
        }
        continue;
      }
      size_t count = 0;
      ForEachInList(device.device_ip, [&](std::string_view text) {
        IpAddress address;
        ParseIpAddress(text, address);
        ++count;
        families.push_back(address.family);
        owners.push_back(&device);
        if (seen.insert(AddressKey(address)).second) return;
        AddToDevice("device_ip", device, fmt::format("device_ip {} is there twice", QuoteValue(text)));
      });
      with.push_back(&device);
      counts.push_back(count);
    }
    // A mismatch of family or number follows from errors reported already, or cannot be separated from them.
    if (with.empty() || !errors_.Clean("device_ip")) return;
    if (const size_t odd = FirstThatDiffers(families); odd < families.size()) {
      AddToDevice("device_ip", *owners[odd],
                  fmt::format("device_ip is {}; the addresses of all devices are IPv4, or all are IPv6",
                              QuoteValue(owners[odd]->device_ip)));
    } else if (const size_t other = FirstThatDiffers(counts); other < counts.size()) {
      AddToDevice("device_ip", *with[other],
                  fmt::format("device_ip {} has {} addresses; all devices have the same number",
                              QuoteValue(with[other]->device_ip), counts[other]));
    }
  }

  void CheckSuperPods() {
    std::unordered_set<std::string_view> ids;
    for (const RankTableSuperPod& pod : facts_.super_pods) {
      if (pod.id.empty() || ids.insert(pod.id).second) continue;
      errors_.Add("super_pod_id", FieldBegin(table_, pod.begin, "super_pod_id"),
                  fmt::format("super_pod_id {} is there twice", QuoteValue(pod.id)));
    }
    // Who is in which pod can only be judged with all names.
    if (!facts_.complete || !errors_.Clean("server_id") || !errors_.Clean("super_pod_list")) return;
    std::unordered_map<std::string_view, size_t> server_of;
    for (size_t i = 0; i < table_.servers.size(); ++i) server_of.emplace(table_.servers[i].server_id, i);
    std::vector<size_t> pod_of(table_.servers.size(), facts_.super_pods.size());
    bool good = true;
    for (size_t pod = 0; pod < facts_.super_pods.size(); ++pod) {
      for (const RankTableSuperPod::Member& member : facts_.super_pods[pod].members) {
        const auto found = server_of.find(member.server_id);
        const bool known = found != server_of.end();
        if (known && pod_of[found->second] == facts_.super_pods.size()) {
          pod_of[found->second] = pod;
          continue;
        }
        good = false;
        errors_.Add("server_id", member.begin,
                    fmt::format("server_id {} {}", QuoteValue(member.server_id),
                                known ? "is in super_pod_list twice" : "of super_pod_list is not in server_list"));
      }
    }
    for (size_t i = 0; good && i < pod_of.size(); ++i) {
      if (pod_of[i] < facts_.super_pods.size()) continue;
      AddToServer(
          "server_id", table_.servers[i],
          fmt::format("server_id {} is in no super pod of super_pod_list", QuoteValue(table_.servers[i].server_id)));
    }
    if (!errors_.Clean("server_id")) return;
    CheckSuperPodSizes();
    CheckSuperDeviceIds(pod_of);
  }

  void CheckSuperPodSizes() {
    std::vector<size_t> sizes;
    for (const RankTableSuperPod& pod : facts_.super_pods) sizes.push_back(pod.members.size());
    const size_t odd = FirstThatDiffers(sizes);
    if (odd == sizes.size()) return;
    const RankTableSuperPod& pod = facts_.super_pods[odd];
    errors_.Add("server_list", FieldBegin(table_, pod.begin, "server_list"),
                fmt::format("server_list of super_pod_id {} has {} servers; all super pods have the same number",
                            QuoteValue(pod.id), sizes[odd]));
  }

  void CheckSuperDeviceIds(const std::vector<size_t>& pod_of) {
    std::unordered_set<uint64_t> seen;  // pod and number, both below 2^32
    for (size_t i = 0; i < table_.servers.size(); ++i) {
      const RankTableServer& server = table_.servers[i];
      for (uint32_t k = 0; k < server.device_count; ++k) {
        const int64_t id = facts_.super_device_ids[server.first_device + k];
        if (id < 0 || seen.insert(static_cast<uint64_t>(pod_of[i]) << 32 | static_cast<uint64_t>(id)).second) continue;
        AddToDevice("super_device_id", table_.devices[server.first_device + k],
                    fmt::format("super_device_id {} is twice in one super pod", id));
      }
    }
  }

  void CheckDeviceCounts() {
    if (table_.servers.empty()) return;
    if (facts_.is_lab) {
      for (const RankTableServer& server : table_.servers) {
        const uint32_t count = server.device_count;
        if (count == 1 || count == 2 || count == 4 || count == 8 || count == 16) continue;
        AddToServer(DeviceListName(), server,
                    fmt::format("server {} has {} devices, not 1, 2, 4, 8 or 16", QuoteValue(server.server_id), count));
      }
    }
    if (chip_ != ChipRules::k910) return;
    std::vector<uint32_t> counts;
    for (const RankTableServer& server : table_.servers) counts.push_back(server.device_count);
    const size_t odd = FirstThatDiffers(counts);
    const size_t total = table_.devices.size();
    if (odd < counts.size()) {
      AddCount(table_.servers[odd], fmt::format("server {} has {} devices; chip 910 has as many on each server",
                                                QuoteValue(table_.servers[odd].server_id), counts[odd]));
    } else if (total != 1 && total != 2 && total != 4 && total % 8 != 0) {
      AddCount(table_.servers.front(),
               fmt::format("there are {} devices; chip 910 takes 1, 2, 4 or a multiple of 8", total));
    }
  }

  // An error on the list that a server's devices are in.
  void AddCount(const RankTableServer& server, std::string text) {
    if (table_.version != RankTableVersion::k2_0) return AddToServer(DeviceListName(), server, std::move(text));
    errors_.Add("rank_list", table_.devices[server.first_device].object.begin, std::move(text));
  }

  const ChipRules chip_;
  RankTable& table_;
  const RankTableFacts& facts_;
  RankTableErrors& errors_;
};

}  // namespace

void ApplyRankTableRules(ChipRules chip, RankTable& table, const RankTableFacts& facts, RankTableErrors& errors) {
  Rules(chip, table, facts, errors).Apply();
}

bool ParseIpAddress(std::string_view text, IpAddress& address) {
  char terminated[INET6_ADDRSTRLEN] = {};
  if (text.empty() || text.size() >= sizeof terminated || text.find('\0') != text.npos) return false;
  memcpy(terminated, text.data(), text.size());
  address.family = text.find(':') == text.npos ? AF_INET : AF_INET6;
  return inet_pton(address.family, terminated, address.bytes) == 1;
}

}  // namespace taskd::ranktable
