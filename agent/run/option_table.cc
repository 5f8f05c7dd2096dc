#include "agent/run/option_table.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd::run {
namespace {

using Kind = OptionSpec::Kind;

constexpr OptionSpec kOptions[] = {
    {"nnodes"},
    {"nproc-per-node"},
    {"node-rank"},
    {"rdzv-backend"},
    {"rdzv-endpoint"},
    {"rdzv-id"},
    {"rdzv-conf"},
    {"standalone", Kind::kFlag},
    {"master-addr"},
    {"master-port"},
    {"local-addr"},
    {"max-restarts"},
    {"monitor-interval"},
    {"start-method"},
    {"event-log-handler"},
    {"role"},
    {"module", Kind::kFlag, 'm'},
    {"no-python", Kind::kFlag},
    {"run-path", Kind::kFlag},
    {"log-dir"},
    {"redirects", Kind::kValue, 'r'},
    {"tee", Kind::kValue, 't'},
    {"local-ranks-filter"},
    {"duplicate-stdout-filters"},
    {"duplicate-stderr-filters"},
    {"logs-specs"},
    {"numa-binding"},
    {"signals-to-handle"},
    {"shutdown-timeout"},
    {"node-timeout"},
    {"virtual-local-rank", Kind::kFlag},
    {"enable-tiered-parallel-tcpstore", Kind::kSwitch},
    {"store-fan-out"},
    {"store-memory-limit-mb"},
    {"manager"},
    {"marks"},
    {"ledger"},
    {"on-slow"},
    {"on-slow-when"},
    {"remaining"},
    {"evictions"},
    {"order-to"},
    {"no-taskd", Kind::kFlag},
    {"dry-run", Kind::kFlag, 0, false},
    {"hang-action"},
    {"hang-factor"},
    {"ras"},
};

constexpr std::string_view kPrefixes[] = {"PET_", "TASKD_"};

std::string Explain(const OptionProblem& problem) {
  const std::string& label = problem.label;
  switch (problem.kind) {
    case OptionProblem::Kind::kUnknown:
      if (!absl::StartsWith(label, "--")) return absl::StrCat("unknown option '", label, "'");
      if (!problem.others.empty()) {
        return absl::StrCat("unknown option '", label, "': did you mean ", problem.others.front(),
                            "? (options of the script go after its name)");
      }
      return absl::StrCat("unknown option '", label,
                          "' (see taskd run --help; options of the script go after its name)");
    case OptionProblem::Kind::kAmbiguous:
      return absl::StrCat("option '", label, "' is ambiguous: ", absl::StrJoin(problem.others, ", "));
    case OptionProblem::Kind::kTakesNoValue:
      return absl::StrCat(label, " '", problem.value, "': it takes no value");
    case OptionProblem::Kind::kValueMissing:
      if (problem.value.empty()) return absl::StrCat(label, ": a value is missing");
      return absl::StrCat(label, ": a value is missing before '", problem.value, "' (", label, "=VALUE if it is one)");
    case OptionProblem::Kind::kValueEmpty:
      return absl::StrCat(label, " '': its value is empty");
    case OptionProblem::Kind::kNotBool:
      return absl::StrCat(label, " '", problem.value, "': ", problem.others.front());
  }
  return label;
}

absl::Status Refuse(const OptionProblem& problem) { return absl::InvalidArgumentError(Explain(problem)); }

}  // namespace

const OptionTable kRunOptionTable = {kOptions, kPrefixes, /*abbreviations=*/true, /*empty_values=*/true, Refuse};

absl::Status WrongOption(const GivenOption& given, std::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(given.label, " '", given.value, "': ", std::string(rule)));
}

}  // namespace taskd::run
