// Does work that may hang with the storage, so that no thread that others wait for has to.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace taskd {

// One thread, started by the first work. Do() may be called from any thread. Work does not log: it may be done while the
// process ends, when there is no logger any more.
class StorageThread {
 public:
  // What is to be said of work that is done, or null.
  using Report = std::function<void()>;

  // More of it than this is refused while the storage hangs.
  static constexpr int kMostWaiting = 64;

  // `patience`: how long the destructor waits.
  explicit StorageThread(std::chrono::milliseconds patience) : patience_(patience) {}
  // Waits for the work that was given. What is not done by then is left behind with its thread, and may be done later.
  ~StorageThread();
  StorageThread(const StorageThread&) = delete;
  StorageThread& operator=(const StorageThread&) = delete;

  // Does `work` after all that was given before it, and then, unless this object has gone, what it returns; that may log, but
  // not call Do(). It owns everything that it uses: it may outlive this object. Returns at once. False: too much waits, or
  // there can be no thread.
  bool Do(std::function<Report()> work);

 private:
  struct Share;

  const std::chrono::milliseconds patience_;
  std::shared_ptr<Share> share_ = MakeShare();

  static std::shared_ptr<Share> MakeShare();
  static void Run(const std::shared_ptr<Share>& share);
};

}  // namespace taskd
