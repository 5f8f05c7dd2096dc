// The output of ranks on its way through the launcher: into a file, and onto the console in whole lines.
//
// A console may be a pipe without a reader. Nothing here waits for it. Each stream may have kMaxQueuedBytes under way to
// the console; beyond that its rank goes on into its file, from which the console gets the rest, in order, when it takes
// some again. A stream without such a file is not read any more: its rank waits in write(2), as it would without a
// launcher.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/event_loop.h"
#include "common/line_writer.h"
#include "common/unique_fd.h"

namespace taskd::process {

// stdout or stderr of the launcher. On the loop's thread.
class Console {
 public:
  // `fd` stays the caller's. A pipe or terminal is opened a second time, non-blocking: the flag would be shared with
  // everybody else who has it. Where that cannot be (it is another user's, or a file) a thread does the writing.
  Console(EventLoop* loop, int fd);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // What one stream has under way. `resume` is called when that becomes less than half of kMaxQueuedBytes.
  struct Share {
    size_t queued_bytes = 0;
    std::function<void()> resume;
  };

  // `lines`: whole lines. What is sent to a console that has broken (EPIPE) is dropped.
  void Write(std::string lines, std::shared_ptr<Share> share);

  bool idle() const { return queue_.empty(); }
  uint64_t written_bytes() const { return written_bytes_; }
  size_t DropQueue();  // returns the number of bytes

 private:
  struct Chunk {
    std::string text;
    size_t done = 0;
    std::shared_ptr<Share> share;
  };
  // What a thread may say after this console is gone.
  struct Written {
    UniqueFd event;
    std::atomic<bool> failed = false;
  };

  void WriteByThread();
  void OnWritten();
  void Flush();
  std::string_view NextPiece(const Chunk& chunk) const;
  ssize_t WriteSome(std::string_view piece) const;
  void PopFront();

  EventLoop* const loop_;
  UniqueFd fd_;
  bool socket_ = false;
  bool pipe_ = false;
  std::unique_ptr<LineWriter> thread_;  // has the descriptor
  std::shared_ptr<Written> written_;
  size_t in_flight_bytes_ = 0;  // the thread's
  bool waiting_ = false;        // for EPOLLOUT
  bool broken_ = false;
  std::deque<Chunk> queue_;
  uint64_t written_bytes_ = 0;
};

inline constexpr size_t kMaxQueuedBytes = 256 << 10;
inline constexpr size_t kLastLines = 20;
inline constexpr size_t kMaxLastLineBytes = 4096;

class EqualLines;

// One stream of one rank.
class StreamTee {
 public:
  struct Target {
    std::string file;               // empty: none
    EqualLines* console = nullptr;  // must outlive the tee; null: none
    int local_rank = 0;
    int rank = 0;
    std::string prefix;  // of each line on the console, as EqualLines::Source has it
  };

  // UNAVAILABLE: the file cannot be opened (what is there is appended to), or no pipe can be had.
  static absl::StatusOr<std::unique_ptr<StreamTee>> Create(EventLoop* loop, const Target& target);
  ~StreamTee();
  StreamTee(const StreamTee&) = delete;
  StreamTee& operator=(const StreamTee&) = delete;

  UniqueFd TakeWriteEnd() { return std::move(write_end_); }  // for the rank; once

  void Drain();  // reads what the pipe holds now, also where the console is behind
  void Close();  // after Drain: the last line, and no more; processes that still have the pipe get SIGPIPE

  // The file has lines that were not yet sent to the console; they will be, after Close() too.
  bool behind() const { return behind_; }
  size_t DropBehind();  // returns the number of bytes

  std::vector<std::string> last_lines() const;

 private:
  StreamTee(EventLoop* loop, Target target);

  void Watch(bool on);
  size_t ReadOnce();  // 0: nothing there, or the end
  void Take(std::string_view data);
  bool WriteFile(std::string_view data);
  void Send(std::string_view lines);  // whole ones
  void ToConsole(std::string_view lines);
  void Resume();
  void CatchUp();
  void EndAll();
  int64_t file_end() const { return file_bytes_ - static_cast<int64_t>(partial_.size()); }  // of whole lines
  void Remember(std::string_view line);

  EventLoop* const loop_;
  const Target target_;
  UniqueFd read_end_;
  UniqueFd write_end_;
  UniqueFd file_;
  bool watched_ = false;
  bool file_failed_ = false;
  bool file_is_readable_ = false;
  int64_t file_bytes_ = 0;
  bool behind_ = false;
  int64_t behind_at_ = 0;  // in the file: what the console gets next
  std::optional<EventLoop::TimerId> catch_up_;
  std::shared_ptr<Console::Share> share_;
  int source_ = 0;       // of the console's
  std::string partial_;  // the line that has no end yet
  std::deque<std::string> last_lines_;
};

// The last lines of a file from `offset` on, bounded as above. Empty where it cannot be read.
std::vector<std::string> LastLinesOfFile(const std::string& path, int64_t offset);

}  // namespace taskd::process
