// Finds the files that `--from` names, and the format of each: by its content, never by its name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd::readers {

enum class SourceFormat : uint8_t {
  kUnknown,
  kMarks,  // TaskD's mark files, in folders of their own (readers/mark_directory.h)
  kKinetoTrace,
  kAscendProfile,
  kNcclInspector,
  kFlightRecorder,
  kNcclRas
};

// The name in `taskd diagnose --json`: "marks", "kineto", "ascend", "nccl_inspector", "flight_recorder", "nccl_ras",
// "unknown".
const char* Name(SourceFormat format);
// The format with this name; kUnknown if there is none.
SourceFormat FormatNamed(std::string_view name);
// The name of such files for people: "PyTorch profiler traces".
const char* TitleOf(SourceFormat format);

struct SourceFile {
  std::string path;
  uint64_t bytes = 0;              // size when it was found; 0 for standard input
  std::vector<std::string> parts;  // files of a folder that is read as one file; otherwise empty
};

// Expands patterns that the shell did not expand. Other paths, and patterns without a match, stay as they are.
std::vector<std::string> ExpandPatterns(const std::vector<std::string>& paths);

// Finds files, folders (recursively), patterns as above, and "-". The result is ordered by path, without duplicates.
// Names in folders that begin with a dot, and `skipped` paths, are ignored. INVALID_ARGUMENT: one of `paths` does not
// exist, or there are more than kMaxFiles files.
absl::StatusOr<std::vector<SourceFile>> FindSourceFiles(const std::vector<std::string>& paths,
                                                        const std::set<std::string>& skipped = {});
inline constexpr size_t kMaxFiles = 1 << 20;

// `begin`: at least the first 64 KiB of the file, unpacked. Never returns kMarks.
SourceFormat FormatOf(std::string_view begin);
// For a file of unknown format: what it seems to be, and which command gives a known format. Examples: "is empty", "is
// the text of ncclras; …". Empty: unknown.
std::string WhatItSeems(std::string_view begin, const std::string& path);

// The host in "HOST_PID.TIME.pt.trace.json", as PyTorch's tensorboard_trace_handler names its files; empty: unknown.
std::string HostOfPath(const std::string& path);

}  // namespace taskd::readers
