#include "common/order_to.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/runtime_dir.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ProblemOf(const std::string& list, const Environment& environment = {}) {
  const absl::StatusOr<std::vector<OrderTo>> receivers = ParseOrderTo(list);
  return std::string(receivers.ok() ? CheckOrderTo(*receivers, environment, false).message()
                                    : receivers.status().message());
}

TEST(OrderToTest, ReadsAList) {
  EXPECT_THAT(*ParseOrderTo(""), IsEmpty());
  EXPECT_THAT(*ParseOrderTo("command:/x y"), ElementsAre(OrderTo{OrderTo::Kind::kCommand, "/x y"}));
  EXPECT_THAT(ProblemOf("mail:/x"), HasSubstr("--order-to: 'mail:/x' is not a receiver"));
  EXPECT_THAT(ProblemOf("command:/bin/true,"), HasSubstr("'' is not a receiver"));
  EXPECT_THAT(ProblemOf("command"), HasSubstr("no absolute path"));
  EXPECT_THAT(ProblemOf("command:drain.sh"), HasSubstr("no absolute path"));
  EXPECT_THAT(ProblemOf("command:/bin/true,command:/bin/false"), HasSubstr("'command:/bin/false' is a second"));
  EXPECT_THAT(*ParseOrderTo("nvrx:/d,clusterd"),
              ElementsAre(OrderTo{OrderTo::Kind::kNvrx, "/d"}, OrderTo{OrderTo::Kind::kClusterd}));
  EXPECT_THAT(*ParseOrderTo("nvsentinel"),
              ElementsAre(OrderTo{OrderTo::Kind::kNvsentinel, "/var/run/nvsentinel.sock"}));
  EXPECT_THAT(*ParseOrderTo("nvsentinel+execute"),
              ElementsAre(OrderTo{OrderTo::Kind::kNvsentinel, "/var/run/nvsentinel.sock", true}));
  EXPECT_THAT(*ParseOrderTo("nvsentinel:/s+execute"), ElementsAre(OrderTo{OrderTo::Kind::kNvsentinel, "/s", true}));
  EXPECT_THAT(ProblemOf("nvsentinel:s"), HasSubstr("no absolute path"));
  EXPECT_THAT(ProblemOf("nvsentinel:/" + std::string(107, 'x')), HasSubstr("107 bytes"));
  EXPECT_THAT(ProblemOf("nvrx:/d+execute"), HasSubstr("only nvsentinel has"));
  EXPECT_THAT(ProblemOf("nvrx"), HasSubstr("no absolute path"));
  EXPECT_THAT(ProblemOf("clusterd:host:1"), HasSubstr("--clusterd gives the address"));
  EXPECT_THAT(ProblemOf("clusterd"), HasSubstr("--order-to: clusterd: there is no ClusterD"));
}

TEST(OrderToTest, NvrxHasAFolderAndASlurmJob) {
  const std::string folder = *MakeFreshDir();
  EXPECT_EQ(ProblemOf("nvrx:" + folder, {{"SLURM_JOB_ID", "7"}}), "");
  EXPECT_THAT(ProblemOf("nvrx:" + folder), HasSubstr("SLURM_JOB_ID is not set"));
  EXPECT_THAT(ProblemOf("nvrx:" + folder + "/none", {{"SLURM_JOB_ID", "7"}}), HasSubstr("No such file"));
  EXPECT_EQ(NvrxFileName({{"SLURM_JOB_ID", "7"}}), "segment_health_check.7.7");
  EXPECT_EQ(NvrxFileName({{"SLURM_JOB_ID", "7"}, {"SLURM_ARRAY_JOB_ID", "5"}, {"SLURM_ARRAY_TASK_ID", "2"}}),
            "segment_health_check.5.2");
  EXPECT_EQ(NvrxFileName({{"SLURM_JOB_ID", "../7"}}), "");
  std::filesystem::remove_all(folder);
}

TEST(OrderToTest, ACommandIsSafeFromOthers) {
  const std::string folder = *MakeFreshDir();
  const std::string path = folder + "/drain";
  const std::string list = "command:" + path;
  EXPECT_THAT(ProblemOf(list), HasSubstr(path + ": No such file"));
  ASSERT_TRUE(WriteFileAtomically(path, "#!/bin/sh\n").ok());
  EXPECT_THAT(ProblemOf(list), HasSubstr(path + ": cannot be executed"));
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  EXPECT_EQ(ProblemOf(list), "");
  ASSERT_EQ(chmod(path.c_str(), 0702 | 0700), 0);
  EXPECT_THAT(ProblemOf(list), HasSubstr(path + ": others can write to it"));
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_THAT(ProblemOf(list), HasSubstr(folder)) << "others could put another file in its place";
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  ASSERT_EQ(symlink(path.c_str(), (folder + "/link").c_str()), 0);
  EXPECT_THAT(ProblemOf(absl::StrCat("command:", folder, "/link")), HasSubstr("link"));
  std::filesystem::create_directory(folder + "/below");
  EXPECT_THAT(ProblemOf(absl::StrCat("command:", folder, "/below")), HasSubstr(folder + "/below: "));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path.c_str(), 12345, 0), 0);
    EXPECT_THAT(ProblemOf(list), HasSubstr("belongs to user 12345"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace taskd
