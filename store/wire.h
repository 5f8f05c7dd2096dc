// PyTorch's TCPStore protocol: bytes of a client to requests, replies to bytes. No I/O.
//
// Integers are in the machine's byte order, strings are a u64 length and the bytes, counts are u64. A client of 2.2 or
// later begins with 00 CE F7 85 3C (VALIDATE); others send requests at once. Our own magics (kTierMagic, and that of a
// frame service) begin in the same way and turn the connection into one of frames, which this parser does not read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "store/request.h"

namespace taskd::store {

inline constexpr uint32_t kValidateMagic = 0x3C85F7CE;
// "TKS1" in memory order: as the length of a 1.x client's key it would be beyond every limit.
inline constexpr uint32_t kTierMagic = 0x31534B54;

class StoreParser {
 public:
  enum class Peer : uint8_t { kUnknown, kClient, kTier, kService };

  // `unvalidated`: k1x or k21, what a client without VALIDATE is taken for until its requests prove otherwise.
  // `service_magic`: FrameService::magic; 0: there is none.
  explicit StoreParser(StoreDialect unvalidated = StoreDialect::k1x, uint32_t service_magic = 0)
      : unvalidated_(unvalidated), service_magic_(service_magic) {}

  // More bytes from the peer. INVALID_ARGUMENT (an unknown type, a wrong magic, a length beyond the limits, a second
  // VALIDATE): the connection is to be closed; the message says what was wrong. Keeps at most one request's bytes and
  // what one call brought; never allocates by a length before the bytes for it have come.
  absl::Status Feed(std::string_view bytes);

  // The next whole request. False: more bytes are needed, or the peer is no PyTorch client, or Feed() failed.
  // VALIDATE is swallowed.
  absl::StatusOr<bool> Next(StoreRequest& request);

  Peer peer() const { return peer_; }
  // Of a client without VALIDATE: the assumed one. kUnknown: nothing that decides it was received yet.
  StoreDialect dialect() const {
    if (proven_ != StoreDialect::kUnknown) return proven_;
    return peer_ == Peer::kClient ? unvalidated_ : StoreDialect::kUnknown;
  }
  // What follows the magic of a tier or the frame service, once. The parser is empty then.
  std::string TakeRest();
  // What was fed and not handed out, VALIDATE and magics aside.
  size_t buffered_bytes() const { return available() + request_bytes_; }
  // Of memory that this takes, about: of short keys the vectors take most.
  size_t kept_bytes() const {
    return buffer_.capacity() + request_bytes_ +
           (request_.keys.capacity() + request_.values.capacity()) * sizeof(std::string);
  }

  // The same peer has another unvalidated connection that never sent a byte: the client is 1.x, and types 9 to 12 mean
  // what they meant in the middle of 2023. Does nothing if requests have shown another dialect.
  void ProveOneX() {
    if (proven_ == StoreDialect::kUnknown) proven_ = StoreDialect::k1x;
  }

 private:
  // What comes next of the request that is being read.
  enum class Step : uint8_t { kType, kCount, kLength, kBody, kNumber, kDone };

  void Open();
  absl::Status ReadStep();
  absl::Status ReadType(uint8_t type);
  absl::Status ReadLength(uint64_t length);
  void ReadBody();
  void FinishItem();
  bool Take(void* value, size_t size);
  size_t available() const { return buffer_.size() - position_; }
  bool NextIsKey() const;
  std::string& body() { return (body_is_key_ ? request_.keys : request_.values).back(); }

  const StoreDialect unvalidated_;
  const uint32_t service_magic_;
  StoreDialect proven_ = StoreDialect::kUnknown;
  Peer peer_ = Peer::kUnknown;
  absl::Status error_;
  std::string buffer_;
  size_t position_ = 0;  // of the first byte of buffer_ that was not read yet

  Step step_ = Step::kType;
  StoreRequest request_;        // as far as it was read
  uint64_t request_bytes_ = 0;  // of it, read
  uint64_t strings_left_ = 0;   // keys and values that follow, with the one that is being read
  uint64_t body_left_ = 0;      // bytes of that one
  bool body_is_key_ = false;
};

// Appends the reply to `op` as clients of all dialects read it. Nothing for operations without a reply.
void AppendReply(StoreOp op, const StoreReply& reply, std::string& out);

// Appends a request as a client of `dialect` (k1x, k21, k22) sends it; for clients of ours and tests.
// INVALID_ARGUMENT: the dialect has no such operation.
absl::Status AppendRequest(StoreDialect dialect, const StoreRequest& request, std::string& out);

}  // namespace taskd::store
