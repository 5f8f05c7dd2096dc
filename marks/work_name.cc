#include "marks/work_name.h"

#include <charconv>
#include <cmath>

namespace taskd {

std::optional<SaidWork> WorkOfName(std::string_view name) {
  constexpr std::string_view kKey = "{\"work\":";
  if (!name.starts_with(kKey)) return std::nullopt;
  name.remove_prefix(kKey.size());
  while (name.starts_with(' ')) name.remove_prefix(1);
  double amount = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), amount);
  const std::string_view behind(rest, static_cast<size_t>(name.data() + name.size() - rest));
  const bool ends = behind.starts_with('}') || behind.starts_with(',') || behind.starts_with(' ');
  if (error != std::errc() || !ends || !std::isfinite(amount) || amount < 0) return SaidWork();
  return SaidWork{true, amount};
}

std::optional<SaidWork> CutWork(std::string_view& name) {
  if (!name.ends_with('}') || !(name.starts_with("step ") || name.starts_with("forward "))) return std::nullopt;
  const size_t space = name.find(" {");
  if (space == std::string_view::npos) return std::nullopt;
  const std::optional<SaidWork> said = WorkOfName(name.substr(space + 1));
  if (said) name = name.substr(0, space);
  return said;
}

}  // namespace taskd
