#include "agent/route/topology_formats/json_text.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "agent/route/topology.h"
#include "common/json_limits.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr size_t kMaxDepth = 64;
// What nlohmann::json makes of a text, with the allocator's own: an element in a vector that has doubled, a node of a
// map besides its key, a string, a map or vector with room for its first.
constexpr size_t kElementBytes = 32;
constexpr size_t kMemberBytes = 48;
constexpr size_t kStringBytes = 48;
constexpr size_t kContainerBytes = 96;

// What it is made of is bounded by the file's size.
bool TooDeep(std::string_view text) {
  const JsonLimits limits{.bytes = text.size(), .depth = kMaxDepth, .values = std::numeric_limits<size_t>::max()};
  return !CheckJsonLimits(text, limits).ok();
}

// The tree of `text` counts, whatever follows a mistake in it. False: there is no room for it.
bool TakeTree(std::string_view text, InputBudget& budget) {
  for (size_t i = 0; i < text.size(); ++i) {
    size_t bytes = 0;
    switch (text[i]) {
      case '"': {
        const size_t begin = ++i;
        while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
        bytes = kStringBytes + (i - begin);
        break;
      }
      case ',':
        bytes = kElementBytes;
        break;
      case ':':
        bytes = kMemberBytes;
        break;
      case '[':
      case '{':
        bytes = kContainerBytes;
        break;
      default:
        continue;
    }
    if (!budget.Take(bytes)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, InputBudget& budget) {
  if (TooDeep(text)) {
    return absl::InvalidArgumentError(fmt::format("JSON nested deeper than {} levels", kMaxDepth));
  }
  if (!TakeTree(text, budget)) return budget.status();
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    return absl::InvalidArgumentError(fmt::format("not JSON: byte {} of {}, at {}", at, text.size(),
                                                  at < text.size() ? Quoted(text.substr(at, 16)) : "the end"));
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("not JSON: a number is out of range");
  }
}

bool LooksLikePackedGzip(std::string_view text) {
  const std::string_view begin = "H4sI";  // 1f 8b 08
  if (text.substr(0, begin.size()) != begin) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '/' || c == '=' ||
           absl::ascii_isspace(static_cast<unsigned char>(c));
  });
}

absl::StatusOr<std::string> UnpackGzip(std::string_view base64, InputBudget& budget) {
  if (!budget.Take(base64.size() / 4 * 3)) return budget.status();
  std::string packed;
  if (!absl::Base64Unescape(absl::string_view(base64.data(), base64.size()), &packed)) {
    return absl::InvalidArgumentError("not base64");
  }
  z_stream stream = {};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return absl::InternalError("zlib: no memory");
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string result;
  absl::Status status = absl::OkStatus();
  char piece[64 * 1024];
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof(piece);
    const int code = inflate(&stream, Z_NO_FLUSH);
    const size_t unpacked = sizeof(piece) - stream.avail_out;
    if (budget.Take(unpacked)) result.append(piece, unpacked);
    if (!budget.status().ok()) {
      status = budget.status();
    } else if (code == Z_STREAM_END && stream.avail_in > 0) {
      status = absl::InvalidArgumentError(fmt::format("{} bytes behind the gzip data", stream.avail_in));
    } else if (code == Z_OK && stream.avail_in == 0 && stream.avail_out > 0) {
      status = absl::InvalidArgumentError("the gzip data is cut");
    } else if (code != Z_OK && code != Z_STREAM_END) {
      status = absl::InvalidArgumentError(code == Z_BUF_ERROR ? "the gzip data is cut" : "broken gzip data");
    }
    if (!status.ok() || code == Z_STREAM_END) break;
  }
  inflateEnd(&stream);
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<std::string_view> StringMember(const nlohmann::json& object, const char* key, std::string_view context) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  if (member == object.end() || !member->is_string() || member->get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(fmt::format("{}: {} is not a string that is not empty", context, key));
  }
  return member->get_ref<const std::string&>();
}

absl::StatusOr<const nlohmann::json*> ListMember(const nlohmann::json& object, const char* key,
                                                 std::string_view context) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  if (member == object.end() || !member->is_array()) {
    return absl::InvalidArgumentError(fmt::format("{}: {} is not a list", context, key));
  }
  return &*member;
}

absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, const char* key, std::string_view context) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  if (member != object.end() && member->is_number_integer()) {
    if (!member->is_number_unsigned() || member->get<uint64_t>() <= INT64_MAX) return member->get<int64_t>();
  } else if (member != object.end() && member->is_string()) {
    const std::string& text = member->get_ref<const std::string&>();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  return absl::InvalidArgumentError(fmt::format("{}: {} is not an integer", context, key));
}

absl::Status CheckCompleted(const nlohmann::json& root) {
  const auto status = root.find("status");
  if (status == root.end()) return absl::OkStatus();
  if (!status->is_string()) return absl::InvalidArgumentError("status is not a string");
  if (*status == "completed") return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("status is {}, not \"completed\"", Quoted(status->get_ref<const std::string&>())));
}

}  // namespace taskd::route
