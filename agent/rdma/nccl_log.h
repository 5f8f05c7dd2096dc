// How NCCL connects nodes, according to its log: GPUDirect RDMA, RDMA through the host's memory, or sockets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace taskd::rdma {

struct NcclLogReport {
  // "gdrdma": nothing else. "rdma": no socket, at least one without GPUDirect. "socket": nothing else. "mixed": socket
  // and others. "unknown": no channel between nodes, as on one node or without NCCL_DEBUG=INFO. A log that ends before the
  // first channel is "socket" or "mixed" where processes have chosen sockets as their network.
  std::string_view verdict() const;

  int64_t gdrdma = 0;
  int64_t rdma = 0;
  int64_t socket = 0;  // TCP: NCCL's own sockets, GPUDirect-TCPX, libfabric over a TCP provider
  int64_t intra = 0;   // P2P and SHM: within a node, no part of the verdict
  // Processes that have chosen a network ("Using network X"): TCP, and any other.
  int64_t socket_networks = 0, other_networks = 0;
  // The first channel between nodes that is not gdrdma, else the first process that has chosen sockets; 0: none. Lines
  // count from 1.
  int64_t first_offending_line = 0;
  std::string first_offending_text;
};

// Reads a log in parts of any size. "Channel … via X" counts; what stands around it, colour codes and several of them in
// one line (processes that wrote at once) do not matter. What libfabric's channels are, their process has said before
// ("Selected provider is tcp"); without that line they count as RDMA. Memory is bounded: of a line longer than 1 MiB the
// beginning is judged.
class NcclLogClassifier {
 public:
  void Add(std::string_view bytes);
  // After the last part.
  NcclLogReport Finish();

 private:
  void Append(std::string_view part);
  void EndLine();
  void ReadNetwork(std::string_view line);
  bool IsSocket(std::string_view network, std::string_view line) const;
  void Offend(std::string_view line);

  NcclLogReport report_;
  // By process, as the log names it ("host:pid"): libfabric's provider is a TCP one.
  std::map<std::string, bool, std::less<>> has_tcp_provider_;
  bool chose_sockets_ = false;  // first_offending_line is a choice, and no channel
  std::string line_;
  int64_t line_number_ = 1;
};

}  // namespace taskd::rdma
