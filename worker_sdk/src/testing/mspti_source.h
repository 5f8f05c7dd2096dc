// A source of MSPTI's marks over the fake (fake_mspti.h), stepped by hand or by its thread, and what it gave.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mspti.h"
#include "testing/loaded_fake.h"

namespace taskd::worker {

// Of its own, removed with all that is in it.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/taskd-mspti-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Mark {
  uint32_t flag;
  uint32_t source;
  uint64_t timestamp_ns;
  uint64_t id;
  uint32_t process_id;
  uint32_t thread_id;
  std::string name;
  std::string domain;
  uint32_t wanted;
};

// What the source gave, and the word that holds what is wanted.
class Sink {
 public:
  uint32_t wanted = 0;
  uint64_t dropped = 0;
  std::string missing;
  std::atomic<int64_t> room{INT64_MAX};

  MsptiConfig Config() {
    return {.wanted = [](void* self) { return __atomic_load_n(&static_cast<Sink*>(self)->wanted, __ATOMIC_ACQUIRE); },
            .emit = [](void* self, const MsptiMark* mark) { return static_cast<Sink*>(self)->Take(*mark); },
            .answer = [](void* self, const MsptiAnswer* answer) { static_cast<Sink*>(self)->Answer(*answer); },
            .unusable = [](void* self, const char* missing) { static_cast<Sink*>(self)->missing = missing; },
            .context = this,
            .wake_word = &wanted,
            .dropped = &dropped};
  }
  void Want(uint32_t domains) {
    __atomic_store_n(&wanted, domains, __ATOMIC_RELEASE);
    MsptiWake();
  }
  std::vector<Mark> marks() {
    std::lock_guard lock(mutex_);
    return marks_;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return marks_.size();
  }
  // The answers since the last call, as "code/error".
  std::string TakeAnswers() {
    std::lock_guard lock(mutex_);
    return std::exchange(answers_, "");
  }

 private:
  int Take(const MsptiMark& mark) {
    if (room.load() <= 0) return 0;
    room.fetch_sub(1);
    std::lock_guard lock(mutex_);
    marks_.push_back({mark.flag, mark.source, mark.timestamp_ns, mark.id, mark.process_id, mark.thread_id, mark.name,
                      mark.domain, mark.wanted});
    return 1;
  }
  void Answer(const MsptiAnswer& answer) {
    std::lock_guard lock(mutex_);
    answers_ += (answers_.empty() ? "" : " ") + std::to_string(answer.code) + "/" + std::to_string(answer.error);
  }

  std::mutex mutex_;
  std::vector<Mark> marks_;
  std::string answers_;
};

inline MsptiStats Stats() {
  MsptiStats stats;
  MsptiGetStats(&stats);
  return stats;
}

// A source that is stepped by hand, at times that the test chooses.
class Stepped {
 public:
  explicit Stepped(uint32_t wanted) {
    const MsptiConfig config = sink.Config();
    EXPECT_EQ(MsptiOpen(&config, nullptr), 0);
    sink.wanted = wanted;
    Step();
  }
  // Far enough for the next flush; reads all that is there.
  int Step(int64_t pass_ms = 1000) {
    now_ms_ += pass_ms;
    int wait_ms = 0;
    while ((wait_ms = MsptiStep(now_ms_)) == 0) {
    }
    return wait_ms;
  }

  Fake fake;
  Sink sink;

 private:
  int64_t now_ms_ = 1'000'000;
};

inline constexpr uint32_t kBoth = kMsptiDefault | kMsptiCommunication;
// Records in a buffer when it is handed over: the first size at or above 80 %.
inline constexpr uint64_t kFull = (kMsptiBufferBytes * 8 / 10 + kMsptiMarkerBytes - 1) / kMsptiMarkerBytes;

struct __attribute__((packed)) Packed {
  uint32_t kind = 1, flag = 16, source = 0;
  uint64_t timestamp_ns = 1745567190000000000, id = 7;
  uint32_t process_id = 123, thread_id = 456;
  const char* name = "step 1";
  const char* domain = "default";
  uint32_t padding = 0xffffffff;
};
static_assert(sizeof(Packed) == kMsptiMarkerBytes);

inline void MakeMarks(const Fake& fake, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) fake.mark("default", "mark", 0);
}

// Every id from 1 on, in order.
inline void ExpectIds(Sink& sink, uint64_t count) {
  const std::vector<Mark> marks = sink.marks();
  ASSERT_EQ(marks.size(), count);
  for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(marks[i].id, i + 1);
}

}  // namespace taskd::worker
