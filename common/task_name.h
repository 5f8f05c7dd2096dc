// Names of tasks, as folders below the profiling directory have them.
#pragma once

#include <cstdint>
#include <string>

namespace taskd {

// A name that a user gave, as the name of a file: "slurm/train-7" is "slurm-train-7". At most 100 bytes.
std::string PlainFileName(const std::string& name);

// For a task that nobody has named: "default_task_id_<unix s>" (TaskD contract §4.6).
std::string DefaultTaskName(int64_t unix_s);

}  // namespace taskd
