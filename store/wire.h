// Implements PyTorch's TCPStore protocol: parses requests from a client's bytes, and turns replies into bytes. It does
// no I/O.
//
// Integers are in the machine's byte order, strings are a u64 length and the bytes, counts are u64. A client of 2.2 or
// later begins with 00 CE F7 85 3C (VALIDATE); others send requests at once. TaskD's own magics (kTierMagic, and that
// of a frame service) begin in the same way and turn the connection into one of frames, which this parser does not
// read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "store/request.h"

namespace taskd::store {

inline constexpr uint32_t kValidateMagic = 0x3C85F7CE;
// This is "TKS1" in memory order. As the length of a 1.x client's key it would exceed every limit.
inline constexpr uint32_t kTierMagic = 0x31534B54;

class StoreParser {
 public:
  enum class Peer : uint8_t { kUnknown, kClient, kTier, kService };

  // `unvalidated` is k1x or k21: the assumed dialect of a client without VALIDATE until its requests prove another.
  // `service_magic` is FrameService::magic; 0: there is no service.
  explicit StoreParser(StoreDialect unvalidated = StoreDialect::k1x, uint32_t service_magic = 0)
      : unvalidated_(unvalidated), service_magic_(service_magic) {}

  // Takes more bytes from the peer. INVALID_ARGUMENT: the connection has to be closed, because of an unknown type, a
  // wrong magic, a length beyond the limits or a second VALIDATE; the message names the reason. The parser keeps at
  // most one request's bytes and those of one call. Memory follows the bytes that have come, not the announced lengths.
  absl::Status Feed(std::string_view bytes);

  // Reads the next whole request. Returns false if more bytes are needed, if the peer is not a PyTorch client, or after
  // an error of Feed(). Returns the error of an invalid request. VALIDATE is consumed.
  absl::StatusOr<bool> Next(StoreRequest& request);

  Peer peer() const { return peer_; }
  // Returns the client's dialect; without VALIDATE it is the assumed one. kUnknown: no byte that decides it has come.
  StoreDialect dialect() const {
    if (proven_ != StoreDialect::kUnknown) return proven_;
    return peer_ == Peer::kClient ? unvalidated_ : StoreDialect::kUnknown;
  }
  // Returns the bytes after the magic of a tier or the frame service, once. Then the parser is empty.
  std::string TakeRest();
  // Returns the number of bytes that were fed and not returned, without VALIDATE and magics.
  size_t buffered_bytes() const { return available() + request_bytes_; }
  // Returns the approximate memory of the parser. For short keys the vectors take most of it.
  size_t kept_bytes() const {
    return buffer_.capacity() + request_bytes_ +
           (request_.keys.capacity() + request_.values.capacity()) * sizeof(std::string);
  }

  // Reports that the peer has another unvalidated connection that never sent a byte. This proves 1.x, and types 9 to 12
  // have their meaning of mid-2023. Does nothing if requests have shown another dialect.
  void ProveOneX() {
    if (proven_ == StoreDialect::kUnknown) proven_ = StoreDialect::k1x;
  }

 private:
  // The next part of the request that is being read.
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
  size_t position_ = 0;  // position of the first unread byte of buffer_

  Step step_ = Step::kType;
  StoreRequest request_;        // the request as far as it is read
  uint64_t request_bytes_ = 0;  // bytes of it that are read
  uint64_t strings_left_ = 0;   // keys and values to read, including the present one
  uint64_t body_left_ = 0;      // bytes of the present one to read
  bool body_is_key_ = false;
};

// Appends the reply to `op` as clients of all dialects read it. Only operations with a reply append bytes.
void AppendReply(StoreOp op, const StoreReply& reply, std::string& out);

// Appends a request as a client of `dialect` (k1x, k21, k22) sends it; for TaskD's own clients and tests.
// INVALID_ARGUMENT: the dialect lacks the operation, or the request does not fit it.
absl::Status AppendRequest(StoreDialect dialect, const StoreRequest& request, std::string& out);

}  // namespace taskd::store
