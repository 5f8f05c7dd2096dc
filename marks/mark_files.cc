#include "marks/mark_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

constexpr size_t kShown = 4;

std::string TextOf(const MarkFiles& files) {
  if (files.dir.empty()) return absl::StrCat("none (", files.error, ")");
  return files.error.empty() ? files.dir : absl::StrCat(files.dir, " (marks wait in memory: ", files.error, ")");
}

}  // namespace

std::string MarkFilesText(const std::vector<std::pair<int, MarkFiles>>& nodes) {
  struct Place {
    const MarkFiles* files;
    std::vector<int> nodes;
  };
  std::vector<Place> places;
  for (const std::pair<int, MarkFiles>& one : nodes) {
    const MarkFiles& files = one.second;
    auto place = std::find_if(places.begin(), places.end(), [&](const Place& known) { return *known.files == files; });
    if (place == places.end()) {
      if (places.size() > kShown) continue;
      place = places.insert(places.end(), {&files, {}});
    }
    place->nodes.push_back(one.first);
  }
  if (places.size() == 1) return TextOf(*places.front().files);
  std::string text;
  for (const Place& place : places) {
    if (&place == places.data() + kShown) return absl::StrCat(text, ", and others");
    absl::StrAppend(&text, text.empty() ? "" : ", ", TextOf(*place.files), " on ");
    if (place.nodes.size() == 1) {
      absl::StrAppend(&text, "node ", place.nodes.front());
    } else {
      absl::StrAppend(&text, place.nodes.size(), " nodes");
    }
  }
  return text;
}

}  // namespace taskd
