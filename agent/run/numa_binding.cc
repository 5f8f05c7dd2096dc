#include "agent/run/numa_binding.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/run/device_count.h"
#include "common/files.h"
#include "common/ranges_text.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCpus = 1 << 16;

// ---- What the kernel says

std::string ReadText(const fs::path& path) { return ReadSystemFile(path); }

std::optional<int> ReadNumber(const fs::path& path) {
  int value = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadText(path)), &value) ? std::optional(value) : std::nullopt;
}

// "0-3,8-11"
CpuSet ReadCpuList(const fs::path& path) {
  CpuSet cpus;
  const std::string text = ReadText(path);
  for (absl::string_view item : absl::StrSplit(absl::StripAsciiWhitespace(text), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(item, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) return {};
    if (first < 0 || last >= kMaxCpus) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

// Name of each entry of `folder` that is `prefix` and a number -> that number.
std::map<int, fs::path> Numbered(const fs::path& folder, std::string_view prefix) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int number = 0;
    if (name.starts_with(prefix) && absl::SimpleAtoi(name.substr(prefix.size()), &number) && number >= 0) {
      found[number] = entry->path();
    }
  }
  return found;
}

// The CPUs that share the cache which is farthest from this CPU.
CpuSet LastLevelCache(const fs::path& cpu) {
  CpuSet sharers;
  int farthest = 0;
  for (const auto& [index, cache] : Numbered(cpu / "cache", "index")) {
    const int level = ReadNumber(cache / "level").value_or(0);
    if (level <= farthest || absl::StripAsciiWhitespace(ReadText(cache / "type")) == "Instruction") continue;
    farthest = level;
    sharers = ReadCpuList(cache / "shared_cpu_list");
  }
  return sharers;
}

// ---- Accelerators

struct Device {
  std::string pci;  // as sysfs names it
  std::string name;
};

int NodeOfPci(const std::string& root, const std::string& pci) {
  return pci.empty() ? -1 : ReadNumber(fs::path(root) / "sys/bus/pci/devices" / pci / "numa_node").value_or(-1);
}

// The driver's list is by PCI address, as the indexes are.
std::vector<Device> NvidiaDevices(const std::string& root) {
  std::map<std::string, std::string> lists;  // PCI address -> what the driver says
  std::error_code error;
  for (fs::directory_iterator entry(root + "proc/driver/nvidia/gpus", error), end; !error && entry != end;
       entry.increment(error)) {
    lists[absl::AsciiStrToLower(entry->path().filename().string())] = ReadText(entry->path() / "information");
  }
  const std::map<int, fs::path> nodes = Numbered(root + "dev", "nvidia");
  std::vector<Device> devices;
  for (const auto& [pci, list] : lists) {
    Device device{pci, ""};
    int minor = -1;
    for (absl::string_view line : absl::StrSplit(list, '\n')) {
      const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
      const absl::string_view value = absl::StripAsciiWhitespace(field.second);
      if (field.first == "GPU UUID") device.name = std::string(value);
      if (field.first == "Device Minor" && !absl::SimpleAtoi(value, &minor)) minor = -1;
    }
    // A container may list all and have the nodes of some.
    if (nodes.empty() || minor < 0 || nodes.contains(minor)) devices.push_back(std::move(device));
  }
  return devices;
}

// Their indexes do not follow their PCI addresses. Each of them has the driver's whole table, lines as
// "c1:00.0 ---> 0", with or without a domain.
std::vector<Device> AscendDevices(const std::string& root) {
  std::map<int, std::string> pci_of;
  std::error_code error;
  for (fs::directory_iterator entry(root + "sys/bus/pci/devices", error), end; !error && entry != end && pci_of.empty();
       entry.increment(error)) {
    const std::string table = ReadText(entry->path() / "devdrv_sysfs_bdf_to_devid");
    for (absl::string_view line : absl::StrSplit(table, '\n')) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      int number = 0;
      if (words.size() != 3 || !absl::SimpleAtoi(words[2], &number)) continue;
      const bool domain = std::count(words[0].begin(), words[0].end(), ':') == 2;
      pci_of[number] = absl::AsciiStrToLower(absl::StrCat(domain ? "" : "0000:", words[0]));
    }
  }
  std::vector<Device> devices;
  for (const auto& [number, node] : Numbered(root + "dev", "davinci")) {
    auto found = pci_of.find(number);
    devices.push_back({found == pci_of.end() ? "" : found->second, ""});
  }
  return devices;
}

std::vector<int> DeviceNodes(const std::string& root, const std::map<std::string, std::string>& environment) {
  std::vector<Device> devices = NvidiaDevices(root);
  const bool nvidia = !devices.empty();
  if (!nvidia) devices = AscendDevices(root);
  std::vector<int> nodes;
  for (const std::string& shown : VisibleDevices(static_cast<int>(devices.size()), environment,
                                                 nvidia ? "CUDA_VISIBLE_DEVICES" : "ASCEND_RT_VISIBLE_DEVICES")) {
    int index = 0;
    auto device = devices.end();
    if (absl::SimpleAtoi(shown, &index)) {
      device = devices.begin() + index;
    } else {  // a name may be cut short
      device = std::find_if(devices.begin(), devices.end(), [&](const Device& d) { return d.name.starts_with(shown); });
    }
    nodes.push_back(device == devices.end() ? -1 : NodeOfPci(root, device->pci));
  }
  return nodes;
}

// ---- Ranks

// Who shares a NUMA node: its accelerators, or where those are not known, its ranks.
struct Place {
  int node = 0;
  int index = 0;  // among the sharers
  int sharers = 1;
};

class Binder {
 public:
  explicit Binder(const NumaMachine& machine) : machine_(machine) {
    for (const auto& [number, cpu] : machine.cpus) {
      nodes_.insert(cpu.node);
      if (cpu.allowed) allowed_[cpu.node].insert(number);
    }
  }

  bool one_node() const { return nodes_.size() < 2 || allowed_.empty(); }

  std::vector<Place> Places(int local_world_size) const {
    const auto ranks = static_cast<size_t>(local_world_size);
    std::vector<int> nodes = machine_.device_nodes;
    auto known = [this](int node) { return nodes_.contains(node); };
    if (nodes.size() < ranks || !std::all_of(nodes.begin(), nodes.begin() + local_world_size, known)) {
      nodes.clear();
      std::vector<int> usable;
      for (const auto& [node, cpus] : allowed_) usable.push_back(node);
      for (size_t rank = 0; rank < ranks; ++rank) nodes.push_back(usable[rank * usable.size() / ranks]);
    }
    std::map<int, int> seen;
    std::vector<Place> places;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int node = nodes[rank];
      places.push_back({node, seen[node]++, static_cast<int>(std::count(nodes.begin(), nodes.end(), node))});
    }
    return places;
  }

  CpuSet Node(int node) const {
    auto found = allowed_.find(node);
    return found == allowed_.end() ? CpuSet() : found->second;
  }

  CpuSet Socket(int node) const {
    auto is_there = [node](const auto& entry) { return entry.second.node == node; };
    const int socket = std::find_if(machine_.cpus.begin(), machine_.cpus.end(), is_there)->second.socket;
    CpuSet cpus;
    for (const auto& [number, cpu] : machine_.cpus) {
      if (cpu.allowed && cpu.socket == socket) cpus.insert(number);
    }
    return cpus;
  }

  absl::StatusOr<CpuSet> Exclusive(const Place& place) const {
    const std::vector<CpuSet> cores = Groups(place.node, &NumaMachine::Cpu::core);
    if (cores.empty()) return CpuSet();
    const int count = static_cast<int>(cores.size());
    if (count < place.sharers) {
      return absl::InvalidArgumentError(absl::StrCat("--numa-binding 'exclusive': NUMA node ", place.node, " has ",
                                                     count, " cores that may be used here, fewer than the ",
                                                     place.sharers, " ranks or accelerators that share it"));
    }
    // The first ones get one more where it does not come out even.
    const int each = count / place.sharers, more = count % place.sharers;
    const int begin = place.index * each + std::min(place.index, more);
    CpuSet cpus;
    for (int core = begin; core < begin + each + (place.index < more ? 1 : 0); ++core) {
      cpus.insert(cores[static_cast<size_t>(core)].begin(), cores[static_cast<size_t>(core)].end());
    }
    return cpus;
  }

  CpuSet CoreComplex(const Place& place) const {
    std::vector<CpuSet> complexes = Groups(place.node, &NumaMachine::Cpu::cache);
    if (complexes.empty()) return {};
    std::stable_sort(complexes.begin(), complexes.end(),
                     [](const CpuSet& a, const CpuSet& b) { return a.size() > b.size(); });
    return complexes[static_cast<size_t>(place.index) % complexes.size()];
  }

 private:
  // CPUs of a NUMA node that may be used, by what they share, in order.
  std::vector<CpuSet> Groups(int node, int NumaMachine::Cpu::*shared) const {
    std::map<int, CpuSet> groups;
    for (int cpu : Node(node)) groups[machine_.cpus.at(cpu).*shared].insert(cpu);
    std::vector<CpuSet> result;
    for (auto& [first, cpus] : groups) result.push_back(std::move(cpus));
    return result;
  }

  const NumaMachine& machine_;
  std::set<int> nodes_;  // with CPUs, usable ones or not
  std::map<int, CpuSet> allowed_;
};

}  // namespace

CpuSet AllowedCpus() {
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {  // the kernel refuses a set that is too small for it
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    CpuSet cpus;
    const bool read = ::sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; read && cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.insert(cpu);
    }
    CPU_FREE(set);
    if (read || errno != EINVAL) return cpus;
  }
  return {};
}

NumaMachine ReadNumaMachine(const std::string& root, const CpuSet& allowed,
                            const std::map<std::string, std::string>& environment) {
  const fs::path system = fs::path(root) / "sys/devices/system";
  NumaMachine machine;
  for (const auto& [node, folder] : Numbered(system / "node", "node")) {
    const CpuSet of_node = ReadCpuList(folder / "cpulist");
    for (int number : of_node) {
      const fs::path path = system / "cpu" / absl::StrCat("cpu", number);
      auto first = [](const CpuSet& cpus, int otherwise) { return cpus.empty() ? otherwise : *cpus.begin(); };
      machine.cpus[number] = {.node = node,
                              .socket = ReadNumber(path / "topology/physical_package_id").value_or(node),
                              .core = first(ReadCpuList(path / "topology/thread_siblings_list"), number),
                              .cache = first(LastLevelCache(path), *of_node.begin()),
                              .allowed = allowed.contains(number)};
    }
  }
  machine.device_nodes = DeviceNodes(root, environment);
  return machine;
}

absl::StatusOr<NumaBinding> BindRanks(const std::string& how, const NumaMachine& machine, int local_world_size) {
  NumaBinding binding;
  const Binder binder(machine);
  if (binder.one_node()) return binding;
  std::set<int> unbound, nodes;
  for (const Place& place : binder.Places(local_world_size)) {
    CpuSet cpus;
    if (how == "exclusive") {
      absl::StatusOr<CpuSet> share = binder.Exclusive(place);
      if (!share.ok()) return share.status();
      cpus = *std::move(share);
    } else {
      cpus = how == "socket"         ? binder.Socket(place.node)
             : how == "core-complex" ? binder.CoreComplex(place)
                                     : binder.Node(place.node);
    }
    if (cpus.empty()) {
      unbound.insert(static_cast<int>(binding.cpus.size()));
      nodes.insert(place.node);
    }
    binding.cpus.push_back(std::move(cpus));
  }
  if (!unbound.empty()) {
    binding.warning = absl::StrCat("--numa-binding ", how, ": not bound: local ranks ", FormatAllRanges(unbound),
                                   "; no CPU of NUMA node ", FormatAllRanges(nodes), " may be used here");
  }
  return binding;
}

}  // namespace taskd::run
