#include "view/png.h"

#include <zlib.h>

namespace taskd::view {
namespace {

void AppendNumber(uint32_t number, std::string& out) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

void AppendChunk(std::string_view type, std::string_view data, std::string& out) {
  AppendNumber(static_cast<uint32_t>(data.size()), out);
  const size_t begin = out.size();
  out.append(type);
  out.append(data);
  AppendNumber(static_cast<uint32_t>(
                   crc32(0, reinterpret_cast<const Bytef*>(out.data() + begin), static_cast<uInt>(out.size() - begin))),
               out);
}

// Two pixels a byte; each row begins with the number of its filter, none.
std::string PackRows(size_t width, std::string_view pixels) {
  std::string rows;
  for (size_t row = 0; width != 0 && row + width <= pixels.size(); row += width) {
    rows += '\0';
    for (size_t x = 0; x < width; x += 2) {
      const unsigned left = static_cast<uint8_t>(pixels[row + x]) & 0xf;
      const unsigned right = x + 1 < width ? static_cast<uint8_t>(pixels[row + x + 1]) & 0xf : 0;
      rows += static_cast<char>(left << 4 | right);
    }
  }
  return rows;
}

std::string Compress(const std::string& data) {
  uLongf size = compressBound(static_cast<uLong>(data.size()));
  std::string compressed(size, '\0');
  // The bound is what it may need at most, and memory that is not there throws elsewhere.
  compress2(reinterpret_cast<Bytef*>(compressed.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
            static_cast<uLong>(data.size()), Z_BEST_COMPRESSION);
  compressed.resize(size);
  return compressed;
}

}  // namespace

std::string EncodePng(size_t width, std::string_view pixels, const std::vector<Color>& colors) {
  std::string header;
  AppendNumber(static_cast<uint32_t>(width), header);
  AppendNumber(static_cast<uint32_t>(width == 0 ? 0 : pixels.size() / width), header);
  header += '\4';          // bits a pixel
  header += '\3';          // of indices
  header.append(3, '\0');  // deflate, filters by row, not interlaced
  std::string palette;
  for (const Color& color : colors) palette.append(color.begin(), color.end());
  std::string png = "\x89PNG\r\n\x1a\n";
  AppendChunk("IHDR", header, png);
  AppendChunk("PLTE", palette, png);
  AppendChunk("IDAT", Compress(PackRows(width, pixels)), png);
  AppendChunk("IEND", "", png);
  return png;
}

}  // namespace taskd::view
