#include "agent/commands/ranktable.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ranktable/rank_table.h"
#include "agent/ranktable/rank_table_file.h"
#include "common/input_budget.h"
#include "common/printable.h"

namespace taskd::commands {
namespace {

struct RankTableOptions {
  std::string file;
  std::string chip = "any";  // any, 910, 950
  int max_input_mb = kDefaultInputMb;
  bool json = false;
};

void PrintJson(const ranktable::RankTableCheck& check) {
  nlohmann::ordered_json result = {{"ok", check.ok()},
                                   {"version", check.version},
                                   {"servers", check.servers},
                                   {"devices", check.devices},
                                   {"errors", nlohmann::ordered_json::array()}};
  for (const ranktable::RankTableError& error : check.errors) {
    result["errors"].push_back({{"path", error.path}, {"text", error.text}});
  }
  if (check.errors_left_off > 0) result["errors_left_off"] = check.errors_left_off;
  std::cout << PrintableJson(result.dump()) << std::endl;
}

void PrintText(const ranktable::RankTableCheck& check) {
  if (check.ok()) {
    std::cout << "valid: version " << check.version << ", servers " << check.servers << ", devices " << check.devices
              << std::endl;
    return;
  }
  for (const ranktable::RankTableError& error : check.errors) {
    std::cout << Printable(error.path, kShownLineBytes) << (error.path.empty() ? "" : ": ")
              << Printable(error.text, kShownLineBytes) << "\n";
  }
  if (check.errors_left_off > 0) std::cout << "and " << check.errors_left_off << " more\n";
  std::cout.flush();
}

// Prints the result on stdout; true: the table is valid. INVALID_ARGUMENT: wrong usage, the file cannot be read or is
// no JSON; then nothing was printed.
absl::StatusOr<bool> RunRankTableCheck(const RankTableOptions& options) {
  const absl::StatusOr<ranktable::ChipRules> chip = ranktable::ParseChipRules(options.chip);
  if (!chip.ok()) return chip.status();
  const absl::StatusOr<ranktable::RankTableCheck> check =
      ranktable::CheckRankTableFile(options.file, *chip, static_cast<size_t>(options.max_input_mb) << 20);
  if (!check.ok()) return absl::InvalidArgumentError(check.status().message());
  options.json ? PrintJson(*check) : PrintText(*check);
  return check->ok();
}

class RankTableCheckCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.AddPositional("FILE", options_.file, "the rank table, a .json file").Required();
    flags.Add("--chip", options_.chip, "rules of a chip too: any, 910 or 950").ShowDefault();
    flags.Add("--max-input-mb", options_.max_input_mb, "MiB that the file may take, with what is made of it")
        .Range(1, kMostInputMb)
        .ShowDefault();
    flags.Add("--json", options_.json, "print one JSON object");
  }

  absl::StatusOr<bool> Run() override { return RunRankTableCheck(options_); }

 private:
  RankTableOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeRankTableCheckCommand() { return std::make_unique<RankTableCheckCommand>(); }

}  // namespace taskd::commands
