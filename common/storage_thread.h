// Does work that may hang with the storage, so that no thread that others wait for has to.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace taskd {

// One thread, started by the first work. Do() may be called from any thread.
class StorageThread {
 public:
  // More of it than this is refused while the storage hangs.
  static constexpr int kMostWaiting = 64;

  // `patience`: how long the destructor waits.
  explicit StorageThread(std::chrono::milliseconds patience) : patience_(patience) {}
  // Waits for the work that was given. What is not done by then is left behind with its thread, and may be done later.
  ~StorageThread();
  StorageThread(const StorageThread&) = delete;
  StorageThread& operator=(const StorageThread&) = delete;

  // Does `work` after all that was given before it. It owns everything that it uses: it may outlive this object. Returns at
  // once. False: too much waits.
  bool Do(std::function<void()> work);

 private:
  struct Share;

  const std::chrono::milliseconds patience_;
  std::shared_ptr<Share> share_ = MakeShare();

  static std::shared_ptr<Share> MakeShare();
  static void Run(const std::shared_ptr<Share>& share);
};

}  // namespace taskd
