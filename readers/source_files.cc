#include "readers/source_files.h"

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "readers/pickle.h"

namespace taskd::readers {
namespace {

constexpr int kMaxFolders = 16;  // levels of nesting

struct FormatWords {
  SourceFormat format;
  const char* name;
  const char* title;
};

constexpr std::array<FormatWords, 7> kFormats = {{
    {SourceFormat::kMarks, "marks", "TaskD's marks"},
    {SourceFormat::kKinetoTrace, "kineto", "PyTorch profiler traces"},
    {SourceFormat::kAscendProfile, "ascend", "Ascend profiles"},
    {SourceFormat::kNcclInspector, "nccl_inspector", "NCCL Inspector"},
    {SourceFormat::kFlightRecorder, "flight_recorder", "flight recorder dumps"},
    {SourceFormat::kNcclRas, "nccl_ras", "NCCL RAS"},
    {SourceFormat::kUnknown, "unknown", "files of no known format"},
}};

const FormatWords& WordsOf(SourceFormat format) {
  return *std::find_if(kFormats.begin(), kFormats.end() - 1,
                       [&](const FormatWords& words) { return words.format == format; });
}

struct Search {
  const std::set<std::string>& skipped;
  std::vector<SourceFile> files;
};

absl::Status AddPath(const std::string& path, int depth, bool is_named, Search& search);

absl::Status AddFolder(const std::string& path, int depth, Search& search) {
  if (depth > kMaxFolders) return absl::OkStatus();
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (folder == nullptr) {
    if (depth > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  for (const std::string& name : names) {
    if (absl::Status status = AddPath(absl::StrCat(path, "/", name), depth + 1, false, search); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

// Skips entries of a folder that are neither a file nor a folder: links could form a cycle.
absl::Status AddPath(const std::string& path, int depth, bool is_named, Search& search) {
  if (search.skipped.contains(path)) return absl::OkStatus();
  struct stat status;
  if ((is_named ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status)) != 0) {
    if (!is_named) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) return AddFolder(path, depth, search);
  if (!S_ISREG(status.st_mode)) {
    return is_named ? absl::InvalidArgumentError(absl::StrCat(path, ": is no file and no folder")) : absl::OkStatus();
  }
  if (search.files.size() == kMaxFiles)
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxFiles, " files"));
  search.files.push_back({path, static_cast<uint64_t>(status.st_size), {}});
  return absl::OkStatus();
}

absl::Status AddNamed(const std::string& path, Search& search) {
  if (path.empty()) return absl::InvalidArgumentError("a path is empty");
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  return AddPath(trimmed, 0, true, search);
}

bool FirstLineHas(std::string_view begin, std::string_view word) {
  return begin.substr(0, begin.find('\n')).find(word) != std::string_view::npos;
}

// Output of msprof-analyze: cluster_step_trace_time.csv has a line for each rank; cluster_communication.json and
// cluster_communication_matrix.json begin with the ranks of a group: {"(0, 1)": ….
bool SumsUpAscendRanks(std::string_view begin) {
  if (FirstLineHas(begin, "Step,Type,Index,") && FirstLineHas(begin, "Computing")) return true;
  if (!begin.starts_with('{')) return false;
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n", 1), begin.size()));
  return begin.starts_with("\"(") && begin.find("hcom_") != std::string_view::npos;
}

}  // namespace

const char* Name(SourceFormat format) { return WordsOf(format).name; }

SourceFormat FormatNamed(std::string_view name) {
  const auto* const found =
      std::find_if(kFormats.begin(), kFormats.end(), [&](const FormatWords& words) { return words.name == name; });
  return found == kFormats.end() ? SourceFormat::kUnknown : found->format;
}

const char* TitleOf(SourceFormat format) { return WordsOf(format).title; }

std::vector<std::string> ExpandPatterns(const std::vector<std::string>& paths) {
  std::vector<std::string> expanded;
  for (const std::string& path : paths) {
    struct stat status;
    glob_t found{};
    if (path.find_first_of("*?[") != std::string::npos && ::lstat(path.c_str(), &status) != 0 &&
        ::glob(path.c_str(), 0, nullptr, &found) == 0) {
      expanded.insert(expanded.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    } else {
      expanded.push_back(path);
    }
    ::globfree(&found);
  }
  return expanded;
}

absl::StatusOr<std::vector<SourceFile>> FindSourceFiles(const std::vector<std::string>& paths,
                                                        const std::set<std::string>& skipped) {
  Search search{.skipped = skipped, .files = {}};
  std::vector<SourceFile>& files = search.files;
  for (const std::string& path : ExpandPatterns(paths)) {
    if (path == "-") {
      files.push_back({path, 0, {}});
    } else if (absl::Status status = AddNamed(path, search); !status.ok()) {
      return status;
    }
  }
  std::sort(files.begin(), files.end(), [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  files.erase(std::unique(files.begin(), files.end(),
                          [](const SourceFile& a, const SourceFile& b) { return a.path == b.path; }),
              files.end());
  return std::move(files);
}

SourceFormat FormatOf(std::string_view begin) {
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  if (begin.empty()) return SourceFormat::kUnknown;
  const auto has = [begin](std::string_view word) { return begin.find(word) != std::string_view::npos; };
  if (begin[0] == '{' && (has("\"coll_perf\"") || has("\"p2p_perf\"") || has("\"inspector_output_format_version\""))) {
    return SourceFormat::kNcclInspector;
  }
  if (SumsUpAscendRanks(begin)) return SourceFormat::kUnknown;
  if (begin[0] == '{' && has("\"Communication Time Info\"")) return SourceFormat::kAscendProfile;
  if (FirstLineHas(begin, "Communication(Not Overlapped)") && FirstLineHas(begin, "Computing")) {
    return SourceFormat::kAscendProfile;
  }
  // A file of `taskd trace` contains only data from its source.
  if (begin.substr(0, 128).find("\"producer\":\"taskd trace\"") != std::string_view::npos)
    return SourceFormat::kUnknown;
  if (begin[0] == '[' && has("\"ph\"") && has("\"name\"")) return SourceFormat::kKinetoTrace;
  if (begin[0] == '{' && (has("\"traceEvents\"") || has("\"distributedInfo\"") || has("\"deviceProperties\""))) {
    return SourceFormat::kKinetoTrace;
  }
  if (has("\"communicators_count\"") && has("\"communicators\"")) return SourceFormat::kNcclRas;
  if (begin[0] == '{' && (has("\"pg_config\"") || has("\"collective_seq_id\""))) return SourceFormat::kFlightRecorder;
  if (IsPickle(begin) && (has("pg_config") || has("collective_seq_id") || (has("version") && has("entries")))) {
    return SourceFormat::kFlightRecorder;
  }
  return SourceFormat::kUnknown;
}

std::string WhatItSeems(std::string_view begin, const std::string& path) {
  const auto has = [begin](std::string_view word) { return begin.find(word) != std::string_view::npos; };
  if (begin.find_first_not_of(" \t\r\n\0") == std::string_view::npos) return "is empty";
  const bool has_ras_heading = has("NCCL version") && (has("Job summary") || has("Communicators..."));
  if (has_ras_heading || has("ranks have launched up to operation")) {
    return "is the text of ncclras, which is for people; read is JSON: ncclras -f json";
  }
  if (SumsUpAscendRanks(begin)) {
    return "is what msprof-analyze sums up of all ranks; read is the folder of each rank (..._ascend_pt, "
           "..._ascend_ms)";
  }
  if (begin.starts_with("SQLite format 3")) {
    return "is a database (of Ascend's profilers or Nsight Systems); read is text: of torch_npu.profiler "
           "export_type=Text, "
           "of PyTorch a chrome trace (prof.export_chrome_trace)";
  }
  const bool is_nsys = path.ends_with(".nsys-rep") || path.ends_with(".qdrep");
  if (is_nsys)
    return "is a report of Nsight Systems; read is a chrome trace of PyTorch's profiler (prof.export_chrome_trace)";
  if (begin.starts_with("PK\x03\x04")) return "is a zip archive: unpack it and name the folder";
  if (begin.size() > 262 && begin.substr(257, 5) == "ustar") return "is a tar archive: unpack it and name the folder";
  if (begin.starts_with("\x28\xb5\x2f\xfd")) return "is packed with zstd: unpack it (zstd -d), or pack it with gzip";
  if (begin.starts_with("\xfd"
                        "7zXZ"))
    return "is packed with xz: unpack it (xz -d), or pack it with gzip";
  // Protobuf has no magic number. Traces of Perfetto begin with a packet, those of TensorFlow and JAX with a plane.
  const bool is_pb = path.ends_with(".pb") || path.ends_with(".pftrace") || path.ends_with(".perfetto-trace");
  if (is_pb) {
    return "is a protobuf; read is a chrome trace: the *.trace.json.gz beside an .xplane.pb, or traceconv json FILE of "
           "Perfetto's";
  }
  if (has("NCCL INFO")) return "is a log of NCCL: taskd rdma check reads it";
  return "";
}

std::string HostOfPath(const std::string& path) {
  std::string_view name = path;
  name = name.substr(name.find_last_of('/') + 1);
  const size_t end = name.find(".pt.trace.json");
  if (end == std::string_view::npos) return "";
  name = name.substr(0, end);
  // The name is HOST_PID.TIME.
  const auto drop_number = [&name](char before) {
    const size_t last = name.find_last_not_of("0123456789");
    if (last == std::string_view::npos || last + 1 == name.size() || name[last] != before) return false;
    name = name.substr(0, last);
    return !name.empty();
  };
  return drop_number('.') && drop_number('_') ? std::string(name) : "";
}

}  // namespace taskd::readers
