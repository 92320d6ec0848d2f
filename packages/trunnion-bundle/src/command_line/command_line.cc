#include "command_line/command_line.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace trunnion::bundle {

std::string read_words(int count, char** arguments, const char* usage, const std::map<std::string, TakeValue>& options,
                       const std::map<std::string, TakeFlag>& flags) {
  std::string alone;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--help" || word == "-h") {
      std::fputs(usage, stdout);
      std::exit(0);
    }
    if (const auto flag = flags.find(word); flag != flags.end()) {
      flag->second();
      continue;
    }
    const auto option = options.find(word);
    if (option != options.end()) {
      if (i + 1 == count) throw std::invalid_argument(word + " has no value");
      option->second(word, arguments[++i]);
    } else if (word.rfind("--", 0) != 0 && alone.empty()) {
      alone = word;
    } else {
      throw std::invalid_argument("unknown argument " + word + "; see --help");
    }
  }
  return alone;
}

}  // namespace trunnion::bundle
