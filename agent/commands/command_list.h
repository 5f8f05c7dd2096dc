// `taskd --help --json` lists all commands with their options, for tools. agent/prompt_files.py makes completion and man
// pages from it. docs/formats.md describes the object.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "agent/commands/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace taskd::commands {

// An option as a help text shows it: "  -t, --tee STREAMS           into files and, with a prefix, ...".
struct ShownOption {
  std::vector<std::string> names;  // as typed: "-t", "--tee"
  std::string value;               // "STREAMS"; empty: takes none
  std::string help;                // one line
};

// The options of a help text. A line that begins with two blanks and a dash names one option with its letter, or several
// options, which share the help. The help follows on that line and on lines that are indented more; without any, it is the section's title.
std::vector<ShownOption> ShownOptions(const std::string& text);

// The words that a value may be: {"on", "off"} for "on|off", {"off"} for "HOST:PORT|off", none for "N".
std::vector<std::string> ChoicesOf(std::string value);

struct ListedCommand {
  const CommandEntry* entry = nullptr;
  const CLI::App* app = nullptr;
};

// One JSON object, without a newline at its end.
std::string CommandList(std::span<const ListedCommand> commands);

}  // namespace taskd::commands
