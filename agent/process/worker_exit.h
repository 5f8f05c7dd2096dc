// How a rank ended, and what it wrote about that.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace taskd::process {

struct WorkerExit {
  int local_rank = 0;
  int rank = 0;
  pid_t pid = 0;
  int code = 0;                         // exit code; 128 + signal where a signal ended it
  int signal = 0;                       // 0: it exited
  std::string killed_by;                // of SIGKILL, or of code 137: what memory_kills.h says; else empty
  int64_t time_ns = 0;                  // CLOCK_REALTIME when it was seen
  std::string error_message;            // from its error file (written by torch's @record), else empty
  std::string error_json;               // that file, whole, else empty
  std::vector<std::string> last_lines;  // of stderr where it goes through us or to a file; at most 20
  bool stderr_unread = false;           // it goes neither way
  bool ok() const { return code == 0; }
};

// "exit code 3", "SIGSEGV (signal 11)", "killed by the kernel: out of memory (limit 300 MiB)"
std::string DescribeEnd(const WorkerExit& exit);

// The message of an error file that a rank wrote: {"message":{"message":"Type: text","extraInfo":{…}}}, or
// {"message":"text"}. Empty: there is none in it.
std::string MessageOfErrorFile(std::string_view text);

}  // namespace taskd::process
