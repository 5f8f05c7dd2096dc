// Recognises the mark of a training step: "step N".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace taskd {

// Returns N of "step N": the word, one space, and decimal digits up to 2^63 - 1, as torch_npu and the requirement's
// examples write it (TaskD contract §4.4). A sign, a further space or anything after the digits makes it another name.
// The recorder's IsStepNumber (worker_sdk/src/name_words.h) has the same rule without the bound.
std::optional<int64_t> StepNumber(std::string_view name);

// With this instant a rank reports that its step loop has ended, as far as it knows. taskd.torch marks it at the end of
// the training data. A step, forward or batch that begins afterwards revokes it.
inline constexpr std::string_view kStepsAreOver = "steps are over";

}  // namespace taskd
