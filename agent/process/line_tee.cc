#include "agent/process/line_tee.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/equal_lines.h"
#include "common/files.h"
#include "common/log.h"
#include "common/utf8.h"

namespace taskd::process {
namespace {

constexpr size_t kReadBytes = 64 << 10;       // at once: one loud rank does not keep the others waiting
constexpr size_t kMaxDrainBytes = 1 << 20;    // the largest pipe that Linux gives an ordinary user
constexpr size_t kMaxPartialBytes = 1 << 20;  // a longer line is cut on the console, not in the file
constexpr int64_t kTailBytes = 64 << 10;

}  // namespace

Console::Console(EventLoop* loop, int fd) : loop_(loop) {
  struct stat status {};
  ::fstat(fd, &status);
  pipe_ = S_ISFIFO(status.st_mode);
  socket_ = S_ISSOCK(status.st_mode);
  if (pipe_ || S_ISCHR(status.st_mode)) {
    fd_.reset(::open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  }
  const bool never_blocks = fd_.valid() || socket_;
  // Not `fd` itself: the loop may have it already.
  if (!fd_.valid()) fd_.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  broken_ = !fd_.valid();
  if (!never_blocks && !broken_) WriteByThread();
}

Console::~Console() {
  if (waiting_) loop_->Remove(fd_.get());
  if (written_) loop_->Remove(written_->event.get());
}

void Console::WriteByThread() {
  auto written = std::make_shared<Written>();
  written->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  broken_ = !written->event.valid();
  if (broken_) return;
  written_ = written;
  loop_->Add(written->event.get(), EPOLLIN, [this](uint32_t) { OnWritten(); });
  LineWriter::Options options;
  options.written = [written](bool done) {
    if (!done) written->failed = true;
    ::eventfd_write(written->event.get(), 1);
  };
  thread_ = std::make_unique<LineWriter>(std::move(fd_), std::move(options));
}

void Console::OnWritten() {
  eventfd_t count = 0;
  if (::eventfd_read(written_->event.get(), &count) != 0) return;
  broken_ = written_->failed;
  written_bytes_ += broken_ ? 0 : in_flight_bytes_;
  in_flight_bytes_ = 0;
  // It may have been dropped, and others came.
  if (!queue_.empty() && queue_.front().done == queue_.front().text.size()) PopFront();
  if (broken_) DropQueue();
  Flush();
}

void Console::Write(std::string lines, std::shared_ptr<Share> share) {
  if (broken_ || lines.empty()) return;
  share->queued_bytes += lines.size();
  queue_.push_back({std::move(lines), 0, std::move(share)});
  if (!waiting_) Flush();
}

void Console::PopFront() {
  Chunk chunk = std::move(queue_.front());
  queue_.pop_front();
  Share& share = *chunk.share;
  const size_t before = share.queued_bytes;
  share.queued_bytes -= chunk.text.size();
  if (before >= kMaxQueuedBytes / 2 && share.queued_bytes < kMaxQueuedBytes / 2 && share.resume) share.resume();
}

size_t Console::DropQueue() {
  size_t dropped = 0;
  while (!queue_.empty()) {
    dropped += queue_.front().text.size() - queue_.front().done;
    PopFront();
  }
  return dropped;
}

// A pipe takes so much at once or not at all: others who write to it do not get into our lines.
std::string_view Console::NextPiece(const Chunk& chunk) const {
  std::string_view rest = std::string_view(chunk.text).substr(chunk.done);
  if (!pipe_ || rest.size() <= PIPE_BUF) return rest;
  rest = rest.substr(0, PIPE_BUF);
  const size_t end = rest.rfind('\n');
  return end == std::string_view::npos ? rest : rest.substr(0, end + 1);
}

ssize_t Console::WriteSome(std::string_view piece) const {
  if (socket_) return ::send(fd_.get(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(fd_.get(), piece.data(), piece.size());
}

void Console::Flush() {
  while (!queue_.empty()) {
    Chunk& chunk = queue_.front();
    const std::string_view piece = NextPiece(chunk);
    if (thread_ != nullptr) {
      if (in_flight_bytes_ > 0) return;
      in_flight_bytes_ = piece.size();
      chunk.done += piece.size();
      thread_->Write(std::string(piece));
      return;
    }
    const ssize_t written = WriteSome(piece);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      if (!waiting_) loop_->Add(fd_.get(), EPOLLOUT, [this](uint32_t) { Flush(); });
      waiting_ = true;
      return;
    }
    if (written < 0) {
      broken_ = true;  // its reader is gone; ranks and their files go on
      break;
    }
    written_bytes_ += static_cast<uint64_t>(written);
    chunk.done += static_cast<size_t>(written);
    if (chunk.done == chunk.text.size()) PopFront();
  }
  if (waiting_) loop_->Remove(fd_.get());
  waiting_ = false;
  if (broken_) DropQueue();
}

absl::StatusOr<std::unique_ptr<StreamTee>> StreamTee::Create(EventLoop* loop, const Target& target) {
  std::unique_ptr<StreamTee> tee(new StreamTee(loop, target));
  if (!target.file.empty()) {
    absl::StatusOr<UniqueFd> file = OpenOrCreateFile(target.file, O_RDWR | O_APPEND, 0666, {.follow_own_links = true});
    tee->file_is_readable_ = file.ok();
    if (!file.ok()) file = OpenOrCreateFile(target.file, O_WRONLY | O_APPEND, 0666, {.follow_own_links = true});
    if (!file.ok()) return absl::UnavailableError(absl::StrCat("log file ", file.status().message()));
    tee->file_ = *std::move(file);
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("no pipe for the output of a rank: ", std::strerror(errno)));
  }
  tee->read_end_.reset(ends[0]);
  tee->write_end_.reset(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);  // our end only: ranks do not expect it
  tee->Watch(true);
  return tee;
}

StreamTee::StreamTee(EventLoop* loop, Target target)
    : loop_(loop), target_(std::move(target)), share_(std::make_shared<Console::Share>()) {
  share_->resume = [this] { Resume(); };
  if (target_.console != nullptr) {
    source_ = target_.console->Join({target_.local_rank, target_.rank, target_.prefix, share_});
  }
}

StreamTee::~StreamTee() {
  Watch(false);
  if (catch_up_) loop_->Cancel(*catch_up_);
  share_->resume = nullptr;  // the console may hold the share for longer
  if (target_.console != nullptr) target_.console->Leave(source_);
}

void StreamTee::Watch(bool on) {
  if (on == watched_ || !read_end_.valid()) return;
  watched_ = on;
  // Not watched with no events: the loop would spin on EPOLLHUP.
  if (!on) {
    loop_->Remove(read_end_.get());
    return;
  }
  loop_->Add(read_end_.get(), EPOLLIN, [this](uint32_t) {
    ReadOnce();
    if (share_->queued_bytes >= kMaxQueuedBytes && !behind_) Watch(false);
  });
}

size_t StreamTee::ReadOnce() {
  if (!read_end_.valid()) return 0;
  static thread_local std::array<char, kReadBytes> buffer;
  const ssize_t count = ::read(read_end_.get(), buffer.data(), buffer.size());
  if (count > 0) {
    Take({buffer.data(), static_cast<size_t>(count)});
    return static_cast<size_t>(count);
  }
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) Close();
  return 0;
}

void StreamTee::Drain() {
  // A process that the rank left behind may go on writing for ever.
  size_t total = 0;
  while (total < kMaxDrainBytes) {
    const size_t count = ReadOnce();
    if (count == 0) return;
    total += count;
  }
}

void StreamTee::Close() {
  Watch(false);
  read_end_.reset();
  write_end_.reset();
  if (!partial_.empty()) Send(std::exchange(partial_, "") + "\n");
  if (!behind_) EndAll();
}

void StreamTee::Take(std::string_view data) {
  const bool is_in_file = file_.valid() && WriteFile(data);
  const size_t end = data.rfind('\n');
  if (end == std::string_view::npos) {
    partial_ += data;
  } else {
    partial_ += data.substr(0, end + 1);
    Send(std::exchange(partial_, std::string(data.substr(end + 1))));
  }
  if (partial_.size() > kMaxPartialBytes) Send(std::exchange(partial_, "") + "\n");
  if (behind_ || !is_in_file || !file_is_readable_ || share_->queued_bytes < kMaxQueuedBytes) return;
  behind_ = true;
  behind_at_ = file_end();
}

bool StreamTee::WriteFile(std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = ::write(file_.get(), data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      if (!file_failed_) spdlog::error("log file {}: {}; output is lost there", target_.file, std::strerror(errno));
      file_failed_ = true;
      break;
    }
    data.remove_prefix(static_cast<size_t>(written));
  }
  file_bytes_ = ::lseek(file_.get(), 0, SEEK_CUR);  // what was there before is part of it
  return data.empty();
}

void StreamTee::Send(std::string_view lines) {
  for (std::string_view rest = lines; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    Remember(line);
    rest.remove_prefix(line.size() + 1);
  }
  if (!behind_) ToConsole(lines);
}

void StreamTee::ToConsole(std::string_view lines) {
  if (target_.console != nullptr) target_.console->Add(source_, lines);
}

void StreamTee::Resume() {
  if (!behind_) return Watch(true);
  // Not from within the console's own work.
  if (!catch_up_) {
    catch_up_ = loop_->RunAfter(0, [this] {
      catch_up_.reset();
      CatchUp();
    });
  }
}

void StreamTee::CatchUp() {
  static thread_local std::array<char, kReadBytes> buffer;
  if (!behind_ || share_->queued_bytes >= kMaxQueuedBytes) return;
  const auto wanted = std::min(file_end() - behind_at_, static_cast<int64_t>(buffer.size()));
  const ssize_t count = wanted <= 0 ? 0 : ::pread(file_.get(), buffer.data(), static_cast<size_t>(wanted), behind_at_);
  if (count <= 0) {
    const size_t missing = DropBehind();
    if (missing > 0) spdlog::warn("log file {} was cut: {} bytes are not on the console", target_.file, missing);
    return;
  }
  std::string lines(buffer.data(), static_cast<size_t>(count));
  // A line without an end is the last one, or as long as those that are cut.
  if (const size_t end = lines.rfind('\n'); end != std::string::npos) lines.resize(end + 1);
  behind_at_ += static_cast<int64_t>(lines.size());
  if (lines.back() != '\n') lines += '\n';
  ToConsole(lines);
  Resume();
}

size_t StreamTee::DropBehind() {
  const size_t dropped = behind_ ? static_cast<size_t>(std::max<int64_t>(0, file_end() - behind_at_)) : 0;
  behind_ = false;
  if (!read_end_.valid()) EndAll();
  return dropped;
}

// There will be no more lines.
void StreamTee::EndAll() {
  if (target_.console != nullptr) target_.console->Leave(source_);
  file_.reset();
}

void StreamTee::Remember(std::string_view line) {
  last_lines_.push_back(CutUtf8(line, kMaxLastLineBytes));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

std::vector<std::string> StreamTee::last_lines() const {
  std::vector<std::string> lines(last_lines_.begin(), last_lines_.end());
  if (!partial_.empty()) lines.push_back(CutUtf8(partial_, kMaxLastLineBytes));
  if (lines.size() > kLastLines) lines.erase(lines.begin());
  return lines;
}

std::vector<std::string> LastLinesOfFile(const std::string& path, int64_t offset) {
  absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY, {.follow_own_links = true});
  struct stat status {};
  if (!fd.ok() || ::fstat(fd->get(), &status) != 0) return {};
  const int64_t begin = std::max<int64_t>({0, offset, status.st_size - kTailBytes});
  std::string text = ReadSome(fd->get(), kTailBytes, static_cast<uint64_t>(begin));
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < kLastLines) {
    if (text.back() == '\n') text.pop_back();
    const size_t start = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    lines.push_back(text.substr(start, kMaxLastLineBytes));
    text.resize(start);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace taskd::process
