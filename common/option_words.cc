#include "common/option_words.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

using Kind = OptionSpec::Kind;

constexpr size_t kMinBegin = 4;  // letters of a word's begin that stand for it in a suggestion

bool IsOption(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

// What begins like an option, but for negative numbers.
bool LooksForgotten(std::string_view word) {
  return IsOption(word) && !absl::ascii_isdigit(static_cast<unsigned char>(word[1]));
}

// "--wait_s=5": "wait-s"
std::string NameOf(std::string_view word) {
  std::string name(word.substr(2, word.find('=') - 2));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string VariableName(std::string_view prefix, std::string_view option) {
  std::string name(prefix);
  for (char c : option) name += c == '-' ? '_' : absl::ascii_toupper(static_cast<unsigned char>(c));
  return name;
}

std::vector<const OptionSpec*> BeginningWith(const OptionTable& table, const std::string& name) {
  std::vector<const OptionSpec*> found;
  for (const OptionSpec& option : table.options) {
    if (option.name.starts_with(name)) found.push_back(&option);
  }
  return found;
}

// Levenshtein's: letters to insert, delete or replace.
size_t DistanceOf(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

OptionProblem Unknown(const OptionTable& table, const std::string& label) {
  std::vector<std::string> names;
  for (const OptionSpec& option : table.options) names.push_back(absl::StrCat("--", std::string(option.name)));
  OptionProblem problem{OptionProblem::Kind::kUnknown, label, "", {}};
  const std::string nearest = label.starts_with("--") ? NearestWord("--" + NameOf(label), names) : "";
  if (!nearest.empty()) problem.others.push_back(nearest);
  return problem;
}

}  // namespace

std::string NearestWord(std::string_view word, std::span<const std::string> words) {
  const auto begins = [&](const std::string& one) { return one.starts_with(word); };
  if (word.size() >= kMinBegin && std::count_if(words.begin(), words.end(), begins) == 1) {
    return *std::find_if(words.begin(), words.end(), begins);
  }
  const auto distance = [&](const std::string& one) { return DistanceOf(word, one); };
  const auto nearest = std::min_element(words.begin(), words.end(), [&](const std::string& a, const std::string& b) {
    return distance(a) < distance(b);
  });
  return nearest != words.end() && 3 * distance(*nearest) <= nearest->size() ? *nearest : "";
}

const OptionSpec* FindOption(const OptionTable& table, std::string_view word) {
  if (!word.starts_with("--")) return nullptr;
  const auto found = std::find_if(table.options.begin(), table.options.end(),
                                  [name = NameOf(word)](const OptionSpec& option) { return option.name == name; });
  return found == table.options.end() ? nullptr : &*found;
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
    if (!IsOption(word)) break;
    ++next_;
    if (word == "-h" || word == "--help") {
      help_ = true;
      break;
    }
    absl::Status status = word[1] == '-' ? ReadLong(word) : ReadShort(word);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status OptionWords::ReadEnvironment(const Environment& environment) {
  for (const OptionSpec& option : table_.options) {
    if (!option.from_environment || given_.contains(option.name)) continue;
    if (absl::Status status = ReadVariable(option, environment); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status OptionWords::ReadVariable(const OptionSpec& option, const Environment& environment) {
  for (std::string_view prefix : table_.environment_prefixes) {
    GivenOption given;
    given.label = VariableName(prefix, option.name);
    given.value = ValueOf(environment, given.label);
    if (given.value.empty()) continue;
    if (option.kind != Kind::kValue) {
      const std::optional<bool> on = ReadBool(given.value);
      if (!on) return table_.refuse({OptionProblem::Kind::kNotBool, given.label, given.value, {"1, 0, true or false"}});
      given.value = *on ? "true" : "false";
    }
    given_[option.name] = std::move(given);
    break;
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

std::string OptionWords::Value(std::string_view option) const {
  const GivenOption* given = Find(option);
  return given == nullptr ? "" : given->value;
}

absl::Status OptionWords::ReadLong(const std::string& word) {
  const size_t equals = word.find('=');
  const std::string label = word.substr(0, equals);
  const OptionSpec* option = FindOption(table_, word);
  if (option == nullptr && table_.abbreviations) {  // as argparse does
    const std::vector<const OptionSpec*> candidates = BeginningWith(table_, NameOf(word));
    if (candidates.size() > 1) {
      OptionProblem problem{OptionProblem::Kind::kAmbiguous, label, "", {}};
      for (const OptionSpec* one : candidates) problem.others.push_back(absl::StrCat("--", std::string(one->name)));
      return table_.refuse(problem);
    }
    if (!candidates.empty()) option = candidates.front();
  }
  if (option == nullptr) return table_.refuse(Unknown(table_, label));
  std::optional<std::string> value;
  if (equals != std::string::npos) value = word.substr(equals + 1);
  return Take(*option, label, std::move(value));
}

absl::Status OptionWords::ReadShort(const std::string& word) {
  for (size_t i = 1; i < word.size(); ++i) {
    const auto option =
        std::find_if(table_.options.begin(), table_.options.end(),
                     [letter = word[i]](const OptionSpec& known) { return letter != 0 && known.letter == letter; });
    if (option == table_.options.end()) return table_.refuse({OptionProblem::Kind::kUnknown, word, "", {}});
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

void OptionWords::Set(std::string_view option, GivenOption given) {
  const OptionSpec* known = FindOption(table_, "--" + std::string(option));
  if (known != nullptr) given_[known->name] = std::move(given);
}

absl::Status OptionWords::Take(const OptionSpec& option, const std::string& label, std::optional<std::string> value) {
  GivenOption given{label, "true", true};
  absl::Status status;
  if (option.kind == Kind::kValue) {
    status = TakeValue(std::move(value), &given);
  } else if (option.kind == Kind::kSwitch) {
    status = TakeSwitch(std::move(value), &given);
  } else if (value) {
    status = table_.refuse({OptionProblem::Kind::kTakesNoValue, label, *value, {}});
  }
  if (status.ok()) given_[option.name] = std::move(given);
  return status;
}

absl::Status OptionWords::TakeSwitch(std::optional<std::string> value, GivenOption* given) {
  if (!value && next_ < words_.size()) {
    const std::string lower = absl::AsciiStrToLower(words_[next_]);
    if (lower == "true" || lower == "false") value = words_[next_++];
  }
  if (!value) return absl::OkStatus();
  const std::optional<bool> on = ReadBool(*value);
  if (!on) return table_.refuse({OptionProblem::Kind::kNotBool, given->label, *value, {"true or false"}});
  given->value = *on ? "true" : "false";
  return absl::OkStatus();
}

absl::Status OptionWords::TakeValue(std::optional<std::string> value, GivenOption* given) {
  if (!value) {
    const bool more = next_ < words_.size();
    if (!more || LooksForgotten(words_[next_])) {
      return table_.refuse({OptionProblem::Kind::kValueMissing, given->label, more ? words_[next_] : "", {}});
    }
    value = words_[next_++];
  }
  if (value->empty() && !table_.empty_values) {
    return table_.refuse({OptionProblem::Kind::kValueEmpty, given->label, "", {}});
  }
  given->value = *std::move(value);
  return absl::OkStatus();
}

}  // namespace taskd
