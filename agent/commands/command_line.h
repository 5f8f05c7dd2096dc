// The command line of `taskd`: a table of commands, each with its flags. CLI11 stays in command_line.cc.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/option_words.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace taskd::commands {

// One flag, or a positional argument, of a command. A view: it lives as long as its Flags.
class Flag {
 public:
  Flag(const CLI::App* app, CLI::Option* option) : app_(app), option_(option) {}

  Flag& Required();
  Flag& ShowDefault();  // in the help
  Flag& Positive();
  Flag& NonNegative();
  Flag& Range(int64_t least, int64_t most);  // both included
  Flag& JobName();                           // "my-run" is "default/my-run"
  Flag& OneValueEach();                      // of a list: the flag is repeated, and its values may have commas
  // The first of these variables that is not empty gives the value, instead of TASKD_<FLAG>.
  Flag& FromEnvironment(std::initializer_list<const char*> variables);

  // After the command line was read.
  bool given() const;  // on the command line or by the environment
  bool on_command_line() const;

 private:
  const CLI::App* app_;
  CLI::Option* option_;
};

// The flags of one command. What they are read into must outlive the command's run.
class Flags {
 public:
  explicit Flags(CLI::App* app) : app_(app) {}

  // `name`: "--disk-limit-mb"; TASKD_DISK_LIMIT_MB in the environment stands for it. T: int, uint32_t, int64_t,
  // uint64_t, double, std::string, std::vector<std::string>.
  template <typename T>
  Flag Add(const std::string& name, T& value, const std::string& help);
  Flag Add(const std::string& name, bool& value, const std::string& help);  // takes no value
  // `name`: a word; CLI11 refuses, from 2.4 on, one with a '='. T: int, std::string, std::vector<std::string>.
  template <typename T>
  Flag AddPositional(const std::string& name, T& value, const std::string& help);

 private:
  CLI::App* app_;
};

class Command {
 public:
  virtual ~Command() = default;
  virtual void AddFlags(Flags& flags) = 0;
  // Results go to stdout. False: the command was carried out, and its answer is no (exit code 1). INVALID_ARGUMENT:
  // wrong usage or configuration, nothing was done (2). Any other error: it failed (1).
  virtual absl::StatusOr<bool> Run() = 0;
};

// A help text of a command that reads its arguments itself, and the table of the options that the text explains.
struct OwnHelp {
  std::string text;
  const OptionTable* options = nullptr;  // nullptr: no table
};

// A command is either a Command, or it reads its arguments itself (other programs' command lines).
struct CommandEntry {
  std::string name;  // "switch", "ranktable check"
  std::string help;
  std::unique_ptr<Command> (*make)() = nullptr;
  int (*run)(const std::vector<std::string>& arguments) = nullptr;  // what follows the name; the exit code
  std::vector<OwnHelp> (*helps)() = nullptr;                        // with `run`
};

// What two words of a name have in common: "ranktable".
struct CommandGroup {
  std::string name;
  std::string help;
};

// Exit code: 0 done, 1 failed, 2 wrong usage, with one line on stderr.
int RunCommandLine(std::span<const CommandEntry> commands, std::span<const CommandGroup> groups, int argc, char** argv);

// "my-run" is "default/my-run"; what has a namespace, or is empty, stays.
std::string FullJobName(const std::string& name);

inline constexpr char kTlsDirHelp[] = "ca.crt, tls.crt, tls.key for mutual TLS";
inline constexpr char kTlsNameHelp[] =
    "with --tls-dir: the DNS name that the other side's certificate must have [a client: the host that it dials]";

// Never flags: command lines are read by everybody on the machine. Empty: not set.
std::string TokenOfEnvironment();   // TASKD_TOKEN, the operator's secret
std::string SecretOfEnvironment();  // TASKD_SECRET, what `taskd run` gives its daemons where there is no token

}  // namespace taskd::commands
