// The files that `--from` names, and what each of them is: by its content, never by its name.
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
  kMarks,  // of TaskD, in folders of their own (readers/mark_directory.h)
  kKinetoTrace,
  kAscendProfile,
  kNcclInspector,
  kFlightRecorder,
  kNcclRas
};

// As in `taskd diagnose --json`: "marks", "kineto", "ascend", "nccl_inspector", "flight_recorder", "nccl_ras", "unknown".
const char* Name(SourceFormat format);
// The one of this name; kUnknown: there is none.
SourceFormat FormatNamed(std::string_view name);
// As people call such files: "PyTorch profiler traces".
const char* TitleOf(SourceFormat format);

struct SourceFile {
  std::string path;
  uint64_t bytes = 0;              // when it was found; 0 for standard input
  std::vector<std::string> parts;  // of a folder that is read as one file; empty: it is one
};

// Patterns that the shell did not expand become the paths that they match; other paths, and those that match nothing, stay.
std::vector<std::string> ExpandPatterns(const std::vector<std::string>& paths);

// Files, folders (what is below them too), patterns as above, and "-". In order of their paths, each
// once. Names in folders that begin with a dot, and what is `skipped`, are left alone. INVALID_ARGUMENT: one of `paths` is
// not there, or there are more than kMaxFiles.
absl::StatusOr<std::vector<SourceFile>> FindSourceFiles(const std::vector<std::string>& paths,
                                                        const std::set<std::string>& skipped = {});
inline constexpr size_t kMaxFiles = 1 << 20;

// `begin`: at least the first 64 KiB of it, unpacked. Never kMarks.
SourceFormat FormatOf(std::string_view begin);
// Of a file of no known format: what it seems to be, and which command gives what is read instead. "is empty", "is the text of
// ncclras; …". Empty: nothing is known of it.
std::string WhatItSeems(std::string_view begin, const std::string& path);

// Of "HOST_PID.TIME.pt.trace.json" as PyTorch's tensorboard_trace_handler calls its files; empty: unknown.
std::string HostOfPath(const std::string& path);

}  // namespace taskd::readers
