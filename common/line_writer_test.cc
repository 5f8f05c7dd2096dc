#include "common/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using std::chrono::steady_clock;
using ::taskd::testing::kHangLimit;
using ::taskd::testing::WaitUntil;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::StartsWith;

std::string Loss(uint64_t lines, std::string_view why) {
  return absl::StrCat("lost ", lines, ": ", std::string(why), "\n");
}

class Pipe {
 public:
  explicit Pipe(bool full = false) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
    if (!full) return;
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, 'f');
    while (::write(ends[1], page.data(), page.size()) > 0) full_bytes_ += page.size();
    ::fcntl(ends[1], F_SETFL, 0);
  }

  UniqueFd WriteEnd() const { return UniqueFd(::fcntl(write_end_.get(), F_DUPFD_CLOEXEC, 3)); }
  void CloseReadEnd() { read_end_.reset(); }
  void CloseWriteEnd() { write_end_.reset(); }

  // What filled it.
  void Empty() {
    std::string text(full_bytes_, 0);
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::read(read_end_.get(), text.data() + done, text.size() - done);
      ASSERT_GT(count, 0);
      done += static_cast<size_t>(count);
    }
  }
  std::string ReadSome() {
    std::string text(1 << 16, 0);
    const ssize_t count = ::read(read_end_.get(), text.data(), text.size());
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return text;
  }
  std::string ReadUntil(const std::string& end) {
    std::string text;
    for (std::string more; !text.ends_with(end) && !(more = ReadSome()).empty();) text += more;
    return text;
  }
  bool HasSome() const {
    pollfd ready{read_end_.get(), POLLIN, 0};
    return ::poll(&ready, 1, 0) > 0;
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  size_t full_bytes_ = 0;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

TEST(LineWriterTest, KeepsTheOrder) {
  Pipe pipe;
  LineWriter writer(pipe.WriteEnd(), {.loss = Loss});
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    writer.Write(absl::StrCat("line ", i, "\n"));
    absl::StrAppend(&expected, "line ", i, "\n");
  }
  EXPECT_EQ(pipe.ReadUntil("line 999\n"), expected);
}

TEST(LineWriterTest, NobodyWaitsForAReader) {
  Pipe pipe(/*full=*/true);
  constexpr int kLines = 10000;
  LineWriter writer(pipe.WriteEnd(), {.max_bytes = 10 << 10, .max_texts = 1 << 20, .loss = Loss});
  for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat("line ", i, "\n"));
  writer.Flush(steady_clock::now() + std::chrono::milliseconds(1));  // returns all the same
  pipe.Empty();
  // All are written, or counted in their place; and the newest are there.
  int next = 0;
  int losses = 0;
  for (const std::string& line : Lines(pipe.ReadUntil(absl::StrCat("line ", kLines - 1, "\n")))) {
    if (line.starts_with("lost ")) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" :"));
      int lost = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words[1], &lost)) << line;
      EXPECT_THAT(line, ::testing::EndsWith(": nobody reads"));
      next += lost;
      ++losses;
    } else {
      ASSERT_EQ(line, absl::StrCat("line ", next++));
    }
  }
  EXPECT_EQ(next, kLines);
  // Two where some were dropped before the thread came to the first line, and had said so.
  EXPECT_GE(losses, 1);
  EXPECT_LE(losses, 2);
  // And on it goes.
  writer.Write("after\n");
  EXPECT_EQ(pipe.ReadUntil("after\n"), "after\n");
}

TEST(LineWriterTest, TextsAreBoundedToo) {
  Pipe pipe(/*full=*/true);
  LineWriter writer(pipe.WriteEnd(), {.max_texts = 10, .loss = Loss});
  for (int i = 0; i < 100; ++i) writer.Write(absl::StrCat("a\nb ", i, "\n"));
  pipe.Empty();
  const std::vector<std::string> lines = Lines(pipe.ReadUntil("b 99\n"));
  EXPECT_LE(lines.size(), 2 * (10 + 1) + 1);
  EXPECT_GT(lines.size(), 10);
}

TEST(LineWriterTest, LinesAreWhole) {
  Pipe pipe;
  constexpr int kWriters = 4;
  constexpr int kLines = 500;
  std::vector<std::unique_ptr<LineWriter>> writers;  // as processes that share stderr
  for (int i = 0; i < kWriters; ++i)
    writers.push_back(std::make_unique<LineWriter>(pipe.WriteEnd(), LineWriter::Options()));
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      for (int line = 0; line < kLines; ++line) {
        writers[static_cast<size_t>(i)]->Write(
            std::string(static_cast<size_t>(100 + line), static_cast<char>('a' + i)) + "\n");
      }
    });
  }
  std::string text;
  while (std::count(text.begin(), text.end(), '\n') < kWriters * kLines) text += pipe.ReadSome();
  for (std::thread& thread : threads) thread.join();
  std::vector<size_t> next(kWriters, 100);
  for (const std::string& line : Lines(text)) {
    const auto writer = static_cast<size_t>(line[0] - 'a');
    ASSERT_EQ(line, std::string(next[writer]++, line[0]));
  }
}

TEST(LineWriterTest, AReaderThatIsGoneHarmsNobody) {
  Pipe pipe;
  pipe.CloseReadEnd();
  std::atomic<int> failed = 0;
  LineWriter writer(pipe.WriteEnd(), {.loss = Loss, .written = [&](bool written) { failed += written ? 0 : 1; }});
  writer.Write("a\n");
  writer.Write("b\n");
  writer.Flush(steady_clock::now() + kHangLimit);  // and no SIGPIPE
  EXPECT_EQ(failed, 2);
}

TEST(LineWriterTest, WhatCannotBeWrittenIsCounted) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  // First a full disk, then a pipe.
  UniqueFd target(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const int fd = target.get();
  LineWriter writer(std::move(target), {.loss = Loss});
  writer.Write("a\nb\n");
  writer.Write("c\n");
  writer.Flush(steady_clock::now() + kHangLimit);
  ASSERT_EQ(::dup3(ends[1], fd, O_CLOEXEC), fd);
  writer.Write("d\n");
  writer.Flush(steady_clock::now() + kHangLimit);
  char text[100];
  const ssize_t count = ::read(ends[0], text, sizeof(text));
  EXPECT_EQ(std::string(text, static_cast<size_t>(count)), "lost 3: No space left on device\nd\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(LineWriterTest, APipeThatSomebodyMadeNonBlocking) {
  Pipe pipe(/*full=*/true);
  ::fcntl(pipe.WriteEnd().get(), F_SETFL, O_NONBLOCK);
  LineWriter writer(pipe.WriteEnd(), {.loss = Loss});
  writer.Write("a\n");
  writer.Write("b\n");
  writer.Flush(steady_clock::now() + std::chrono::milliseconds(1));
  pipe.Empty();
  EXPECT_EQ(pipe.ReadUntil("b\n"), "a\nb\n");
}

TEST(LineWriterTest, EndsWhileItsThreadWaits) {
  Pipe pipe(/*full=*/true);
  auto writer = std::make_unique<LineWriter>(pipe.WriteEnd(), LineWriter::Options{.loss = Loss});
  writer->Write("a\n");
  writer->Write("b\n");
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    writer.reset();
    ended = true;
  });
  EXPECT_TRUE(WaitUntil([&] { return ended.load(); })) << "its end waits for the reader";
  pipe.CloseWriteEnd();
  pipe.Empty();
  ends.join();
  std::string text;
  bool closed = false;
  EXPECT_TRUE(WaitUntil([&] {
    if (closed || !pipe.HasSome()) return closed;
    const std::string more = pipe.ReadSome();
    text += more;
    return closed = more.empty();
  })) << "the thread has not ended: it keeps the pipe open";
  // The first line may have been under way. What waited is dropped.
  EXPECT_THAT(text, AnyOf("", "a\n"));
}

TEST(LineWriterTest, WithoutAThread) {
  Pipe pipe(/*full=*/true);
  LineWriter writer(pipe.WriteEnd(), {.loss = Loss, .may_start_thread = false});
  writer.Write("a\n");
  writer.Write("b\n");
  writer.Flush(steady_clock::now() + std::chrono::milliseconds(1));
  pipe.Empty();
  EXPECT_FALSE(pipe.HasSome());
  writer.Write("c\n");
  EXPECT_EQ(pipe.ReadSome(), "a\nb\nc\n");
  writer.Write("d\n");
  EXPECT_EQ(pipe.ReadSome(), "d\n");
}

}  // namespace
}  // namespace taskd
