#include "agent/commands/watch_terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace taskd::commands {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

termios before;  // for the handler

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Of a job in the background it would stop the process.
bool InForeground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

void RestoreAndEnd(int signal) {
  if (InForeground()) tcsetattr(STDIN_FILENO, TCSANOW, &before);
  [[maybe_unused]] ssize_t written = write(STDOUT_FILENO, "\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

bool WatchTerminal::IsThere() {
  return isatty(STDOUT_FILENO) != 0 && !Variable("TERM").empty() && Variable("TERM") != "dumb";
}

WatchTerminal::WatchTerminal()
    : greys_(Variable("NO_COLOR").empty() &&
             (absl::StrContains(Variable("TERM"), "256color") || !Variable("COLORTERM").empty())),
      keys_(isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &before) == 0) {
  std::fputs("\033[2J", stdout);
  if (!keys_) return;
  for (int signal : kEnding) {
    if (std::signal(signal, RestoreAndEnd) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

WatchTerminal::~WatchTerminal() {
  std::fputs("\n", stdout);
  std::fflush(stdout);
  if (keys_ && InForeground()) tcsetattr(STDIN_FILENO, TCSANOW, &before);
  for (int signal : kEnding) {
    if (keys_ && std::signal(signal, SIG_DFL) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

ScreenSize WatchTerminal::Size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

bool WatchTerminal::Show(const std::string& screen) const {
  // Each line is cleared behind its text, and what is below: nothing flickers.
  const std::string text = absl::StrReplaceAll(screen, {{"\n", "\033[K\n"}});
  return std::fputs("\033[H", stdout) >= 0 && std::fputs(text.c_str(), stdout) >= 0 &&
         std::fputs("\033[K\033[J", stdout) >= 0 && std::fflush(stdout) == 0;
}

// Each time anew: a shell has set its own modes when the process was stopped and goes on.
void WatchTerminal::TakeKeys() const {
  termios modes = before;
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  modes.c_cc[VMIN] = 0;
  modes.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &modes);
}

bool WatchTerminal::Wait(std::chrono::milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  while (true) {
    const bool listens = keys_ && InForeground();
    if (listens) TakeKeys();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) return true;
    pollfd keys{listens ? STDIN_FILENO : -1, POLLIN, 0};
    if (poll(&keys, 1, static_cast<int>(left)) <= 0) continue;
    char key = 0;
    // A terminal that has hung up is readable for ever.
    if (read(STDIN_FILENO, &key, 1) != 1) poll(nullptr, 0, static_cast<int>(left));
    if (key == 'q' || key == 'Q') return false;
  }
}

}  // namespace taskd::commands
