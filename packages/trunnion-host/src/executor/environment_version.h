// Which Python an environment is of.
#pragma once

#include <string>

namespace trunnion::executor {

/// "3.11" of "version = 3.11.7" in the pyvenv.cfg of the environment whose `python` is `program`; "" if it has none.
std::string environment_version(const std::string& program);

}  // namespace trunnion::executor
