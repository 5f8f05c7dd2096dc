#include "readers/pickle.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace taskd::readers {
namespace {

using namespace std::literals;

// The output of pickle.dumps(..., protocol=2) for
// {"version": "2.4", "entries": [{"record_id": 300, "sizes": [1, -2], "ok": True}], "none": None}
constexpr std::string_view kDump =
    "\x80\x02}q\x00(X\x07\x00\x00\x00versionq\x01X\x03\x00\x00\x00"
    "2.4q\x02X\x07\x00\x00\x00"
    "entriesq\x03]q\x04}q\x05(X\x09\x00\x00\x00record_idq\x06M,\x01X\x05\x00\x00\x00sizesq\x07]q\x08(K\x01J\xfe\xff\xff"
    "\xff"
    "eX\x02\x00\x00\x00okq\x09\x88uaX\x04\x00\x00\x00noneq\x0aNu."sv;

void ExpectDump(std::string_view bytes) {
  ValueTree tree;
  ASSERT_EQ(ReadPickle(bytes, tree), "");
  EXPECT_EQ(tree.text(tree.Find(tree.root(), "version")), "2.4");
  EXPECT_EQ(tree.kind(tree.Find(tree.root(), "none")), ValueTree::Kind::kNone);
  const std::span<const ValueTree::Id> entries = tree.items(tree.Find(tree.root(), "entries"));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(tree.number(tree.Find(entries[0], "record_id")), 300);
  EXPECT_TRUE(tree.is_true(tree.Find(entries[0], "ok")));
  const std::span<const ValueTree::Id> sizes = tree.items(tree.Find(entries[0], "sizes"));
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(tree.number(sizes[1]), -2);
}

TEST(Pickle, LongNumbers) {
  ValueTree tree;
  ASSERT_EQ(ReadPickle("\x80\x02]\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"
                       "a\x8a\x01\xff"
                       "a\x8a\x00"
                       "a."sv,
                       tree),
            "");
  const std::span<const ValueTree::Id> items = tree.items(tree.root());
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(tree.number(items[0]), INT64_MIN);
  EXPECT_EQ(tree.number(items[1]), -1);
  EXPECT_EQ(tree.number(items[2]), 0);
}

// The same with protocol 0, and a text that has to be escaped.
constexpr std::string_view kOldDump =
    "(dp0\nVversion\np1\nV2.4\np2\nsVentries\np3\n(lp4\n(dp5\nVrecord_id\np6\nI300\nsVsizes\np7\n(lp8\nI1\naI-"
    "2\nasVok\np9\nI01"
    "\nsVsays\np10\nV\\u005cn\xe9 \\U0001f600\np11\nsVat\np12\nL1099511627776L\nsasVnone\np13\nNs."sv;

TEST(Pickle, PlainData) { ExpectDump(kDump); }

TEST(Pickle, ProtocolsWithoutANumber) {
  ExpectDump(kOldDump);
  ValueTree tree;
  ASSERT_EQ(ReadPickle(kOldDump, tree), "");
  const ValueTree::Id entry = tree.items(tree.Find(tree.root(), "entries"))[0];
  EXPECT_EQ(tree.text(tree.Find(entry, "says")), "\\n\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(tree.number(tree.Find(entry, "at")), int64_t{1} << 40);
  // Output of pickle.dumps({"a": [(1,)]}, protocol=1)
  ASSERT_EQ(ReadPickle("}q\x00X\x01\x00\x00\x00"
                       "aq\x01]q\x02(K\x01tq\x03"
                       "as."sv,
                       tree),
            "");
  EXPECT_EQ(tree.items(tree.Find(tree.root(), "a")).size(), 1u);
}

TEST(Pickle, BeginsAsOne) {
  for (const std::string_view begin : {kDump, kOldDump, "}q\0X"sv, "c__main__\nCall\np0\n"sv, "cos\nsystem\nq\0"sv}) {
    EXPECT_TRUE(IsPickle(begin)) << begin;
  }
  for (const std::string_view begin :
       {"\x80\x06"sv, "(dp"sv, "cat\ndog\n"sv, "cat\ndog\npony"sv, "c a\nb\np0\n"sv, ""sv}) {
    EXPECT_FALSE(IsPickle(begin)) << begin;
  }
}

TEST(Pickle, WhatIsCutGivesWhatIsBefore) {
  for (size_t length = 2; length < kDump.size(); ++length) {
    ValueTree tree;
    const std::string problem = ReadPickle(kDump.substr(0, length), tree);
    EXPECT_TRUE(problem.starts_with("it is cut at byte ")) << problem;
    const ValueTree::Id version = tree.Find(tree.root(), "version");
    EXPECT_EQ(tree.text(version), length >= 28 ? "2.4" : "") << length;
  }
  for (size_t length = 2; length < kOldDump.size(); ++length) {
    ValueTree tree;
    const std::string problem = ReadPickle(kOldDump.substr(0, length), tree);
    EXPECT_TRUE(problem.starts_with("it is cut at byte ")) << problem;
    const ValueTree::Id version = tree.Find(tree.root(), "version");
    EXPECT_EQ(tree.text(version), length >= kOldDump.find("2.4") + 4 ? "2.4" : "") << length;
    if (length < kOldDump.find("sVsizes")) continue;
    const std::span<const ValueTree::Id> entries = tree.items(tree.Find(tree.root(), "entries"));
    ASSERT_EQ(entries.size(), 1u) << length;
    EXPECT_EQ(tree.number(tree.Find(entries[0], "record_id")), 300);
  }
}

TEST(Pickle, NothingIsCalled) {
  // Opcodes: GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ, NEWOBJ_EX, EXT1, PERSID, BINPERSID.
  for (const char opcode : "c\x93Rbio\x81\x92\x82PQ"sv) {
    ValueTree refused;
    const std::string bytes = "\x80\x02}"s + opcode + "os\nsystem\n.";
    EXPECT_TRUE(ReadPickle(bytes, refused).ends_with(" is not one of plain data at byte 3"));
    EXPECT_EQ(refused.root(), ValueTree::Nothing());
  }
}

TEST(Pickle, NonsenseIsRefused) {
  for (const std::string_view bytes :
       {"\x80\x09}."sv, "\x80\x02."sv, "\x80\x02}}."sv, "\x80\x02}(K\x01u."sv, "\x80\x02h\x05."sv,
        "\x80\x02"
        "a."sv,
        "\x80\x02Na."sv, "\x80\x02t."sv, "\x80\x02NNNs."sv}) {
    ValueTree tree;
    EXPECT_NE(ReadPickle(bytes, tree), "");
  }
}

}  // namespace
}  // namespace taskd::readers
