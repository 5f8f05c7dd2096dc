#include "agent/run/numa_binding.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const char* const kHows[] = {"node", "socket", "exclusive", "core-complex"};

CpuSet Range(int first, int last) {
  CpuSet cpus;
  for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  return cpus;
}

// A machine's files in a folder.
class NumaBindingTest : public ::testing::Test {
 protected:
  NumaBindingTest() {
    std::string name = "/tmp/taskd-numa-XXXXXX";
    root_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~NumaBindingTest() override { fs::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  void AddNode(int node, const std::string& cpus) {
    Put("sys/devices/system/node/node" + std::to_string(node) + "/cpulist", cpus);
  }
  void AddCpu(int cpu, int socket, const std::string& siblings, const std::string& cache) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu);
    Put(folder + "/topology/physical_package_id", std::to_string(socket));
    Put(folder + "/topology/thread_siblings_list", siblings);
    const std::string index = folder + "/cache/index";
    for (const auto& [number, level, type, list] :
         {std::tuple("0", "1", "Data", siblings), {"1", "1", "Instruction", siblings}, {"3", "3", "Unified", cache}}) {
      Put(index + number + "/level", level);
      Put(index + number + "/type", type);
      Put(index + number + "/shared_cpu_list", list);
    }
  }
  void AddGpu(const std::string& pci, int minor, int node, const std::string& uuid = "GPU-none") {
    Put("proc/driver/nvidia/gpus/" + pci + "/information",
        "Model: \t\t NVIDIA H100\nGPU UUID: \t " + uuid + "\nDevice Minor: \t " + std::to_string(minor));
    Put("sys/bus/pci/devices/" + pci + "/numa_node", std::to_string(node));
  }
  // Two sockets with a node, four cores, eight threads and two last-level caches each; two GPUs a node.
  void AddTwoSockets() {
    AddNode(0, "0-3,8-11");
    AddNode(1, "4-7,12-15");
    for (int cpu = 0; cpu < 16; ++cpu) {
      const int core = cpu % 8, pair = core / 2 * 2;
      const std::string p = std::to_string(pair), q = std::to_string(pair + 8);
      AddCpu(cpu, core / 4, std::to_string(core) + "," + std::to_string(core + 8),
             p + "-" + std::to_string(pair + 1) + "," + q + "-" + std::to_string(pair + 9));
    }
    AddGpu("0000:1a:00.0", 1, 0);
    AddGpu("0000:9b:00.0", 3, 1);
    AddGpu("0000:17:00.0", 0, 0);
    AddGpu("0000:9a:00.0", 2, 1);
  }

  absl::StatusOr<NumaBinding> TryBind(const std::string& how, int ranks) {
    return BindRanks(how, ReadNumaMachine(root_, allowed_, environment_), ranks);
  }
  std::vector<CpuSet> Bind(const std::string& how, int ranks) {
    absl::StatusOr<NumaBinding> binding = TryBind(how, ranks);
    EXPECT_TRUE(binding.ok()) << binding.status();
    if (!binding.ok()) return {};
    EXPECT_EQ(binding->warning, "");
    return binding->cpus;
  }

  std::string root_;
  CpuSet allowed_ = Range(0, 255);
  std::map<std::string, std::string> environment_;
};

TEST_F(NumaBindingTest, NodeOfTheAccelerator) {
  AddTwoSockets();
  const CpuSet first = {0, 1, 2, 3, 8, 9, 10, 11}, second = {4, 5, 6, 7, 12, 13, 14, 15};
  EXPECT_THAT(Bind("node", 4), ElementsAre(first, first, second, second));
  EXPECT_THAT(Bind("socket", 3), ElementsAre(first, first, second));
}

TEST_F(NumaBindingTest, OnlyWhatMayBeUsed) {
  AddTwoSockets();
  allowed_ = {2, 3, 4, 10, 12};
  for (const char* how : {"node", "socket"}) {
    EXPECT_THAT(Bind(how, 4), ElementsAre(CpuSet{2, 3, 10}, CpuSet{2, 3, 10}, CpuSet{4, 12}, CpuSet{4, 12}));
  }
  EXPECT_THAT(Bind("core-complex", 4), ElementsAre(CpuSet{2, 3, 10}, CpuSet{2, 3, 10}, CpuSet{4, 12}, CpuSet{4, 12}));
  allowed_ = {2, 3, 4, 5, 10, 12};
  EXPECT_THAT(Bind("exclusive", 4), ElementsAre(CpuSet{2, 10}, CpuSet{3}, CpuSet{4, 12}, CpuSet{5}));
}

// The container's CPUs are all on node 0, two of its GPUs on node 1.
TEST_F(NumaBindingTest, NodeWithoutACpuThatMayBeUsed) {
  AddTwoSockets();
  allowed_ = Range(0, 3);
  for (const char* how : kHows) {
    absl::StatusOr<NumaBinding> binding = TryBind(how, 4);
    ASSERT_TRUE(binding.ok()) << binding.status();
    ASSERT_THAT(binding->cpus, SizeIs(4));
    EXPECT_THAT(binding->cpus[0], ::testing::Not(IsEmpty()));
    EXPECT_THAT(binding->cpus[2], IsEmpty());
    EXPECT_THAT(binding->cpus[3], IsEmpty());
    EXPECT_EQ(binding->warning, std::string("--numa-binding ") + how +
                                    ": not bound: local ranks 2, 3; no CPU of NUMA node 1 may be used here");
  }
}

TEST_F(NumaBindingTest, SocketOfSeveralNodes) {
  for (int node = 0; node < 4; ++node) {
    AddNode(node, std::to_string(2 * node) + "-" + std::to_string(2 * node + 1));
    for (int cpu : {2 * node, 2 * node + 1}) AddCpu(cpu, node / 2, std::to_string(cpu), std::to_string(cpu));
  }
  AddGpu("0000:17:00.0", 0, 1);
  AddGpu("0000:9a:00.0", 1, 2);
  EXPECT_THAT(Bind("socket", 2), ElementsAre(Range(0, 3), Range(4, 7)));
  EXPECT_THAT(Bind("node", 2), ElementsAre(Range(2, 3), Range(4, 5)));
  allowed_ = {0, 6};  // neither GPU's node, but its socket
  EXPECT_THAT(Bind("socket", 2), ElementsAre(CpuSet{0}, CpuSet{6}));
}

TEST_F(NumaBindingTest, ExclusiveSharesOfCores) {
  AddTwoSockets();
  EXPECT_THAT(Bind("exclusive", 4),
              ElementsAre(CpuSet{0, 1, 8, 9}, CpuSet{2, 3, 10, 11}, CpuSet{4, 5, 12, 13}, CpuSet{6, 7, 14, 15}));
  // An accelerator without a rank has its share, too.
  EXPECT_THAT(Bind("exclusive", 1), ElementsAre(CpuSet{0, 1, 8, 9}));
  AddGpu("0000:1b:00.0", 4, 0);  // the third of node 0: its index is 2
  EXPECT_THAT(Bind("exclusive", 3), ElementsAre(CpuSet{0, 1, 8, 9}, CpuSet{2, 10}, CpuSet{3, 11}));
}

TEST_F(NumaBindingTest, TooFewCores) {
  AddTwoSockets();
  allowed_ = {0, 4, 5, 8};
  const absl::StatusOr<NumaBinding> binding = TryBind("exclusive", 4);
  EXPECT_EQ(binding.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(binding.status().message()),
              AllOf(HasSubstr("--numa-binding 'exclusive'"), HasSubstr("NUMA node 0 has 1 cores"), HasSubstr("the 2")));
}

TEST_F(NumaBindingTest, CoreComplexes) {
  AddTwoSockets();
  EXPECT_THAT(Bind("core-complex", 4),
              ElementsAre(CpuSet{0, 1, 8, 9}, CpuSet{2, 3, 10, 11}, CpuSet{4, 5, 12, 13}, CpuSet{6, 7, 14, 15}));
  allowed_.erase(0);  // the larger ones first
  EXPECT_THAT(Bind("core-complex", 2), ElementsAre(CpuSet{2, 3, 10, 11}, CpuSet{1, 8, 9}));
  AddGpu("0000:1b:00.0", 4, 0);  // more accelerators than complexes
  EXPECT_THAT(Bind("core-complex", 3), ElementsAre(CpuSet{2, 3, 10, 11}, CpuSet{1, 8, 9}, CpuSet{2, 3, 10, 11}));
}

TEST_F(NumaBindingTest, OneNodeBindsNobody) {
  for (const char* how : kHows) EXPECT_THAT(Bind(how, 4), IsEmpty());  // a kernel without NUMA
  AddNode(0, "0-3");
  AddNode(1, "");  // memory alone
  AddGpu("0000:17:00.0", 0, -1);
  for (const char* how : kHows) EXPECT_THAT(Bind(how, 8), IsEmpty());
}

TEST_F(NumaBindingTest, EvenlyWithoutAccelerators) {
  AddNode(0, "0-3");
  AddNode(1, "4-7");
  AddNode(2, "8-11");
  EXPECT_THAT(Bind("node", 4), ElementsAre(Range(0, 3), Range(0, 3), Range(4, 7), Range(8, 11)));
  EXPECT_THAT(Bind("node", 1), ElementsAre(Range(0, 3)));
  EXPECT_THAT(Bind("exclusive", 4), ElementsAre(Range(0, 1), Range(2, 3), Range(4, 7), Range(8, 11)));
  EXPECT_THAT(Bind("core-complex", 2), ElementsAre(Range(0, 3), Range(4, 7)));  // nothing is said about caches
  allowed_ = Range(5, 9);
  EXPECT_THAT(Bind("node", 4), ElementsAre(Range(5, 7), Range(5, 7), Range(8, 9), Range(8, 9)));
}

TEST_F(NumaBindingTest, EvenlyWhereAnAcceleratorIsNotKnown) {
  AddNode(0, "0-3");
  AddNode(1, "4-7");
  AddGpu("0000:17:00.0", 0, 1);
  AddGpu("0000:9a:00.0", 1, 1);
  EXPECT_THAT(Bind("node", 2), Each(Range(4, 7)));
  EXPECT_THAT(Bind("node", 4), ElementsAre(Range(0, 3), Range(0, 3), Range(4, 7), Range(4, 7)));  // more ranks
  Put("sys/bus/pci/devices/0000:9a:00.0/numa_node", "-1");
  EXPECT_THAT(Bind("node", 2), ElementsAre(Range(0, 3), Range(4, 7)));
  Put("sys/bus/pci/devices/0000:9a:00.0/numa_node", "7");  // without CPUs
  EXPECT_THAT(Bind("node", 2), ElementsAre(Range(0, 3), Range(4, 7)));
}

TEST_F(NumaBindingTest, VisibleGpus) {
  AddTwoSockets();
  AddGpu("0000:9b:00.0", 3, 1, "GPU-abc-123");
  auto nodes = [this] { return ReadNumaMachine(root_, allowed_, environment_).device_nodes; };
  EXPECT_THAT(nodes(), ElementsAre(0, 0, 1, 1));
  environment_["CUDA_VISIBLE_DEVICES"] = "2,0";
  EXPECT_THAT(nodes(), ElementsAre(1, 0));
  environment_["CUDA_VISIBLE_DEVICES"] = "GPU-abc,0,MIG-1,9,1";
  EXPECT_THAT(nodes(), ElementsAre(1, 0, -1));
  environment_.clear();
  Put("dev/nvidia1", "");  // a container with two of them
  Put("dev/nvidia2", "");
  Put("dev/nvidiactl", "");
  EXPECT_THAT(nodes(), ElementsAre(0, 1));
}

TEST_F(NumaBindingTest, VisibleNpus) {
  for (const auto& [pci, node] : {std::pair("0000:c1:00.0", 6), {"0000:01:00.0", 0}, {"0000:c2:00.0", 6}}) {
    const std::string folder = std::string("sys/bus/pci/devices/") + pci;
    Put(folder + "/numa_node", std::to_string(node));
    Put(folder + "/devdrv_sysfs_bdf_to_devid", "c1:00.0 ---> 0\n0000:01:00.0 ---> 1\nC2:00.0 ---> 2\nwhat ---> ever");
  }
  for (const char* name : {"davinci0", "davinci1", "davinci2", "davinci3", "davinci_manager"}) {
    Put(std::string("dev/") + name, "");
  }
  auto nodes = [this] { return ReadNumaMachine(root_, allowed_, environment_).device_nodes; };
  EXPECT_THAT(nodes(), ElementsAre(6, 0, 6, -1));
  environment_["ASCEND_RT_VISIBLE_DEVICES"] = "2,1";
  EXPECT_THAT(nodes(), ElementsAre(6, 0));
  environment_.clear();
  fs::remove(root_ + "dev/davinci0");  // a container without it: indexes begin at 0 all the same
  EXPECT_THAT(nodes(), ElementsAre(0, 6, -1));
}

TEST_F(NumaBindingTest, FilesThatMakeNoSense) {
  for (const char* text : {"", "x", "5-", "-1", "0-99999999", "1-2-3", "7-4"}) {
    AddNode(0, "0-1");
    AddNode(1, text);
    for (const char* how : kHows) EXPECT_THAT(Bind(how, 2), IsEmpty()) << text;
    AddNode(1, "2-3");
    for (int cpu = 0; cpu < 4; ++cpu) AddCpu(cpu, cpu / 2, text, text);
    EXPECT_THAT(Bind("exclusive", 4), ElementsAre(CpuSet{0}, CpuSet{1}, CpuSet{2}, CpuSet{3})) << text;
    EXPECT_THAT(Bind("core-complex", 2), ElementsAre(Range(0, 1), Range(2, 3))) << text;
    Put("sys/devices/system/cpu/cpu0/topology/physical_package_id", text);
    for (const CpuSet& cpus : Bind("socket", 2)) EXPECT_THAT(cpus, ::testing::Not(IsEmpty())) << text;
  }
}

TEST(AllowedCpusTest, AreThoseOfThisProcess) {
  const CpuSet cpus = AllowedCpus();
  ASSERT_THAT(cpus, ::testing::Not(IsEmpty()));
  EXPECT_LE(cpus.size(), static_cast<size_t>(sysconf(_SC_NPROCESSORS_CONF)));
}

}  // namespace
}  // namespace taskd::run
