#include "agent/run/options_words.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd {
namespace {

enum class Kind { kValue, kFlag, kSwitch };  // kSwitch: `--x`, `--x=true` and `--x true` are all the same

std::string EnvironmentName(std::string_view prefix, std::string_view option) {
  std::string name(prefix);
  for (char c : option) name += c == '-' ? '_' : absl::ascii_toupper(c);
  return name;
}
}  // namespace

struct OptionWords::Option {
  std::string_view name;
  char letter;
  Kind kind;
};

const OptionWords::Option OptionWords::kOptions[] = {
    {"nnodes", 0, Kind::kValue},
    {"nproc-per-node", 0, Kind::kValue},
    {"node-rank", 0, Kind::kValue},
    {"rdzv-backend", 0, Kind::kValue},
    {"rdzv-endpoint", 0, Kind::kValue},
    {"rdzv-id", 0, Kind::kValue},
    {"rdzv-conf", 0, Kind::kValue},
    {"standalone", 0, Kind::kFlag},
    {"master-addr", 0, Kind::kValue},
    {"master-port", 0, Kind::kValue},
    {"local-addr", 0, Kind::kValue},
    {"max-restarts", 0, Kind::kValue},
    {"monitor-interval", 0, Kind::kValue},
    {"start-method", 0, Kind::kValue},
    {"event-log-handler", 0, Kind::kValue},
    {"role", 0, Kind::kValue},
    {"module", 'm', Kind::kFlag},
    {"no-python", 0, Kind::kFlag},
    {"run-path", 0, Kind::kFlag},
    {"log-dir", 0, Kind::kValue},
    {"redirects", 'r', Kind::kValue},
    {"tee", 't', Kind::kValue},
    {"local-ranks-filter", 0, Kind::kValue},
    {"duplicate-stdout-filters", 0, Kind::kValue},
    {"duplicate-stderr-filters", 0, Kind::kValue},
    {"logs-specs", 0, Kind::kValue},
    {"numa-binding", 0, Kind::kValue},
    {"signals-to-handle", 0, Kind::kValue},
    {"shutdown-timeout", 0, Kind::kValue},
    {"virtual-local-rank", 0, Kind::kFlag},
    {"enable-tiered-parallel-tcpstore", 0, Kind::kSwitch},
    {"store-fan-out", 0, Kind::kValue},
    {"store-memory-limit-mb", 0, Kind::kValue},
    {"manager", 0, Kind::kValue},
    {"no-taskd", 0, Kind::kFlag},
    {"hang-action", 0, Kind::kValue},
    {"hang-factor", 0, Kind::kValue},
};

absl::Status WrongOption(const GivenOption& given, std::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(given.label, " '", given.value, "': ", std::string(rule)));
}

std::optional<bool> ReadBool(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  if (lower == "1" || lower == "true") return true;
  if (lower == "0" || lower == "false") return false;
  return std::nullopt;
}

absl::Status OptionWords::Read() {
  while (next_ < words_.size()) {
    const std::string& word = words_[next_];
    if (word == "--") {
      separated_ = true;
      ++next_;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    ++next_;
    absl::Status status = word[1] == '-' ? ReadLong(word) : ReadShort(word);
    if (!status.ok() || help_) return status;
  }
  return absl::OkStatus();
}

absl::Status OptionWords::ReadEnvironment(const std::map<std::string, std::string>& environment) {
  for (const Option& option : kOptions) {
    if (given_.contains(option.name)) continue;
    for (std::string_view prefix : {"PET_", "TASKD_"}) {
      const std::string name = EnvironmentName(prefix, option.name);
      auto found = environment.find(name);
      if (found == environment.end() || found->second.empty()) continue;
      GivenOption given{name, found->second};
      if (option.kind != Kind::kValue) {
        const std::optional<bool> on = ReadBool(found->second);
        if (!on) return WrongOption(given, "1, 0, true or false");
        given.value = *on ? "true" : "false";
      }
      given_[option.name] = std::move(given);
      break;
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> OptionWords::rest() const {
  return {words_.begin() + static_cast<ptrdiff_t>(next_), words_.end()};
}

const GivenOption* OptionWords::Find(std::string_view option) const {
  auto found = given_.find(option);
  return found == given_.end() ? nullptr : &found->second;
}

bool OptionWords::Flag(std::string_view option) const {
  const GivenOption* given = Find(option);
  return given != nullptr && given->value == "true";
}

absl::Status OptionWords::ReadLong(const std::string& word) {
  const size_t equals = word.find('=');
  const std::string label = word.substr(0, equals);
  std::string name = label.substr(2);
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "help" && equals == std::string::npos) {
    help_ = true;
    return absl::OkStatus();
  }
  const Option* option = nullptr;
  std::vector<std::string> candidates;  // as argparse does: a beginning that fits one option only
  for (const Option& known : kOptions) {
    if (known.name == name) {
      option = &known;
      candidates.clear();
      break;
    }
    if (known.name.substr(0, name.size()) != name) continue;
    option = &known;
    candidates.push_back(absl::StrCat("--", std::string(known.name)));
  }
  if (option == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option '", label, "' (see taskd run --help; options of the script go after its name)"));
  }
  if (candidates.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("option '", label, "' is ambiguous: ", absl::StrJoin(candidates, ", ")));
  }
  std::optional<std::string> value;
  if (equals != std::string::npos) value = word.substr(equals + 1);
  return Take(*option, label, std::move(value));
}

absl::Status OptionWords::ReadShort(const std::string& word) {
  for (size_t i = 1; i < word.size(); ++i) {
    if (word == "-h") {
      help_ = true;
      return absl::OkStatus();
    }
    const Option* option = std::find_if(std::begin(kOptions), std::end(kOptions),
                                        [&](const Option& known) { return known.letter == word[i]; });
    if (option == std::end(kOptions)) return absl::InvalidArgumentError(absl::StrCat("unknown option '", word, "'"));
    const std::string label{'-', word[i]};
    if (option->kind == Kind::kValue) {
      std::optional<std::string> value;
      if (i + 1 < word.size()) value = word.substr(i + (word[i + 1] == '=' ? 2 : 1));
      return Take(*option, label, std::move(value));
    }
    if (absl::Status status = Take(*option, label, std::nullopt); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status OptionWords::Take(const Option& option, const std::string& label, std::optional<std::string> value) {
  GivenOption given{label, "true", true};
  const bool more = next_ < words_.size();
  switch (option.kind) {
    case Kind::kFlag:
      if (value) return absl::InvalidArgumentError(absl::StrCat(label, " '", *value, "': it takes no value"));
      break;
    case Kind::kSwitch: {
      if (!value && more) {
        const std::string lower = absl::AsciiStrToLower(words_[next_]);
        if (lower == "true" || lower == "false") value = words_[next_++];
      }
      if (!value) break;
      given.value = *value;
      const std::optional<bool> on = ReadBool(*value);
      if (!on) return WrongOption(given, "true or false");
      given.value = *on ? "true" : "false";
      break;
    }
    case Kind::kValue:
      if (!value) {
        // What begins like an option is a forgotten value, but for negative numbers, which have a better message.
        const bool is_option = more && words_[next_].size() > 1 && words_[next_][0] == '-' &&
                               !absl::ascii_isdigit(static_cast<unsigned char>(words_[next_][1]));
        if (!more) return absl::InvalidArgumentError(absl::StrCat(label, ": a value is missing"));
        if (is_option) {
          return absl::InvalidArgumentError(absl::StrCat(label, ": a value is missing before '", words_[next_], "' (",
                                                         label, "=VALUE if it is one)"));
        }
        value = words_[next_++];
      }
      given.value = *std::move(value);
      break;
  }
  given_[option.name] = std::move(given);
  return absl::OkStatus();
}

}  // namespace taskd
