#include "agent/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/commands/command_list.h"
#include "agent/process/exit_code.h"
#include "common/flag_names.h"
#include "common/log.h"
#include "common/option_words.h"
#include "common/printable.h"
#include "proto/channel.h"

namespace taskd::commands {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;

// "-n,--node-rank" -> "TASKD_NODE_RANK"
std::string EnvironmentName(const std::string& flag) {
  std::string name = "TASKD_";
  for (char c : flag.substr(flag.find("--") + 2)) name += c == '-' ? '_' : static_cast<char>(toupper(c));
  return name;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int Fail(const std::string& command, const absl::Status& status) {
  // A list keeps its lines.
  std::vector<std::string> lines = absl::StrSplit(status.message(), "\n  ");
  for (std::string& line : lines) line = Printable(NamedFlags(line), kShownLineBytes);
  WriteToStderr(absl::StrCat(command, ": ", absl::StrJoin(lines, "\n  "), "\n"));
  return absl::IsInvalidArgument(status) ? process::kWrongUsage : kFailed;
}

std::string FirstWord(const std::string& name) { return name.substr(0, name.find(' ')); }
std::string LastWord(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

// In the table's order, a group once.
std::vector<std::string> FirstWords(std::span<const CommandEntry> commands) {
  std::vector<std::string> words;
  for (const CommandEntry& entry : commands) {
    const std::string word = FirstWord(entry.name);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

// Those that follow this first word.
std::vector<std::string> SecondWords(std::span<const CommandEntry> commands, const std::string& first) {
  std::vector<std::string> words;
  for (const CommandEntry& entry : commands) {
    if (entry.name.starts_with(first + " ")) words.push_back(entry.name.substr(first.size() + 1));
  }
  return words;
}

absl::Status CheckWord(const std::string& command, const std::string& word, std::vector<std::string> words) {
  if (std::find(words.begin(), words.end(), word) != words.end()) return absl::OkStatus();
  words.insert(words.end(), {"--help", "--version"});
  const std::string nearest = NearestWord(word, words);
  return absl::InvalidArgumentError(absl::StrCat(
      "'", word, "' is no command: ",
      nearest.empty() ? absl::StrCat(command, " --help lists them") : absl::StrCat("did you mean '", nearest, "'?")));
}

std::string ValueMissing(const CLI::Option& option) {
  return absl::StrCat("a value is missing (", option.get_description(), ")");
}

// CLI11 takes the word after an option for its value, even if it is the next option. Its own messages about numbers name
// no rule.
template <typename T>
void CheckValue(CLI::Option* option) {
  option->check([option](const std::string& word) -> std::string {
    if (word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.') {
      return absl::StrCat(ValueMissing(*option), "; '", word, "' is an option");
    }
    if constexpr (std::integral<T> || std::floating_point<T>) {
      T number{};
      if (CLI::detail::lexical_cast(word, number)) return "";
      constexpr char kWhole[] = "a whole number";
      return absl::StrCat("'", word, "' is not ",
                          std::floating_point<T>  ? "a number"
                          : std::same_as<T, bool> ? "true or false"
                          : std::unsigned_integral<T>
                              ? absl::StrCat(kWhole, " from 0 to ", std::numeric_limits<T>::max())
                              : absl::StrCat(kWhole, " up to ", std::numeric_limits<T>::max()));
    }
    return "";
  });
}

// A rule of `option`, a number, that CLI11 has too. Its message is "'VALUE' is not RULE".
void CheckRule(CLI::Option* option, const CLI::Validator& rule, const std::string& text) {
  option->check(
      [rule, text](const std::string& word) {
        return rule(word).empty() ? "" : absl::StrCat("'", word, "' is not ", text);
      },
      rule.get_description());
}

// Turns CLI11's error into a message that names the word and, for an unknown option, the nearest known one.
std::string Explain(const CLI::ParseError& error, const CLI::App& command) {
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch) &&
      absl::EndsWith(text, " missing")) {  // "--from: 1 required TEXT missing"
    const std::string name = text.substr(0, text.find(": "));
    const CLI::Option* option = command.get_option_no_throw(name);
    return absl::StrCat(name, ": ", option == nullptr ? "a value is missing" : ValueMissing(*option));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {  // "node is required"
    const std::string name = text.substr(0, text.find(' '));
    const CLI::Option* option = command.get_option_no_throw(name);
    return option == nullptr ? text : absl::StrCat(name, " is missing: ", option->get_description());
  }
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return text;
  const std::vector<std::string> unknown = command.remaining(true);
  if (unknown.empty()) return text;
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) names.push_back(option->get_name());
  const std::string nearest = NearestWord(word, names);
  const std::string kind = absl::StartsWith(word, "-") ? "unknown option" : "unexpected argument";
  return absl::StrCat(kind, " '", unknown.front(), "'",
                      nearest.empty() ? "" : absl::StrCat(": did you mean ", nearest, "?"));
}

// "--help --json" and "--json --help".
bool AsksForList(const std::vector<std::string>& arguments) {
  const auto has = [&](const char* word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  return arguments.size() == 2 && has("--help") && has("--json");
}

struct Parsed {
  const CommandEntry* entry = nullptr;
  CLI::App* app = nullptr;
  std::unique_ptr<Command> command;  // empty: one that reads its arguments itself
};

std::deque<Parsed> AddCommands(std::span<const CommandEntry> commands, std::span<const CommandGroup> groups,
                               CLI::App* app) {
  std::map<std::string, CLI::App*> parents;
  std::deque<Parsed> all;
  for (const CommandEntry& entry : commands) {
    CLI::App* above = app;
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const CommandGroup& one) { return one.name == FirstWord(entry.name); });
    if (group != groups.end()) {
      CLI::App*& parent = parents[group->name];
      if (parent == nullptr) (parent = app->add_subcommand(group->name, group->help))->require_subcommand(1);
      above = parent;
    }
    Parsed& parsed = all.emplace_back();
    parsed.entry = &entry;
    parsed.app = above->add_subcommand(LastWord(entry.name), entry.help);
    if (entry.make == nullptr) continue;
    parsed.command = entry.make();
    Flags flags(parsed.app);
    parsed.command->AddFlags(flags);
  }
  return all;
}

// In a daemon that `taskd run` has started: what its user can set. `taskd run` has some of the flags itself.
void NameFlagsForRun(const CLI::App& command) {
  static const std::map<std::string, std::string> kOptionsOfRun = {{"--manager", "--manager"},
                                                                   {"--ledger", "--ledger"},
                                                                   {"--node-rank", "--node-rank"},
                                                                   {"--nodes", "--nnodes"},
                                                                   {"--procs-per-node", "--nproc-per-node"},
                                                                   {"--default-job", "--rdzv-id"}};
  std::map<std::string, std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    const auto of_run = kOptionsOfRun.find(option->get_name());
    if (of_run != kOptionsOfRun.end()) {
      names[of_run->first] = of_run->second;
    } else if (command.get_name() == "manager" && option->get_name() == "--listen") {
      names["--listen"] = "--manager";  // TASKD_LISTEN is the proxy's
    } else if (!option->get_envname().empty()) {
      names[option->get_name()] = option->get_envname();
    }
  }
  SetFlagNames(std::move(names));
}

int RunCommand(const Parsed& parsed) {
  InitLog(FirstWord(parsed.entry->name));
  proto::InitGrpcLog();
  absl::StatusOr<bool> done = parsed.command->Run();
  if (!done.ok()) return Fail(absl::StrCat("taskd ", parsed.entry->name), done.status());
  return *done ? kDone : kFailed;
}

}  // namespace

Flag& Flag::Required() {
  option_->required();
  return *this;
}

Flag& Flag::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

Flag& Flag::Positive() {
  CheckRule(option_, CLI::PositiveNumber, "above 0");
  return *this;
}

Flag& Flag::NonNegative() {
  CheckRule(option_, CLI::NonNegativeNumber, "0 or more");
  return *this;
}

Flag& Flag::Range(int64_t least, int64_t most) {
  CheckRule(option_, CLI::Range(least, most), absl::StrCat(least, " to ", most));
  return *this;
}

Flag& Flag::JobName() {
  option_->transform([](const std::string& name) { return FullJobName(name); }, "");
  return *this;
}

Flag& Flag::OneValueEach() {
  option_->allow_extra_args(false);
  return *this;
}

Flag& Flag::FromEnvironment(std::initializer_list<const char*> variables) {
  for (const char* name : variables) {
    if (Environment(name).empty()) continue;
    option_->envname(name);
    break;
  }
  return *this;
}

bool Flag::given() const { return option_->count() > 0; }

bool Flag::on_command_line() const {
  const std::vector<CLI::Option*>& parsed = app_->parse_order();  // the environment's are not in it
  return std::find(parsed.begin(), parsed.end(), option_) != parsed.end();
}

template <typename T>
Flag Flags::Add(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help)->envname(EnvironmentName(name));
  CheckValue<T>(option);
  return {app_, option};
}
template Flag Flags::Add(const std::string&, int&, const std::string&);
template Flag Flags::Add(const std::string&, uint32_t&, const std::string&);
template Flag Flags::Add(const std::string&, int64_t&, const std::string&);
template Flag Flags::Add(const std::string&, uint64_t&, const std::string&);
template Flag Flags::Add(const std::string&, double&, const std::string&);
template Flag Flags::Add(const std::string&, std::string&, const std::string&);
template Flag Flags::Add(const std::string&, std::vector<std::string>&, const std::string&);

Flag Flags::Add(const std::string& name, bool& value, const std::string& help) {
  CLI::Option* option = app_->add_flag(name, value, help)->envname(EnvironmentName(name));
  CheckValue<bool>(option);
  return {app_, option};
}

template <typename T>
Flag Flags::AddPositional(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  CheckValue<T>(option);
  return {app_, option};
}
template Flag Flags::AddPositional(const std::string&, int&, const std::string&);
template Flag Flags::AddPositional(const std::string&, std::string&, const std::string&);
template Flag Flags::AddPositional(const std::string&, std::vector<std::string>&, const std::string&);

int RunCommandLine(std::span<const CommandEntry> commands, std::span<const CommandGroup> groups, int argc,
                   char** argv) {
  const std::vector<std::string> words = FirstWords(commands);
  if (argc < 2) {
    std::cerr << "usage: taskd " << absl::StrJoin(words, "|") << " [OPTIONS]   (taskd COMMAND --help tells more)"
              << std::endl;
    return process::kWrongUsage;
  }
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.front() == "help") {  // "help run" is "run --help"
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  const std::string first = arguments.front();
  for (const CommandEntry& entry : commands) {
    // CLI11 would take options of the script for ours.
    if (entry.run != nullptr && entry.name == first) return entry.run({arguments.begin() + 1, arguments.end()});
  }
  CLI::App app("TaskD records what a distributed training job does, and switches that on and off while it runs.",
               "taskd");
  app.set_version_flag("--version", "taskd " TASKD_VERSION);
  app.require_subcommand(1);
  std::deque<Parsed> all = AddCommands(commands, groups, &app);
  if (AsksForList(arguments)) {
    std::vector<ListedCommand> listed;
    for (const Parsed& one : all) listed.push_back({one.entry, one.app});
    std::cout << CommandList(listed) << std::endl;
    return kDone;
  }
  // CLI11 would only miss a subcommand, and not name what it found.
  if (first != "-h" && first != "--help" && first != "--version") {
    if (absl::Status known = CheckWord("taskd", first, words); !known.ok()) return Fail("taskd", known);
  }
  for (const CommandGroup& group : groups) {
    if (first != group.name || (arguments.size() > 1 && arguments[1].starts_with('-'))) continue;
    const std::string command = absl::StrCat("taskd ", first);
    const std::vector<std::string> second = SecondWords(commands, first);
    const absl::Status known =
        arguments.size() > 1 ? CheckWord(command, arguments[1], second)
                             : absl::InvalidArgumentError("a command is needed: " + absl::StrJoin(second, " or "));
    if (!known.ok()) return Fail(command, known);
  }
  if (Environment("TASKD_STARTED_BY") == "run") {
    for (const Parsed& one : all) {
      if (one.entry->name == first) NameFlagsForRun(*one.app);
    }
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the end
  } catch (const CLI::ParseError& error) {
    // --help, --version
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    std::string command = "taskd";
    const CLI::App* innermost = &app;
    for (auto subs = app.get_subcommands(); !subs.empty(); subs = innermost->get_subcommands()) {
      innermost = subs.front();
      absl::StrAppend(&command, " ", innermost->get_name());
    }
    return Fail(command, absl::InvalidArgumentError(Explain(error, *innermost)));
  }
  const auto chosen = std::find_if(all.begin(), all.end(), [](const Parsed& one) { return one.app->parsed(); });
  return RunCommand(*chosen);
}

std::string FullJobName(const std::string& name) {
  return name.empty() || absl::StrContains(name, '/') ? name : absl::StrCat("default/", name);
}

std::string TokenOfEnvironment() { return Environment("TASKD_TOKEN"); }
std::string SecretOfEnvironment() { return Environment("TASKD_SECRET"); }

}  // namespace taskd::commands
