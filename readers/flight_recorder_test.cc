#include "readers/flight_recorder.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace taskd::readers {
namespace {

using diagnosis::OpState;

std::string Text(std::string_view text) {
  return std::string("\x8c") + static_cast<char>(text.size()) + std::string(text);
}
std::string Small(int number) { return std::string("K") + static_cast<char>(number); }

// Pickles that repeat a value many times: as gzip they have less than a kilobyte.
class Pickle {
 public:
  // Remembers the value under the next number.
  std::string Remembered(const std::string& value) { return value + 'q' + static_cast<char>(next_++); }
  static std::string Again(int number, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += std::string("h") + static_cast<char>(number);
    return out;
  }

 private:
  int next_ = 0;
};

std::string Entry(std::string_view name, std::string_view state) {
  return "}(" + Text("profiling_name") + Text(name) + Text("state") + Text(state) + Text("p2p_seq_id") + Small(1) +
         Text("process_group") + Text("0") + "u";
}

FlightDump Read(const std::string& bytes, HangTables& tables) {
  ByteSource source = ByteSource::Of(bytes);
  DumpMemory memory;
  return ReadFlightDump(source, tables, memory);
}

constexpr size_t kMany = 50'000;

TEST(FlightRecorder, ReadsABatchWithManyEndsInLinearTime) {
  Pickle pickle;
  HangTables tables;
  std::string bytes = "\x80\x02}(" + Text("kept") + "](" + pickle.Remembered(Entry("nccl:send 0->1", "scheduled"));
  bytes += pickle.Remembered(Entry("nccl:coalesced", "started")) + "e" + Text("entries") + "](";
  bytes += Pickle::Again(0, kMany) + Pickle::Again(1, kMany) + "eu.";
  const FlightDump dump = Read(bytes, tables);
  EXPECT_EQ(dump.note, "");
  EXPECT_EQ(dump.records, 2 * kMany);
  EXPECT_LE(dump.visits, 20 * kMany);
  ASSERT_FALSE(dump.known.ops.empty());
  EXPECT_EQ(dump.known.ops.front().state, OpState::kStarted) << "the entry behind a batch knows";
}

TEST(FlightRecorder, ReadsAListThatManyGroupsNameOnce) {
  Pickle pickle;
  HangTables tables;
  std::string list = "](";
  for (size_t i = 0; i < kMany; ++i) list += Small(1);
  list +=
      "J\xff\xff\xff\xff"
      "e";  // -1: no information
  std::string bytes = "\x80\x02}(" + Text("kept") + "](" +
                      pickle.Remembered("}(" + Text("ranks") + list + Text("desc") + Text("d") + "u");
  bytes += "e" + Text("pg_config") + "}(";
  for (int i = 0; i < 1000; ++i) bytes += Text(std::to_string(i)) + Pickle::Again(0, 1);
  bytes += "uu.";
  const FlightDump dump = Read(bytes, tables);
  EXPECT_EQ(dump.note, "");
  EXPECT_LE(dump.visits, 2 * kMany);
}

TEST(FlightRecorder, LeavesOutEntriesBeyondABudget) {
  Pickle pickle;
  HangTables tables;
  std::string keys = Entry("nccl:all_reduce", "completed");
  keys.pop_back();
  for (int i = 0; i < 60; ++i) keys += Text("k" + std::to_string(i)) + "N";
  std::string bytes = "\x80\x02}(" + Text("kept") + "](" + pickle.Remembered(keys + "u") + "e" + Text("entries") + "](";
  bytes += Pickle::Again(0, 300'000) + "eu.";
  const FlightDump dump = Read(bytes, tables);
  EXPECT_NE(dump.note, "");
  EXPECT_TRUE(dump.known.is_cut);
  EXPECT_LT(dump.records, 300'000u);
}

}  // namespace
}  // namespace taskd::readers
