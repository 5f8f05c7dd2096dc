// Which mark names a training step: "step N".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace taskd {

// N of "step N": the word, one space, decimal digits up to 2^63 - 1, nothing else; what torch_npu and the requirement's
// examples write (TaskD contract §4.4). No sign, no further space, nothing behind the digits. Any other name is no
// step's. The recorder's IsStepNumber (worker_sdk/src/name_words.h) has the same rule, without the bound.
std::optional<int64_t> StepNumber(std::string_view name);

// An instant by which a rank says that its step loop is over, as far as it knows: taskd.torch makes it at the end of the
// data that is trained on. A step, forward or batch that begins afterwards takes it back.
inline constexpr std::string_view kStepsAreOver = "steps are over";

}  // namespace taskd
