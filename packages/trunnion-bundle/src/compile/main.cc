// trunnion-compile-bundle: programs of StableHLO to executables of one PJRT plugin, and what they will run on.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "engines/pjrt_client.h"

namespace {

using namespace trunnion::bundle;

constexpr const char* kUsage = R"(usage: trunnion-compile-bundle PLUGIN [IN OUT]...

Compile each IN, a program of StableHLO, by the PJRT plugin of the path PLUGIN, and write its executable to OUT. A line of JSON on
standard output names the plugin's platform, version and topology, which the executables are for.
)";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error(path + " cannot be written");
}

int compile(int count, char** arguments) {
  if (count < 2 || count % 2 != 0 || arguments[1][0] == '-') {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto client = PjrtClient::of_plugin(arguments[1]);
  const nlohmann::json facts = {{"platform", client->platform()}, {"version", client->version()}, {"topology", client->topology()}};
  for (int i = 2; i < count; i += 2) write_file(arguments[i + 1], client->serialize(client->compile(read_file(arguments[i]))));
  std::printf("%s\n", facts.dump().c_str());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return compile(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trunnion-compile-bundle: %s\n", error.what());
    return 2;
  }
}
