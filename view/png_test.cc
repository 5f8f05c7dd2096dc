#include "view/png.h"

#include <zlib.h>

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace taskd::view {
namespace {

uint32_t NumberAt(const std::string& text, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(text[at + i]);
  return number;
}

// By type; their checksums are right.
std::map<std::string, std::string> Chunks(const std::string& png) {
  std::map<std::string, std::string> chunks;
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  for (size_t at = 8; at < png.size();) {
    const size_t size = NumberAt(png, at);
    const std::string typed = png.substr(at + 4, size + 4);
    EXPECT_EQ(NumberAt(png, at + 8 + size), crc32(0, reinterpret_cast<const Bytef*>(typed.data()), typed.size()));
    chunks[typed.substr(0, 4)] = typed.substr(4);
    at += 12 + size;
  }
  return chunks;
}

std::string Inflate(const std::string& data) {
  std::string plain(1 << 20, '\0');
  uLongf size = plain.size();
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(plain.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
                       data.size()),
            Z_OK);
  plain.resize(size);
  return plain;
}

TEST(PngTest, ThreeByTwo) {
  auto chunks = Chunks(EncodePng(3, std::string("\0\1\2\2\1\0", 6), {{1, 2, 3}, {4, 5, 6}, {255, 0, 128}}));
  EXPECT_EQ(chunks["IHDR"], std::string("\0\0\0\3\0\0\0\2\4\3\0\0\0", 13));
  EXPECT_EQ(chunks["PLTE"], std::string("\1\2\3\4\5\6\xff\0\x80", 9));
  EXPECT_EQ(Inflate(chunks["IDAT"]), std::string("\0\x01\x20\0\x21\0", 6));
  EXPECT_EQ(chunks.count("IEND"), 1U);
}

TEST(PngTest, EqualRowsTakeNoRoom) {
  EXPECT_LT(EncodePng(600, std::string(600 * 256, '\5'), {{0, 0, 0}}).size(), 1000U);
}

}  // namespace
}  // namespace taskd::view
