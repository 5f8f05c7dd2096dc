// The bytes of a file, plain or gzip, as its first two bytes say, in order and in pieces.
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
  // What a gzip may grow to for each of its own bytes, once it is larger than kMaxFree: traces grow ten to thirty times.
  static constexpr uint64_t kMaxGrowth = 200;
  static constexpr uint64_t kMaxFree = uint64_t{64} << 20;

  // `path`: a regular file, as long as it is now: somebody may write to it faster than it is read; "-": standard input.
  // INVALID_ARGUMENT, one line: it cannot be read.
  static absl::StatusOr<ByteSource> Open(const std::string& path);
  // The same of an open file, from where it stands. `name`: for the error.
  static absl::StatusOr<ByteSource> Of(UniqueFd fd, const std::string& name);
  // These bytes, as they are.
  static ByteSource Of(std::string bytes);
  ByteSource(ByteSource&&) noexcept;
  ByteSource& operator=(ByteSource&&) noexcept;
  ~ByteSource();

  // How many of the next bytes were written to `data`, at most `size`. 0: the end, or where the file is damaged.
  size_t Read(char* data, size_t size);
  // `bytes` come next, before the rest.
  void PutBack(std::string bytes);
  // Why no more came than did; empty: that was the end.
  const std::string& damage() const { return damage_; }
  uint64_t bytes_read() const { return bytes_read_; }  // of the file

 private:
  struct Inflate;  // zlib's state, and the bytes that it has not seen

  explicit ByteSource(UniqueFd fd);
  size_t ReadFile(char* data, size_t size);
  size_t ReadGzip(char* data, size_t size);

  UniqueFd fd_;
  std::string ahead_;  // comes before the rest
  size_t ahead_used_ = 0;
  std::unique_ptr<Inflate> inflate_;
  std::string damage_;
  uint64_t bytes_read_ = 0;
  uint64_t length_ = UINT64_MAX;  // of the file
  uint64_t bytes_out_ = 0;
  bool ended_ = false;
};

}  // namespace taskd::readers
