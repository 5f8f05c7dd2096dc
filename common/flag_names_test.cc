#include "common/flag_names.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(FlagNames, NamesWhatTheUserCanSet) {
  const std::string text = "--http: '--http' is not --http-host; x--http, give --job or --task-id, --jobs";
  EXPECT_EQ(NamedFlags(text), text);
  SetFlagNames({{"--http", "TASKD_HTTP"}, {"--job", "TASKD_JOB"}, {"--task-id", "TASKD_TASK_ID"}});
  EXPECT_EQ(NamedFlags(text),
            "TASKD_HTTP: 'TASKD_HTTP' is not --http-host; x--http, give TASKD_JOB or TASKD_TASK_ID, --jobs");
  EXPECT_EQ(NamedFlags("--"), "--");
  EXPECT_EQ(NamedFlags(""), "");
  SetFlagNames({});
  EXPECT_EQ(NamedFlags(text), text);
}

}  // namespace
}  // namespace taskd
