// What MindCluster's variables say about the log of a program that runs for long (TaskD contract §1.6), and its file.
//
//   TASKD_LOG_PATH        folder of the file; with it, or TASKD_FILE_LOG_LEVEL, there is one
//   TASKD_FILE_LOG_LEVEL  least level in the file: DEBUG, INFO (default), WARNING, ERROR
//   TASKD_STD_LOG_LEVEL   least level on stderr; wins over TASKD_LOG_LEVEL
//   TASKD_LOG_STDOUT      False: nothing on stderr
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/unique_fd.h"

namespace taskd {

struct LogSettings {
  std::optional<spdlog::level::level_enum> stderr_level;  // none: as TASKD_LOG_LEVEL has it
  spdlog::level::level_enum file_level = spdlog::level::info;
  std::string folder;                 // "": no file
  std::vector<std::string> problems;  // a line for each value that says nothing; the default holds
};

LogSettings ReadLogSettings(const Environment& environment);

// Appends to `folder`/`name` ("manager.log"). One that a line would take over max_bytes is put aside as
// manager-2026-01-02T03-04-05.678.log (UTC), which nobody may write to; of these the newest kKept stay, for kKeptDays.
// Several processes may share a file: a line is one write, and the file of that name is taken again when another one has
// put this one aside. Not for several threads at once.
class LogFile {
 public:
  using Clock = std::chrono::system_clock;

  static constexpr size_t kMaxBytes = 20 << 20;
  static constexpr size_t kKept = 10;
  static constexpr int kKeptDays = 7;

  LogFile(std::string folder, std::string name, size_t max_bytes = kMaxBytes);

  // Whole lines. What is not there is made: the folder with 0750, the file with 0640. Error: path and reason; a symbolic
  // link is none of ours.
  absl::Status Write(std::string_view line, Clock::time_point now = Clock::now());

 private:
  std::string Path() const;  // for people
  absl::Status Open();
  absl::Status Roll(Clock::time_point now);
  void RemoveOld(Clock::time_point now) const;

  const std::string folder_;
  const std::string name_;
  const size_t max_bytes_;
  UniqueFd folder_fd_;
  UniqueFd file_;
};

// Call once in a daemon, after InitLog and before other threads log: does all of it for the default logger. A value that
// says nothing, or a file that cannot be written, is one warning; the daemon goes on. Nobody who logs waits for the file:
// 1 MiB of lines does, what is more is counted in the file, and at exit() the last lines have a second.
void TakeLogVariables(const Environment& environment, const std::string& file_name);

}  // namespace taskd
