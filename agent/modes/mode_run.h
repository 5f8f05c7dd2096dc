// What a node of a job in a mode of `taskd run` is told.
#pragma once

#include <string>

#include "agent/modes/plans/mode_plan.h"
#include "proto/security.h"

namespace taskd::modes {

struct ModeRun {
  ModeOptions options;
  Environment environment;  // of `taskd run`
  // The facts of this machine, except host names, which are resolved asynchronously.
  ModeMachine machine;
  proto::Security security;  // what the operator gave
  std::string program;       // this one
};

}  // namespace taskd::modes
