// The options of a command line as they were written: which were given, and by what. What they mean is the caller's.
// `--name value`, `--name=value`, dashes or underscores; letters as -m, -r3, -r=3, -mr 3; what is absent may come from
// the environment. Options end at `--` or at the first word that is none.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/environment.h"

namespace taskd {

struct OptionSpec {
  enum class Kind { kValue, kFlag, kSwitch };  // kSwitch: `--x`, `--x=true` and `--x true` are all the same

  std::string_view name;
  Kind kind = Kind::kValue;
  char letter = 0;
  bool from_environment = true;
};

// An option's value, and what gave it: "--nnodes" or "PET_NNODES".
struct GivenOption {
  std::string label;
  std::string value;
  bool on_command_line = false;
};

// What is wrong with the words, for the command to print.
struct OptionProblem {
  enum class Kind {
    kUnknown,
    kAmbiguous,     // the beginning of several: `others`
    kTakesNoValue,  // a flag with `value`
    kValueMissing,  // `value`: the option that stands in its place, if any
    kValueEmpty,
    kNotBool,  // `value` of a flag or switch; `others`: what it may be
  };

  Kind kind = Kind::kUnknown;
  std::string label;  // as written, without the value
  std::string value;
  std::vector<std::string> others;  // kUnknown: the option that the user may mean, if one is near
};

// Lives as long as what is read with it, as do the texts that it views.
struct OptionTable {
  std::span<const OptionSpec> options;
  std::span<const std::string_view> environment_prefixes;  // "TASKD_": TASKD_WAIT_S for wait-s; the first that is set
  bool abbreviations = false;                              // a beginning that fits one option only stands for it
  bool empty_values = false;
  absl::Status (*refuse)(const OptionProblem& problem) = nullptr;
};

// The option that `word` ("--wait_s=5") names, in full. nullptr: none.
const OptionSpec* FindOption(const OptionTable& table, std::string_view word);

// The word that `word` may be a slip of: the nearest one, if at most a third of its letters differ (Levenshtein's
// distance). Empty: none is so near.
std::string NearestWord(std::string_view word, std::span<const std::string> words);

// 1, 0, true, false, in any case.
std::optional<bool> ReadBool(std::string_view text);

class OptionWords {
 public:
  // Keeps references.
  OptionWords(const OptionTable& table, const std::vector<std::string>& words) : table_(table), words_(words) {}

  // The command line up to the program.
  absl::Status Read();
  // Variables for options that the command line has not; empty ones count as absent. After Read().
  absl::Status ReadEnvironment(const Environment& environment);

  // As if it had been given. After Read() and ReadEnvironment().
  void Set(std::string_view option, GivenOption given);

  bool help() const { return help_; }            // --help or -h was asked; nothing behind it was read
  bool separated() const { return separated_; }  // by "--"
  std::vector<std::string> rest() const;         // the program and its arguments
  // By the name with dashes. nullptr: not given. Flags have the value "true" or "false".
  const GivenOption* Find(std::string_view option) const;
  std::string Value(std::string_view option) const;  // "" where it is not given
  bool Flag(std::string_view option) const { return Value(option) == "true"; }

 private:
  absl::Status ReadLong(const std::string& word);
  absl::Status ReadShort(const std::string& word);
  absl::Status ReadVariable(const OptionSpec& option, const Environment& environment);
  absl::Status Take(const OptionSpec& option, const std::string& label, std::optional<std::string> value);
  absl::Status TakeSwitch(std::optional<std::string> value, GivenOption* given);
  absl::Status TakeValue(std::optional<std::string> value, GivenOption* given);

  const OptionTable& table_;
  const std::vector<std::string>& words_;
  size_t next_ = 0;
  bool help_ = false;
  bool separated_ = false;
  std::map<std::string_view, GivenOption> given_;
};

}  // namespace taskd
