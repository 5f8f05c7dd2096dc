#include "agent/ranktable/reorder.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

// A part of the text: a server, or in 2.0 a rank.
struct Piece {
  JsonSpan span;
  std::vector<std::pair<JsonSpan, int64_t>> ranks;  // places within, each with its new rank
};

class Rewriter {
 public:
  Rewriter(const RankTable& table, std::span<const uint32_t> order) : table_(table), order_(order) {}

  std::string Rewrite() {
    MakePieces();
    std::vector<JsonSpan> places;
    for (const Piece& piece : pieces_) places.push_back(piece.span);
    std::sort(places.begin(), places.end(), [](JsonSpan a, JsonSpan b) { return a.begin < b.begin; });
    result_.reserve(table_.text->size() + 4 * table_.devices.size());
    uint32_t at = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      Copy({at, places[i].begin});
      Write(pieces_[i]);
      at = places[i].end;
    }
    Copy({at, static_cast<uint32_t>(table_.text->size())});
    return std::move(result_);
  }

 private:
  void MakePieces() {
    const bool is_2_0 = table_.version == RankTableVersion::k2_0;
    int64_t next_rank = 0;
    std::vector<const RankTableDevice*> own;
    for (const uint32_t place : order_) {
      const RankTableServer& server = table_.servers[place];
      own.clear();
      for (const RankTableDevice& device : table_.DevicesOf(server)) own.push_back(&device);
      std::sort(own.begin(), own.end(), [](auto* a, auto* b) { return a->rank_id < b->rank_id; });
      if (!is_2_0) pieces_.push_back({server.object, {}});
      for (const RankTableDevice* device : own) {
        if (is_2_0) pieces_.push_back({device->object, {}});
        pieces_.back().ranks.emplace_back(device->rank_id_value, next_rank++);
      }
    }
  }

  void Copy(JsonSpan span) { result_.append(*table_.text, span.begin, span.end - span.begin); }

  void Write(Piece& piece) {
    std::sort(piece.ranks.begin(), piece.ranks.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    uint32_t at = piece.span.begin;
    for (const auto& [place, rank] : piece.ranks) {
      Copy({at, place.begin});
      const char* quote = (*table_.text)[place.begin] == '"' ? "\"" : "";
      fmt::format_to(std::back_inserter(result_), "{}{}{}", quote, rank, quote);
      at = place.end;
    }
    Copy({at, piece.span.end});
  }

  const RankTable& table_;
  const std::span<const uint32_t> order_;
  std::vector<Piece> pieces_;  // in the new order
  std::string result_;
};

}  // namespace

absl::StatusOr<std::string> ReorderRankTable(const RankTable& table, std::span<const uint32_t> new_order) {
  if (table.version == RankTableVersion::kStandard || table.version == RankTableVersion::k1_1) {
    return absl::UnimplementedError(
        fmt::format("version is {}; 1.0, 1.2 and 2.0 can be rewritten", RankTableVersionName(table.version)));
  }
  std::vector<bool> seen(table.servers.size());
  for (const uint32_t place : new_order) {
    if (place >= seen.size() || seen[place]) {
      return absl::InvalidArgumentError(fmt::format("server {} is there twice or not in the table", place));
    }
    seen[place] = true;
  }
  if (new_order.size() != seen.size()) {
    return absl::InvalidArgumentError(fmt::format("{} of {} servers are ordered", new_order.size(), seen.size()));
  }
  return Rewriter(table, new_order).Rewrite();
}

}  // namespace taskd::ranktable
