// Writes a simulated job's marks as the proxies of a real one would: <dir>/<rank>/<unix s> in TaskD's format (TaskD
// contract §4.5-4.6), .rank.json and parallel_group.json beside them, and <dir>/labels.json with the truth.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/simulate/simulator.h"
#include "marks/mark_record.h"

namespace taskd::simulate {

// OK if `dir` can be written to: it does not exist, or holds no rank. INVALID_ARGUMENT otherwise.
absl::Status CheckOutput(const std::string& dir);

class MarkWriter {
 public:
  explicit MarkWriter(std::string dir) : dir_(std::move(dir)) {}

  // Appends the marks of the simulator's last step, of all ranks.
  absl::Status WriteStep(Simulator& simulator);
  // What is still in memory, and labels.json.
  absl::Status Finish(const Simulator& simulator);

  uint64_t records() const { return records_; }

 private:
  struct RankFile {
    std::string lines;  // not written yet
    uint64_t name = 0;  // of the file; 0: none yet
    uint64_t size = 0;
    std::vector<uint64_t> open_without_stream;  // ids of ranges that end with another flag than most
  };

  absl::Status BeginLife(const Simulator& simulator);
  absl::Status Flush(int rank, RankFile& file);
  void Append(const MarkRecord& mark, RankFile& file);

  const std::string dir_;
  std::vector<RankFile> files_;
  uint64_t records_ = 0;
  bool begun_ = false;
};

// The labels as JSON, one object with the job's shape and its faults.
std::string LabelsJson(const Simulator& simulator);

}  // namespace taskd::simulate
