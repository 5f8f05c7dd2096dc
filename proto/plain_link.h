// One connection in plain text to a server that is not TaskD's (ClusterD), for gRPC to call over.
//
// gRPC's client keeps the header block of an answer as long as it goes on: its limit of metadata begins anew with each
// CONTINUATION, and its quota does not count the values. So what the server sends passes a thread that counts header
// blocks, and frames, on its way to gRPC, and closes the connection where one is too long (HeaderBlocks) or there are
// too many.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

namespace taskd::proto {

class PlainLink {
 public:
  // Begins to connect to HOST:PORT; does not wait for it. The connection lives as long as somebody has the channel, and
  // is never made anew: after a call that was UNAVAILABLE the next one needs another link. RESOURCE_EXHAUSTED: no
  // descriptors, or no thread.
  static absl::StatusOr<PlainLink> Begin(const std::string& address);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // What became of a call over it, better explained where the connection failed.
  grpc::Status Explain(const grpc::Status& status) const;

 private:
  struct Shared;

  PlainLink(std::shared_ptr<Shared> shared, std::shared_ptr<grpc::Channel> channel);

  std::shared_ptr<Shared> shared_;  // with the thread
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace taskd::proto
