#include "agent/route/topology_formats/csv.h"

// Our own simplest form: node,level1,level2,… with level1 the leaf switch. A switch's name counts on its level only.
#include <vector>

#include "absl/strings/ascii.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

void Split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  while (true) {
    const size_t comma = line.find(',');
    fields.push_back(Trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

absl::StatusOr<Topology> ReadCsv(std::string_view text, InputBudget& budget) {
  TopologyBuilder builder(budget);
  std::vector<std::string_view> fields;
  std::vector<int32_t> ids;
  std::string_view line;
  size_t columns = 0;
  for (size_t number = 1; NextLine(text, line); ++number) {
    line = Trim(line);
    if (line.empty() || line[0] == '#') continue;
    Split(line, fields);
    const std::string context = fmt::format("line {}", number);
    if (columns == 0) {
      bool good = fields.size() >= 2 && absl::AsciiStrToLower(std::string(fields[0])) == "node";
      for (size_t i = 1; i < fields.size(); ++i) {
        good = good && absl::AsciiStrToLower(std::string(fields[i])) == fmt::format("level{}", i);
      }
      if (!good) {
        return absl::InvalidArgumentError(
            fmt::format("{}: {} is not the header node,level1,level2,…", context, Quoted(line)));
      }
      columns = fields.size();
      continue;
    }
    if (fields.size() != columns) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {} has {} fields, the header has {}", context, Quoted(line), fields.size(), columns));
    }
    ids.clear();
    for (size_t i = 0; i < columns; ++i) {
      if (fields[i].empty()) {
        return absl::InvalidArgumentError(fmt::format("{}: {} has an empty field", context, Quoted(line)));
      }
      if (i > 0) ids.push_back(builder.Switch(fields[i], static_cast<int>(i)));
    }
    for (size_t i = 1; i < ids.size(); ++i) {
      if (absl::Status status = builder.SetParent(ids[i - 1], ids[i]); !status.ok()) return At(context, status);
    }
    if (absl::Status status = builder.AddNode(fields[0], "", {ids[0]}); !status.ok()) return At(context, status);
  }
  if (columns == 0) return absl::InvalidArgumentError("no header node,level1,level2,…");
  return builder.Finish(false);
}

}  // namespace taskd::route
