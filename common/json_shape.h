// What a JSON text from somebody else may look like before it is parsed.
#pragma once

#include <cstddef>
#include <string_view>

namespace taskd {

// Whether no value lies in more than `max_depth` lists and objects, and there are at most `max_values` values (members'
// names aside; an empty list or object counts twice). Parsers build a tree of some 16 bytes and more for each value,
// out of 2 bytes of text, and go as deep as the text says. Of a text that is no JSON the answer is no more than that.
// One pass, no memory.
bool JsonIsWithin(std::string_view text, size_t max_depth, size_t max_values);

}  // namespace taskd
