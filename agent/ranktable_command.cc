#include "agent/ranktable_command.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/ranktable/rank_table.h"
#include "common/printable.h"

namespace taskd {
namespace {

void PrintJson(const RankTableCheck& check) {
  nlohmann::ordered_json result = {{"ok", check.ok()},
                                   {"version", check.version},
                                   {"servers", check.servers},
                                   {"devices", check.devices},
                                   {"errors", nlohmann::ordered_json::array()}};
  for (const RankTableError& error : check.errors) {
    result["errors"].push_back({{"path", error.path}, {"text", error.text}});
  }
  if (check.errors_left_off > 0) result["errors_left_off"] = check.errors_left_off;
  std::cout << PrintableJson(result.dump()) << std::endl;
}

void PrintText(const RankTableCheck& check) {
  if (check.ok()) {
    std::cout << "valid: version " << check.version << ", servers " << check.servers << ", devices " << check.devices
              << std::endl;
    return;
  }
  for (const RankTableError& error : check.errors) {
    std::cout << Printable(error.path, kShownLineBytes) << (error.path.empty() ? "" : ": ")
              << Printable(error.text, kShownLineBytes) << "\n";
  }
  if (check.errors_left_off > 0) std::cout << "and " << check.errors_left_off << " more\n";
  std::cout.flush();
}

}  // namespace

absl::StatusOr<bool> RunRankTableCheck(const RankTableCommandOptions& options) {
  const absl::StatusOr<ChipRules> chip = ParseChipRules(options.chip);
  if (!chip.ok()) return chip.status();
  const absl::StatusOr<RankTableCheck> check = CheckRankTableFile(options.file, *chip);
  if (!check.ok()) return absl::InvalidArgumentError(check.status().message());
  options.json ? PrintJson(*check) : PrintText(*check);
  return check->ok();
}

}  // namespace taskd
