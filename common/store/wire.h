// PyTorch's TCPStore protocol: bytes of a client to requests, replies to bytes. No I/O.
//
// Integers are in the machine's byte order, strings are a u64 length and the bytes, counts are u64. A client of 2.2 or
// later begins with 00 CE F7 85 3C (VALIDATE); others send requests at once. Two magics of our own (kTierMagic,
// kLauncherMagic) begin in the same way and turn the connection into one of frames, which this parser does not read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/store/request.h"

namespace taskd {

inline constexpr uint32_t kValidateMagic = 0x3C85F7CE;
// "TKS1" and "TKL1" in memory order: as the length of a 1.x client's key they would be beyond every limit.
inline constexpr uint32_t kTierMagic = 0x31534B54;
inline constexpr uint32_t kLauncherMagic = 0x314C4B54;

class StoreParser {
 public:
  enum class Peer : uint8_t { kUnknown, kClient, kTier, kLauncher };

  // `unvalidated`: k1x or k21, what a client without VALIDATE is taken for until its requests prove otherwise.
  explicit StoreParser(StoreDialect unvalidated = StoreDialect::k1x);

  // More bytes from the peer. INVALID_ARGUMENT (an unknown type, a wrong magic, a length beyond the limits, a second
  // VALIDATE): the connection is to be closed; the message says what was wrong. Keeps at most one request's bytes and
  // what one call brought; never allocates by a length before the bytes for it have come.
  absl::Status Feed(std::string_view bytes);

  // The next whole request. False: more bytes are needed, or the peer is no PyTorch client, or Feed() failed.
  // VALIDATE is swallowed.
  absl::StatusOr<bool> Next(StoreRequest& request);

  Peer peer() const { return peer_; }
  StoreDialect dialect() const { return dialect_; }
  // What follows the magic of a tier or launcher, once. The parser is empty then.
  std::string TakeRest();
  size_t buffered_bytes() const;

  // An unvalidated connection beside this one from the same peer that never said a word: the client is 1.x.
  void ProveOneX() {
    if (dialect_ == StoreDialect::kUnknown) dialect_ = StoreDialect::k1x;
  }

 private:
  StoreDialect unvalidated_;
  StoreDialect dialect_ = StoreDialect::kUnknown;
  Peer peer_ = Peer::kUnknown;
  std::string buffer_;
  size_t position_ = 0;
};

// Appends the reply to `op` as clients of all dialects read it. Nothing for operations without a reply.
void AppendReply(StoreOp op, const StoreReply& reply, std::string& out);

// Appends a request as a client of `dialect` (k1x, k21, k22) sends it; for clients of ours and tests.
// INVALID_ARGUMENT: the dialect has no such operation.
absl::Status AppendRequest(StoreDialect dialect, const StoreRequest& request, std::string& out);

}  // namespace taskd
