#include "agent/commands/command_list.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace taskd::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

// Adds the options of "-t, --tee STREAMS" or "--num-cpus X, --num-gpus X", without their help.
void AddShown(const std::string& heads, std::vector<ShownOption>* options) {
  std::vector<std::string> letters;
  for (const std::string& head : std::vector<std::string>(absl::StrSplit(heads, ", ", absl::SkipEmpty()))) {
    const size_t end = head.find_first_of(" [,");
    const std::string name = head.substr(0, end);
    if (!name.starts_with("--")) {
      letters.push_back(name);
      continue;
    }
    ShownOption option{std::exchange(letters, {}), "", ""};
    option.names.push_back(name);
    if (end != std::string::npos) option.value = head.substr(std::min(head.find_first_not_of(' ', end), head.size()));
    if (option.value.ends_with(',')) option.value.pop_back();  // the list continues on the next line
    options->push_back(std::move(option));
  }
}

Json OptionJson(const std::vector<std::string>& names, const std::string& value, const std::string& help) {
  Json json{{"names", names}, {"help", help}};
  if (value.empty()) return json;
  json["value"] = value;
  const std::vector<std::string> choices = ChoicesOf(value);
  if (!choices.empty()) json["choices"] = choices;
  return json;
}

std::string VariableName(std::string_view prefix, std::string_view option) {
  std::string name(prefix);
  for (char c : option) name += c == '-' ? '_' : absl::ascii_toupper(static_cast<unsigned char>(c));
  return name;
}

// A command that reads its arguments itself has tables of its options, and help texts that explain them.
void AddOwn(const CommandEntry& entry, Json* command) {
  Json options = Json::array();
  std::string text;
  std::vector<std::string_view> known;
  for (const OwnHelp& help : entry.helps()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", help.text);
    if (help.options == nullptr) continue;
    std::map<std::string, ShownOption> shown;
    for (ShownOption& option : ShownOptions(help.text)) shown[option.names.back()] = std::move(option);
    for (const OptionSpec& spec : help.options->options) {
      if (std::find(known.begin(), known.end(), spec.name) != known.end()) continue;
      known.push_back(spec.name);
      const std::string name = absl::StrCat("--", std::string(spec.name));
      ShownOption option = shown[name];
      if (option.names.empty()) option.names = {name};
      if (spec.kind == OptionSpec::Kind::kFlag) {
        option.value.clear();
      } else if (spec.kind == OptionSpec::Kind::kValue && option.value.empty()) {
        option.value = "VALUE";
      }
      Json json = OptionJson(option.names, option.value, option.help);
      if (spec.from_environment) {
        json["environment"] = Json::array();
        for (std::string_view prefix : help.options->environment_prefixes) {
          json["environment"].push_back(VariableName(prefix, spec.name));
        }
      }
      options.push_back(std::move(json));
    }
  }
  if (!options.empty()) options.push_back(OptionJson({"-h", "--help"}, "", "print the help text"));
  (*command)["options"] = std::move(options);
  (*command)["text"] = text;
}

void AddFlags(const CLI::App& app, Json* command) {
  Json options = Json::array(), arguments = Json::array();
  for (const CLI::Option* option : app.get_options()) {
    const bool many = option->get_items_expected_max() > 1;
    if (!option->nonpositional()) {
      Json argument{{"name", option->get_name()}, {"help", option->get_description()}};
      if (option->get_required()) argument["required"] = true;
      if (many) argument["many"] = true;
      arguments.push_back(std::move(argument));
      continue;
    }
    std::vector<std::string> names;
    for (const std::string& letter : option->get_snames()) names.push_back(absl::StrCat("-", letter));
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
    // CLI11's type name may go on: "INT:POSITIVE", "TEXT ...".
    std::string value = option->get_items_expected_max() == 0 ? "" : option->get_type_name();
    value.resize(std::min(value.find_first_of(": "), value.size()));
    Json json = OptionJson(names, value, option->get_description());
    if (!option->get_default_str().empty()) json["default"] = option->get_default_str();
    if (!option->get_envname().empty()) json["environment"] = {option->get_envname()};
    if (option->get_required()) json["required"] = true;
    if (many) json["many"] = true;
    options.push_back(std::move(json));
  }
  (*command)["options"] = std::move(options);
  (*command)["arguments"] = std::move(arguments);
}

}  // namespace

std::vector<ShownOption> ShownOptions(const std::string& text) {
  std::vector<ShownOption> options;
  std::string section;
  size_t first = 0;  // of the options that share the help that is being read
  const auto add_help = [&](const std::string& more) {
    for (size_t i = first; i < options.size(); ++i) {
      absl::StrAppend(&options[i].help, options[i].help.empty() || more.empty() ? "" : " ", more);
    }
  };
  const auto end_help = [&] {
    for (size_t i = first; i < options.size(); ++i) {
      if (options[i].help.empty()) options[i].help = absl::AsciiStrToLower(section);
    }
    first = options.size();
  };
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string words = line.substr(indent);
    if (indent > 2) {
      add_help(words);
    } else if (indent == 2 && words.starts_with('-')) {
      end_help();
      const size_t gap = std::min(words.find("  "), words.size());
      AddShown(words.substr(0, gap), &options);
      add_help(words.substr(std::min(words.find_first_not_of(' ', gap), words.size())));
    } else {
      end_help();
      if (indent == 0 && !words.empty()) section = words;
    }
  }
  end_help();
  return options;
}

std::vector<std::string> ChoicesOf(std::string value) {
  std::vector<std::string> choices;
  if (value.find('|') == std::string::npos) return choices;
  if (value.starts_with("[=")) value = value.substr(2, value.size() - 3);
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, '|'))) {
    const bool is_word = std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.';
    });
    if (is_word && !part.empty()) choices.push_back(part);
  }
  return choices;
}

std::string CommandList(std::span<const ListedCommand> commands) {
  Json json{{"schema", kSchema}, {"version", TASKD_VERSION}, {"commands", Json::array()}};
  for (const ListedCommand& listed : commands) {
    Json command{{"name", listed.entry->name}, {"help", listed.entry->help}};
    if (listed.entry->helps != nullptr) {
      AddOwn(*listed.entry, &command);
    } else {
      AddFlags(*listed.app, &command);
    }
    json["commands"].push_back(std::move(command));
  }
  return json.dump();
}

}  // namespace taskd::commands
