#include "agent/run_command.h"

#include <unistd.h>

#include <iostream>
#include <map>
#include <utility>

#include "agent/run/launcher.h"
#include "agent/run/options.h"
#include "common/log.h"

namespace taskd {
namespace {

constexpr int kWrongUsage = 2;

std::map<std::string, std::string> WholeEnvironment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace

int RunRunCommand(const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> environment = WholeEnvironment();
  std::string help;
  absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, environment, &help);
  if (!help.empty()) {
    std::cout << help << std::flush;
    return 0;
  }
  if (!options.ok()) {
    std::cerr << "taskd run: " << options.status().message() << std::endl;
    return kWrongUsage;
  }
  InitLog("run");
  return RunLauncher(*std::move(options), std::move(environment), {});
}

}  // namespace taskd
