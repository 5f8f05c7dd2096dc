#include "common/json_shape.h"

#include <string>

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(JsonIsWithin, CountsDepthAndValues) {
  EXPECT_TRUE(JsonIsWithin("1", 0, 1));
  EXPECT_TRUE(JsonIsWithin("", 0, 1));
  EXPECT_TRUE(JsonIsWithin(R"({"a":[1,2,3],"b":{}})", 2, 7));
  EXPECT_FALSE(JsonIsWithin(R"({"a":[1,2,3],"b":{}})", 1, 7));
  EXPECT_FALSE(JsonIsWithin(R"({"a":[1,2,3],"b":{}})", 2, 6));
  EXPECT_TRUE(JsonIsWithin("[[],[],[[]]]", 3, 8));
  EXPECT_FALSE(JsonIsWithin(std::string(1000, '['), 999, 10000));
  EXPECT_FALSE(JsonIsWithin("[" + std::string(1000, ','), 8, 1000));
}

TEST(JsonIsWithin, WhatIsInTextsDoesNotCount) {
  EXPECT_TRUE(JsonIsWithin(R"(["[[[[,,,,{{{{"])", 1, 2));
  EXPECT_TRUE(JsonIsWithin(R"(["\"[[[[,,,,{{{{"])", 1, 2));
  EXPECT_FALSE(JsonIsWithin(R"(["\\",[[]]])", 2, 10));
  EXPECT_TRUE(JsonIsWithin("]]]]}}}}[[", 2, 3));
  EXPECT_TRUE(JsonIsWithin("\"\\", 0, 1));
}

}  // namespace
}  // namespace taskd
