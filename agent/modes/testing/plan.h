// Plans in tests: PlanMode on a machine with the host names and GPUs that the test sets.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/modes/plans/mode_plan.h"
#include "nlohmann/json.hpp"

namespace taskd::modes {

struct TestNode {
  ModeOptions options;
  Environment environment;
  Environment names;  // to addresses; all others do not resolve
  int gpus = -1;
  std::string sysfs = "/nonexistent";

  TestNode(std::string mode, Environment set) : environment(std::move(set)) {
    options.mode = std::move(mode);
    options.command = {"train"};
  }

  absl::StatusOr<ModePlan> Plan() const {
    ModeMachine machine;
    machine.ipv4 = [this](const std::string& host) {
      const auto found = names.find(host);
      return found == names.end() ? "" : found->second;
    };
    machine.gpus = [this] { return gpus; };
    machine.read_file = [](const std::string& path) -> absl::StatusOr<std::string> {
      return absl::NotFoundError(path);
    };
    machine.sysfs = sysfs;
    return PlanMode(options, environment, machine);
  }
  // The plan as a dry run prints it; the test fails if there is none.
  nlohmann::json Json() const {
    const absl::StatusOr<ModePlan> plan = Plan();
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? nlohmann::json::parse(ModePlanJson(*plan)) : nlohmann::json();
  }
  // The error as the user sees it, one line; "" if there is none.
  std::string Error() const {
    const absl::StatusOr<ModePlan> plan = Plan();
    EXPECT_TRUE(plan.ok() || absl::IsInvalidArgument(plan.status()) || options.mode == "ascend") << plan.status();
    std::string text(plan.status().message());
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    return text;
  }
};

}  // namespace taskd::modes
