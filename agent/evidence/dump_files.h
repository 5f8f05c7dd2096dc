// The dumps of PyTorch's flight recorder that a node's ranks write while their job hangs: where they are, and what is in
// them.
//
// Each rank's watchdog writes one file, not at once and not all at the same time: PREFIX and the global rank, opened for
// writing and filled. So a file counts once it is whole, and one that was there before the job hung does not count. Nor
// does one of another user, or what is no plain file: /tmp is everybody's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/environment.h"
#include "diagnosis/hang.h"
#include "readers/diagnose_sources.h"

namespace taskd::evidence {

// The prefixes at which a rank with this environment may dump: those that it is given, and those of PyTorch, of its
// older releases and of torch_npu where it is given none.
std::vector<std::string> DumpPrefixes(const Environment& environment);

// Not thread-safe.
class DumpFiles {
 public:
  // Of `ranks` (global), of a job of `world_size` ranks that hangs since `since_ns` (Unix).
  DumpFiles(std::vector<std::string> prefixes, std::vector<int> ranks, int world_size, int64_t since_ns);

  // Looks again. False: nothing is new.
  bool Look();

  // The facts of the dumps as of the last Look(), groups as the dumps have them.
  const diagnosis::HangFacts& facts() const { return facts_; }
  // The files, by rank; what is wrong with them.
  const std::vector<readers::Source>& sources() const { return sources_; }

 private:
  // What a file shows of itself without being read.
  struct Seen {
    uint64_t inode = 0;
    int64_t changed_ns = 0;
    int64_t bytes = 0;

    friend bool operator==(const Seen&, const Seen&) = default;
  };
  struct Found {
    std::string path;
    Seen seen;
  };

  std::map<int, Found> Find() const;
  void ReadAll(const std::map<int, Found>& found);

  const std::vector<std::string> prefixes_;
  const std::vector<int> ranks_;
  const int world_size_;
  const int64_t since_ns_;
  std::map<std::string, Seen> before_;  // as of the last Look(), by path
  std::map<std::string, Seen> taken_;   // what facts_ and sources_ are of
  diagnosis::HangFacts facts_;
  std::vector<readers::Source> sources_;
};

}  // namespace taskd::evidence
