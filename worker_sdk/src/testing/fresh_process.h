// The library's state is the process's, so every test gets a process of its own: the test program runs itself again
// with only that test selected.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/testing/deadline.h"  // for all tests here

namespace taskd::testing {

// In such a process. Its TASKD_SOCKET is a path in an empty folder of its own; no rank is set.
bool InFreshProcess();

// Runs the current test in a fresh process and takes its verdict over; removes what it left in /dev/shm.
void RunInFreshProcess();

// How this program is started again: by the emulator that TASKD_TEST_EMULATOR names with its options, if it does.
std::vector<std::string> OwnCommand();

// The folder of TASKD_SOCKET; removed afterwards.
std::string FreshFolder();

// Of this process; those that a sanitizer started count.
int CountThreads();

// A mount namespace of its own for this process; false where that is not allowed.
bool OwnMounts();

// Forks, runs `body` in the child and returns its result (0 to 99; 128 + signal where one ended it).
int RunForked(const std::function<int()>& body);

}  // namespace taskd::testing

#define FRESH_TEST(suite, name)               \
  static void suite##_##name##_Body();        \
  TEST(suite, name) {                         \
    if (::taskd::testing::InFreshProcess()) { \
      suite##_##name##_Body();                \
    } else {                                  \
      ::taskd::testing::RunInFreshProcess();  \
    }                                         \
  }                                           \
  static void suite##_##name##_Body()
