// What `taskd run` brings along for a job: on every node the proxy and stacks of the ranks, where the root store is the
// manager and the supervision of the job. Ranks do not depend on any of it.
#pragma once

#include <memory>

#include "agent/run/launcher_observer.h"
#include "agent/run/options.h"
#include "common/environment.h"

namespace taskd::run {

// For RunLauncher(), which it must outlive; ends afterwards what it has started. `environment`: the launcher's own.
std::unique_ptr<LauncherObserver> MakeJobServices(const RunOptions& options, const Environment& environment);

}  // namespace taskd::run
