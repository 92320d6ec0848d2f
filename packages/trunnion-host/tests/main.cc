// Runs the tests named on the command line, or all of them.
#include <cstdio>
#include <exception>

#include "check.h"

std::map<std::string, std::function<void()>>& check::tests() {
  static std::map<std::string, std::function<void()>> registered;
  return registered;
}

int main(int count, char** arguments) {
  int failed = 0;
  const auto run = [&](const std::string& name, const std::function<void()>& body) {
    try {
      body();
      std::printf("ok %s\n", name.c_str());
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s\n  %s\n", name.c_str(), error.what());
    }
    std::fflush(stdout);
  };
  for (int i = 1; i < count; ++i) {
    const auto found = check::tests().find(arguments[i]);
    if (found == check::tests().end()) {
      std::printf("there is no test %s\n", arguments[i]);
      return 2;
    }
    run(found->first, found->second);
  }
  if (count == 1) {
    for (const auto& [name, body] : check::tests()) run(name, body);
  }
  return failed == 0 ? 0 : 1;
}
