#include "proto/packed_numbers.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire_reader.h"

namespace taskd::proto {
namespace {

using ::testing::ElementsAre;

// As a sender may write it: with more bytes than it takes, too.
void Append(uint64_t number, size_t bytes, std::string* wire) {
  for (; number >= 0x80 || bytes > 1; number >>= 7, bytes -= bytes > 1 ? 1 : 0) {
    *wire += static_cast<char>(number | 0x80);
  }
  *wire += static_cast<char>(number);
}

std::vector<uint64_t> OneByOne(std::string_view wire) {
  std::vector<uint64_t> numbers;
  WireReader reader(wire);
  for (uint64_t number; reader.NextPacked(&number);) numbers.push_back(number);
  EXPECT_FALSE(reader.broken());
  return numbers;
}

std::optional<std::vector<uint64_t>> AllAtOnce(std::string_view wire) {
  std::vector<uint64_t> numbers(wire.size()), same(wire.size());
  const std::optional<size_t> size = ReadPacked(wire, numbers.data(), 0, numbers.size());
  EXPECT_EQ(ReadPackedAnywhere(wire, same.data(), 0, same.size()), size);
  if (!size) return std::nullopt;
  numbers.resize(*size);
  same.resize(*size);
  EXPECT_EQ(numbers, same);
  return numbers;
}

TEST(PackedNumbers, AreThoseThatWereWritten) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 4'000; ++i) {
    std::string wire;
    std::vector<uint64_t> numbers(random() % 100);
    for (uint64_t& number : numbers) {
      number = random() >> random() % 64;
      Append(number, random() % 4 == 0 ? random() % 11 : 1, &wire);
    }
    // Nothing behind it is read.
    const std::vector<char> alone(wire.begin(), wire.end());
    const std::string_view as_view(alone.data(), alone.size());
    ASSERT_EQ(OneByOne(as_view), numbers);
    ASSERT_EQ(AllAtOnce(as_view), numbers);
  }
}

TEST(PackedNumbers, AreAppendedUpToTheMost) {
  std::string wire;
  for (uint64_t number = 0; number < 200; ++number) Append(number, 1, &wire);
  std::vector<uint64_t> numbers(101, 1000);
  EXPECT_EQ(ReadPacked(wire, numbers.data(), 0, 2), 200U);
  EXPECT_EQ(ReadPacked(wire, numbers.data(), 99, 100), 299U);
  EXPECT_EQ(ReadPacked(wire, numbers.data(), 300, 100), 500U);
  EXPECT_EQ(ReadPacked("", numbers.data(), 7, 100), 7U);
  EXPECT_THAT(std::vector(numbers.begin(), numbers.begin() + 3), ElementsAre(0, 1, 1000));
  EXPECT_THAT(std::vector(numbers.begin() + 98, numbers.end()), ElementsAre(1000, 0, 1000));
}

TEST(PackedNumbers, BrokenWhereverTheyStand) {
  for (size_t before = 0; before < 200; ++before) {
    for (size_t after : {0, 1, 200}) {
      std::string too_long(before, '\1');
      Append(1, 11, &too_long);
      EXPECT_EQ(AllAtOnce(too_long + std::string(after, '\1')), std::nullopt) << before << " " << after;
    }
    EXPECT_EQ(AllAtOnce(std::string(before, '\1') + '\x80'), std::nullopt) << before;
    EXPECT_EQ(AllAtOnce(std::string(before, '\1') + std::string(300, '\x80')), std::nullopt) << before;
  }
}

}  // namespace
}  // namespace taskd::proto
