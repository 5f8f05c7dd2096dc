#include "manager/actions/nvrx_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/atomic_file.h"
#include "common/files.h"
#include "common/runtime_dir.h"

namespace taskd::manager {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class NvrxReceiverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *MakeFreshDir();
    path_ = folder_ + "/segment_health_check.7.7";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static policy::Action Order(const std::string& id) {
    policy::Action action;
    action.id = id;
    action.node_name = "worker-" + id;
    return action;
  }
  NvrxReceiver Make() const { return NvrxReceiver(folder_, "segment_health_check.7.7"); }
  std::string Read() const { return ReadFile(path_, 1 << 20).value_or("none"); }

  std::string folder_, path_;
};

TEST_F(NvrxReceiverTest, TheFileStandsWhileAnOrderDoes) {
  NvrxReceiver receiver = Make();
  EXPECT_EQ(receiver.Send(Order("a")).outcome, policy::Outcome::kTaken);
  EXPECT_THAT(Read(), AllOf(StartsWith("{\"id\":\"a\""), HasSubstr("worker-a")));
  const std::string once = Read();
  EXPECT_EQ(receiver.Send(Order("a")).outcome, policy::Outcome::kTaken);
  EXPECT_EQ(Read(), once) << "the same order twice is one";
  receiver.Send(Order("b"));
  receiver.Withdraw(Order("a"));
  EXPECT_THAT(Read(), StartsWith("{\"id\":\"b\""));
  EXPECT_EQ(receiver.Withdraw(Order("b")).text, "removed " + path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(receiver.Withdraw(Order("b")).outcome, policy::Outcome::kTaken);
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "nothing is left beside it";
}

TEST_F(NvrxReceiverTest, SomebodyElsesFileStays) {
  ASSERT_TRUE(WriteFileAtomically(path_, "excluded by hand\n").ok());
  NvrxReceiver receiver = Make();
  EXPECT_THAT(receiver.Send(Order("a")).text, HasSubstr("somebody else's"));
  receiver.Withdraw(Order("a"));
  EXPECT_EQ(Read(), "excluded by hand\n");
}

TEST_F(NvrxReceiverTest, AnEmptyFileExcludesNobody) {
  ASSERT_TRUE(WriteFileAtomically(path_, "").ok());
  EXPECT_EQ(Make().Send(Order("a")).outcome, policy::Outcome::kTaken);
  EXPECT_THAT(Read(), StartsWith("{\"id\":\"a\""));
}

TEST_F(NvrxReceiverTest, AMissingFolderIsTriedAgainAndALinkIsNotFollowed) {
  std::filesystem::create_symlink("/etc/passwd", path_);
  EXPECT_EQ(Make().Send(Order("a")).outcome, policy::Outcome::kFailed);
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(Make().Send(Order("a")).outcome, policy::Outcome::kSent);
}

}  // namespace
}  // namespace taskd::manager
