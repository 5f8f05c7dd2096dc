// Reads a file in order and in pieces, plain or gzip; its first two bytes distinguish them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd::readers {

// Not thread-safe.
class ByteSource {
 public:
  // The most output bytes of a gzip per input byte, once the output exceeds kMaxFree. Traces grow ten to thirty times.
  static constexpr uint64_t kMaxGrowth = 200;
  static constexpr uint64_t kMaxFree = uint64_t{64} << 20;

  // `path`: a regular file, or "-" for standard input. A file is read up to its present length, because a process may
  // append faster than it is read. INVALID_ARGUMENT, one line: it cannot be read.
  static absl::StatusOr<ByteSource> Open(const std::string& path);
  // The same for an open file, from its present offset. `name` is for the error.
  static absl::StatusOr<ByteSource> Of(UniqueFd fd, const std::string& name);
  // A source of these bytes, without unpacking.
  static ByteSource Of(std::string bytes);
  ByteSource(ByteSource&&) noexcept;
  ByteSource& operator=(ByteSource&&) noexcept;
  ~ByteSource();

  // Writes at most `size` of the next bytes to `data` and returns their number. 0: the end, or the file is damaged.
  size_t Read(char* data, size_t size);
  // Puts `bytes` before the rest.
  void PutBack(std::string bytes);
  // The reason why the source ended early; empty: it ended regularly.
  const std::string& damage() const { return damage_; }
  uint64_t bytes_read() const { return bytes_read_; }  // input bytes

 private:
  struct Inflate;  // zlib's state and its unread input

  explicit ByteSource(UniqueFd fd);
  size_t ReadFile(char* data, size_t size);
  size_t ReadGzip(char* data, size_t size);

  UniqueFd fd_;
  std::string ahead_;  // bytes from PutBack()
  size_t ahead_used_ = 0;
  std::unique_ptr<Inflate> inflate_;
  std::string damage_;
  uint64_t bytes_read_ = 0;
  uint64_t length_ = UINT64_MAX;  // length of the file
  uint64_t bytes_out_ = 0;
  bool ended_ = false;
};

}  // namespace taskd::readers
