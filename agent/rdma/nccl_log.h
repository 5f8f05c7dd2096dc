// How NCCL connects nodes, according to its log: GPUDirect RDMA, RDMA through the host's memory, or sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace taskd::rdma {

struct NcclLogReport {
  // "gdrdma": nothing else. "rdma": no socket, at least one without GPUDirect. "socket": nothing else. "mixed": socket
  // and others. "unknown": no channel between nodes, as on one node or without NCCL_DEBUG=INFO.
  std::string_view verdict() const;

  int64_t gdrdma = 0;
  int64_t rdma = 0;
  int64_t socket = 0;
  int64_t intra = 0;  // P2P and SHM: within a node, no part of the verdict
  // The first channel between nodes that is not gdrdma; 0: none. Lines count from 1.
  int64_t first_offending_line = 0;
  std::string first_offending_text;
};

// Reads a log in parts of any size. Only "Channel … via X" counts; what stands around it, colour codes and several of
// them in one line (processes that wrote at once) do not matter. Memory is bounded: of a line longer than 1 MiB the
// beginning is judged.
class NcclLogClassifier {
 public:
  void Add(std::string_view bytes);
  // After the last part.
  NcclLogReport Finish();

 private:
  void Append(std::string_view part);
  void EndLine();

  NcclLogReport report_;
  std::string line_;
  int64_t line_number_ = 1;
};

}  // namespace taskd::rdma
