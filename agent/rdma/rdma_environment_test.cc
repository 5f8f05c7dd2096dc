#include "agent/rdma/rdma_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>

namespace taskd::rdma {
namespace {

class RdmaConditions : public ::testing::Test {
 protected:
  RdmaConditions() {
    std::string name = ::testing::TempDir() + "/rdma_XXXXXX";
    sysfs_ = mkdtemp(name.data());
  }
  ~RdmaConditions() override { std::filesystem::remove_all(sysfs_); }

  void AddDevice(const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(sysfs_) / "class/infiniband" / name);
  }
  std::string Why(const std::vector<NodeEntry>& nodes, RdmaMode mode = RdmaMode::kAuto) {
    return std::string(CheckRdmaConditions(mode, nodes, sysfs_).message());
  }

  std::string sysfs_;
};

TEST_F(RdmaConditions, AllOfThem) {
  const std::vector<NodeEntry> two = {{"a", 8}, {"b", 8}};
  EXPECT_NE(Why(two).find("class/infiniband has no device mlx5_bond"), std::string::npos);
  AddDevice("mlx5_0");
  EXPECT_NE(Why(two), "");
  AddDevice("mlx5_bond_1");
  EXPECT_EQ(Why(two), "");
  EXPECT_NE(Why({{"a", 8}}).find("1 node"), std::string::npos);
  EXPECT_NE(Why({}).find("no node"), std::string::npos);
  EXPECT_NE(Why({{"a", 8}, {"b", 7}}).find("'b' has 7 cards"), std::string::npos);
  EXPECT_NE(Why({{"a", 16}, {"b", 8}}).find("'a' has 16 cards"), std::string::npos);
  EXPECT_EQ(Why({}, RdmaMode::kOn), "");
  EXPECT_NE(Why(two, RdmaMode::kOff), "");
}

TEST(RdmaEnvironment, WhatIsSetStays) {
  std::map<std::string, std::string> set;
  const auto get = [&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  };
  auto all = RdmaEnvironment(get);
  ASSERT_EQ(all.size(), 17u);
  std::map<std::string, std::string> values(all.begin(), all.end());
  EXPECT_EQ(values.size(), 17u);
  EXPECT_EQ(values["NCCL_IB_HCA"], "mlx5_bond");
  EXPECT_EQ(values["NCCL_LL_THRESHOLD"], "16384");
  EXPECT_EQ(values["TCCL_TOPO_AFFINITY"], "4");
  set = {{"NCCL_DEBUG", "WARN"}, {"NCCL_IB_TC", ""}};
  all = RdmaEnvironment(get);
  values = {all.begin(), all.end()};
  EXPECT_EQ(values.size(), 17u);
  EXPECT_EQ(values["NCCL_DEBUG"], "WARN");
  EXPECT_EQ(values["NCCL_IB_TC"], "");
  EXPECT_EQ(SysfsFolder(get), "/sys");
  set["TASKD_SYSFS"] = "/x";
  EXPECT_EQ(SysfsFolder(get), "/x");
}

TEST(ParseRdmaMode, KnowsThree) {
  EXPECT_EQ(*ParseRdmaMode("auto"), RdmaMode::kAuto);
  EXPECT_EQ(*ParseRdmaMode("on"), RdmaMode::kOn);
  EXPECT_EQ(*ParseRdmaMode("off"), RdmaMode::kOff);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRdmaMode("yes").status()));
}

}  // namespace
}  // namespace taskd::rdma
