// Words of a command line: one that stands alone, options that are each followed by a value, and flags.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace trunnion::bundle {

// Is given the option's name, for its errors, and the word behind it.
using TakeValue = std::function<void(const std::string& option, const std::string& value)>;

using TakeFlag = std::function<void()>;

// Hands every value to its option and calls what a flag says; the word that belongs to none, or "". Prints `usage` and exits for --help and -h.
// Throws std::invalid_argument that names the word.
std::string read_words(int count, char** arguments, const char* usage, const std::map<std::string, TakeValue>& options,
                       const std::map<std::string, TakeFlag>& flags = {});

}  // namespace trunnion::bundle
