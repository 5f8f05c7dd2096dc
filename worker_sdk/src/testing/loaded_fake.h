// The fake MSPTI (fake_mspti.h), loaded: the library under test finds it as it finds the real one, so a test does not
// link it either.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "testing/fake_mspti.h"

namespace taskd::worker {

struct Fake {
  decltype(&FakeMark) mark;
  decltype(&FakeRangeStart) range_start;
  decltype(&FakeRangeEnd) range_end;
  decltype(&FakeAppend) append;
  decltype(&FakeFail) fail;
  decltype(&FakeOtherSubscriber) other_subscriber;
  decltype(&FakeHoldHandOver) hold_hand_over;
  decltype(&FakeHandOverHeld) hand_over_held;
  decltype(&FakeSetTraits) set_traits;
  decltype(&FakeTakeLog) take_log;
  decltype(&FakeGetStats) get_stats;
  // MSPTI's own, for another subscriber.
  int (*enable)(int kind);
  int (*register_callbacks)(void (*request)(uint8_t**, size_t*, size_t*), void (*complete)(uint8_t*, size_t, size_t));

  // Visible to all, as the real one is opened (contract §4.1).
  Fake() {
    void* library = dlopen(TASKD_FAKE_MSPTI, RTLD_NOW | RTLD_GLOBAL);
    EXPECT_NE(library, nullptr) << dlerror();
    auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      EXPECT_NE(function, nullptr) << name;
    };
    find(mark, "FakeMark");
    find(range_start, "FakeRangeStart");
    find(range_end, "FakeRangeEnd");
    find(append, "FakeAppend");
    find(fail, "FakeFail");
    find(other_subscriber, "FakeOtherSubscriber");
    find(hold_hand_over, "FakeHoldHandOver");
    find(hand_over_held, "FakeHandOverHeld");
    find(set_traits, "FakeSetTraits");
    find(take_log, "FakeTakeLog");
    find(get_stats, "FakeGetStats");
    find(enable, "msptiActivityEnable");
    find(register_callbacks, "msptiActivityRegisterCallbacks");
  }
  std::string Log() const {
    static char text[1 << 16];
    take_log(text, sizeof(text));
    return text;
  }
  FakeStats Stats() const {
    FakeStats stats;
    get_stats(&stats);
    return stats;
  }
};

}  // namespace taskd::worker
