#include "readers/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::readers {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // as inflateInit2 expects it

}  // namespace

struct ByteSource::Inflate {
  z_stream stream{};
  std::array<char, size_t{64} << 10> input;

  Inflate() = default;
  ~Inflate() { inflateEnd(&stream); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
};

ByteSource::ByteSource(UniqueFd fd) : fd_(std::move(fd)) {}
ByteSource::ByteSource(ByteSource&&) noexcept = default;
ByteSource& ByteSource::operator=(ByteSource&&) noexcept = default;
ByteSource::~ByteSource() = default;

absl::StatusOr<ByteSource> ByteSource::Open(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer would block the open.
  UniqueFd fd(path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (path != "-" && !S_ISREG(status.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is no file"));
  return Of(std::move(fd), path);
}

absl::StatusOr<ByteSource> ByteSource::Of(UniqueFd fd, const std::string& name) {
  ByteSource source(std::move(fd));
  struct stat status {};
  if (::fstat(source.fd_.get(), &status) == 0 && S_ISREG(status.st_mode))
    source.length_ = static_cast<uint64_t>(status.st_size);
  std::array<char, 2> begin{};
  while (source.ahead_.size() < begin.size()) {
    const size_t got = source.ReadFile(begin.data(), begin.size() - source.ahead_.size());
    if (got == 0) break;
    source.ahead_.append(begin.data(), got);
  }
  if (!source.damage_.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", source.damage_));
  if (source.ahead_ != "\x1f\x8b") return source;
  source.inflate_ = std::make_unique<Inflate>();
  if (inflateInit2(&source.inflate_->stream, kGzipOnly) != Z_OK) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": zlib does not start"));
  }
  source.inflate_->input[0] = source.ahead_[0];
  source.inflate_->input[1] = source.ahead_[1];
  source.inflate_->stream.next_in = reinterpret_cast<Bytef*>(source.inflate_->input.data());
  source.inflate_->stream.avail_in = 2;
  source.ahead_.clear();
  return source;
}

ByteSource ByteSource::Of(std::string bytes) {
  ByteSource source{UniqueFd()};
  source.PutBack(std::move(bytes));
  source.ended_ = true;
  return source;
}

size_t ByteSource::Read(char* data, size_t size) {
  if (size == 0) return 0;
  if (ahead_used_ < ahead_.size()) {
    const size_t got = std::min(size, ahead_.size() - ahead_used_);
    memcpy(data, ahead_.data() + ahead_used_, got);
    ahead_used_ += got;
    return got;
  }
  if (ended_) return 0;
  const size_t got = inflate_ != nullptr ? ReadGzip(data, size) : ReadFile(data, size);
  bytes_out_ += got;
  ended_ = got == 0;
  return got;
}

void ByteSource::PutBack(std::string bytes) {
  bytes.append(ahead_, ahead_used_);
  ahead_ = std::move(bytes);
  ahead_used_ = 0;
}

size_t ByteSource::ReadFile(char* data, size_t size) {
  size = static_cast<size_t>(std::min<uint64_t>(size, length_ - bytes_read_));
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), data, size);
  } while (got < 0 && errno == EINTR);
  if (got < 0) damage_ = std::strerror(errno);
  bytes_read_ += static_cast<uint64_t>(std::max<ssize_t>(got, 0));
  return static_cast<size_t>(std::max<ssize_t>(got, 0));
}

size_t ByteSource::ReadGzip(char* data, size_t size) {
  z_stream& stream = inflate_->stream;
  size = std::min<size_t>(size, size_t{1} << 20);
  stream.next_out = reinterpret_cast<Bytef*>(data);
  stream.avail_out = static_cast<uInt>(size);
  while (stream.avail_out == size) {
    if (bytes_out_ > kMaxFree && bytes_out_ / kMaxGrowth > bytes_read_) {
      damage_ = absl::StrCat("its gzip grows to more than ", kMaxGrowth, " times its size");
      return 0;
    }
    if (stream.avail_in == 0) {
      const size_t got = ReadFile(inflate_->input.data(), inflate_->input.size());
      if (got == 0) {
        // The input ends between two members, or before the first one.
        if (stream.total_in != 0 && damage_.empty()) damage_ = "its gzip ends early";
        return 0;
      }
      stream.next_in = reinterpret_cast<Bytef*>(inflate_->input.data());
      stream.avail_in = static_cast<uInt>(got);
    }
    const int result = inflate(&stream, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      inflateReset(&stream);  // gzip files may be concatenated
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      // Data after the last member is not part of the file (gzip itself ignores it).
      const bool behind = stream.total_out == 0 && bytes_out_ > 0;
      if (!behind && stream.avail_out == size) damage_ = "its gzip is damaged";
      if (behind || stream.avail_out == size) return 0;
      return size - stream.avail_out;
    }
  }
  return size - stream.avail_out;
}

}  // namespace taskd::readers
