// Reads pyvenv.cfg.
#include "environment_version.h"

#include <fstream>

namespace trunnion::executor {

std::string environment_version(const std::string& program) {
  const auto bin = program.rfind('/');
  std::ifstream config(program.substr(0, bin == std::string::npos ? 0 : bin) + "/../pyvenv.cfg");
  for (std::string line; std::getline(config, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos || line.compare(0, 7, "version") != 0) continue;
    const auto begin = line.find_first_not_of(' ', equals + 1);
    if (begin == std::string::npos) continue;
    return line.substr(begin, line.find('.', line.find('.', begin) + 1) - begin);
  }
  return "";
}

}  // namespace trunnion::executor
