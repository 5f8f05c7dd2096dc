#include "common/unsupported.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// contract: §1.6, what each variable asks MindCluster's TaskD for, and with which value.
TEST(UnsupportedTest, WhatIsAskedFor) {
  EXPECT_THAT(UnsupportedRequests({{"PROCESS_RECOVER", "on"},
                                   {"ENABLE_RESTART_FAULT_PROCESS", "on"},
                                   {"TASKD_PROCESS_ENABLE", "on"},
                                   {"HIGH_AVAILABILITY", "dump,retry"}}),
              ElementsAre("process-level rescheduling and online recovery (PROCESS_RECOVER=on)",
                          "restart of a faulty process in place (ENABLE_RESTART_FAULT_PROCESS=on)",
                          "process-level recovery by MindIO (TASKD_PROCESS_ENABLE=on)",
                          "high availability by MindIO (HIGH_AVAILABILITY=dump,retry)"));
  EXPECT_THAT(UnsupportedRequests({{"HIGH_AVAILABILITY", "recover,elastic-training"}}),
              ElementsAre("elastic training (HIGH_AVAILABILITY=recover,elastic-training)"));
}

TEST(UnsupportedTest, NobodyAsks) {
  EXPECT_THAT(UnsupportedRequests({}), IsEmpty());
  EXPECT_THAT(UnsupportedRequests({{"PROCESS_RECOVER", "off"},
                                   {"ENABLE_RESTART_FAULT_PROCESS", ""},
                                   {"TASKD_PROCESS_ENABLE", "off"},
                                   {"HIGH_AVAILABILITY", ""},
                                   {"RESTART_FAULT_PROCESS_TYPE", "worker"}}),
              IsEmpty());
}

TEST(UnsupportedTest, ALineSaysWhatHappensInstead) {
  EXPECT_THAT(UnsupportedLine({"a", "b"}),
              HasSubstr("not supported, and will not happen: a, b; a rank that fails ends"));
}

}  // namespace
}  // namespace taskd
