#include "common/utf8.h"

#include <array>

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(Utf8Length, OfCharacters) {
  EXPECT_EQ(Utf8Length(std::string_view("\0", 1)), 1u);
  EXPECT_EQ(Utf8Length("ab"), 1u);
  EXPECT_EQ(Utf8Length("ä"), 2u);
  EXPECT_EQ(Utf8Length("节点"), 3u);
  EXPECT_EQ(Utf8Length("🐢"), 4u);
}

TEST(Utf8Length, OfWhatIsNone) {
  constexpr std::array<std::string_view, 11> kNone = {
      "",     "\x80", "\xc0\x80",         "\xc3",         "\xe0\x80\x80", "\xed\xa0\x80",
      "\xe8", "\xff", "\xf0\x80\x80\x80", "\xf4\x90\x80", "\xe8\x8a"};
  for (std::string_view none : kNone) EXPECT_EQ(Utf8Length(none), 0u) << none;
}

TEST(ColumnsOf, WhatATerminalShows) {
  EXPECT_EQ(ColumnsOf(""), 0u);
  EXPECT_EQ(ColumnsOf("ab"), 2u);
  EXPECT_EQ(ColumnsOf("für"), 3u);
  EXPECT_EQ(ColumnsOf("u\u0308"), 1u);
  EXPECT_EQ(ColumnsOf("节点1"), 5u);
  EXPECT_EQ(ColumnsOf("🐢"), 2u);
  EXPECT_EQ(ColumnsOf("\xff\xe8"), 2u);
}

TEST(CutUtf8, KeepsWholeCharacters) {
  EXPECT_EQ(CutUtf8("abc", 3), "abc");
  EXPECT_EQ(CutUtf8("abc", 2), "ab");
  EXPECT_EQ(CutUtf8("abc", 0), "");
  const std::string_view text = "aä节🐢";  // 1, 2, 3 and 4 bytes
  constexpr std::array<size_t, 11> kKept = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (size_t most = 0; most < kKept.size(); ++most)
    EXPECT_EQ(CutUtf8(text, most), text.substr(0, kKept[most])) << most;

  std::string cut = "节点";
  CutUtf8(&cut, 4);
  EXPECT_EQ(cut, "节");
}

TEST(CutUtf8, CutsWhatIsNoUtf8SomewhereNear) {
  EXPECT_EQ(CutUtf8(std::string(10, '\x80'), 8).size(), 8u);
  EXPECT_EQ(CutUtf8("\xff\xff\xff", 2), "\xff");
}

TEST(ValidUtf8, ReplacesEachByteOfNoCharacter) {
  EXPECT_EQ(ValidUtf8(""), "");
  EXPECT_EQ(ValidUtf8("aä节🐢"), "aä节🐢");
  EXPECT_EQ(ValidUtf8("a\xff\"b"), "a\uFFFD\"b");
  EXPECT_EQ(ValidUtf8("\xc0\x80节\xe8\x8a"), "\uFFFD\uFFFD节\uFFFD\uFFFD");
  EXPECT_EQ(ValidUtf8("\xe8"), "\uFFFD");
}

}  // namespace
}  // namespace taskd
