// Equal lines of several ranks as one line, on their way to the console: "[default0-6,9]:CUDA error".
//
// A line waits for its equals until every rank has written it, at most kHoldNs. The lines of a rank keep their order.
// Where a rank writes what waits already, lines that are its own alone move ahead of that; it does not join a line that
// stands before one that it shares. Nothing is lost, and nothing is shown twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/process/line_tee.h"
#include "common/event_loop.h"

namespace taskd::process {

// On the loop's thread.
class EqualLines {
 public:
  static constexpr int64_t kHoldNs = 200'000'000;
  // With more than that the oldest lines wait no longer.
  static constexpr size_t kMaxHeldBytes = 256 << 10;
  static constexpr size_t kMaxHeldLines = 1024;

  // One stream of one rank.
  struct Source {
    int local_rank = 0;
    int rank = 0;
    // Of each line. ${local_rank} and ${rank} in it stand for the ranks; without either of them no line waits.
    std::string prefix;
    std::shared_ptr<Console::Share> share;  // charged for its lines, and for equal ones that come after them
  };
  using Output = std::function<void(std::string lines, const std::shared_ptr<Console::Share>& share)>;

  // `now`: as EventLoop::NowNs.
  EqualLines(EventLoop* loop, Output output, std::function<int64_t()> now = EventLoop::NowNs)
      : loop_(loop), output_(std::move(output)), now_(std::move(now)) {}
  ~EqualLines();
  EqualLines(const EqualLines&) = delete;
  EqualLines& operator=(const EqualLines&) = delete;

  int Join(Source source);                       // an id, for the next two
  void Add(int source, std::string_view lines);  // whole ones
  void Leave(int source);                        // it writes no more: nobody waits for it

 private:
  struct Writer {
    Source source;
    std::string own_prefix;
    bool waits = false;
  };
  struct Member {
    int id;  // of the writer
    int local_rank;
    int rank;
  };
  struct Line {
    std::string text;
    int64_t due_ns = 0;
    std::shared_ptr<const Writer> first;
    std::vector<Member> members;
  };
  struct Slot {
    size_t hash = 0;  // of the text
    int sole = 0;     // its writer; 0: several
    std::unique_ptr<Line> line;
  };

  static std::string Prefix(const std::string& pattern, const std::vector<Member>& members);
  bool full() const { return held_bytes_ > kMaxHeldBytes || lines_.size() > kMaxHeldLines; }
  void AddOne(int id, const std::shared_ptr<const Writer>& writer, std::string_view text);
  void Show();
  void ShowLater();

  EventLoop* const loop_;
  const Output output_;
  const std::function<int64_t()> now_;
  std::map<int, std::shared_ptr<const Writer>> writers_;
  int next_id_ = 0;
  size_t waiters_ = 0;      // writers whose lines wait
  std::deque<Slot> lines_;  // in the order in which they are shown
  size_t held_bytes_ = 0;
  std::optional<EventLoop::TimerId> timer_;
};

}  // namespace taskd::process
