// The options of `taskd run` as they were written: which were given, and by what. What they mean is options.cc's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace taskd {

// An option's value, and what gave it: "--nnodes" or "PET_NNODES".
struct GivenOption {
  std::string label;
  std::string value;
  bool on_command_line = false;
};

// INVALID_ARGUMENT: "--nnodes '0': <rule>"
absl::Status WrongOption(const GivenOption& given, std::string_view rule);

// 1, 0, true, false, in any case.
std::optional<bool> ReadBool(std::string_view text);

class OptionWords {
 public:
  // Keeps a reference.
  explicit OptionWords(const std::vector<std::string>& words) : words_(words) {}

  // The command line up to the program. INVALID_ARGUMENT: unknown, ambiguous or incomplete options.
  absl::Status Read();
  // PET_<OPTION>, else TASKD_<OPTION>, for options that the command line has not. After Read().
  absl::Status ReadEnvironment(const std::map<std::string, std::string>& environment);

  bool help() const { return help_; }            // --help was asked; nothing behind it was read
  bool separated() const { return separated_; }  // by "--"
  std::vector<std::string> rest() const;         // the program and its arguments
  // By the name with dashes. nullptr: not given. Flags have the value "true" or "false".
  const GivenOption* Find(std::string_view option) const;
  bool Flag(std::string_view option) const;

 private:
  struct Option;
  static const Option kOptions[];

  absl::Status ReadLong(const std::string& word);
  absl::Status ReadShort(const std::string& word);
  absl::Status Take(const Option& option, const std::string& label, std::optional<std::string> value);

  const std::vector<std::string>& words_;
  size_t next_ = 0;
  bool help_ = false;
  bool separated_ = false;
  std::map<std::string_view, GivenOption> given_;
};

}  // namespace taskd
