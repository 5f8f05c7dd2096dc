// Names of tasks, as folders below the profiling directory have them.
#pragma once

#include <string>

namespace taskd {

// A name that a user gave, as the name of a file: "slurm/train-7" is "slurm-train-7". At most 100 bytes.
std::string PlainFileName(const std::string& name);

// For a task that nobody has named: "default_task_id_<unix s>_<host>_<8 hex digits>" (TaskD contract §4.6 has the first
// part), unlike that of any other, also of one that begins in the same second and writes to the same folder.
std::string FreshTaskName();

}  // namespace taskd
