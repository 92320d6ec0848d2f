#include "server/options.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "command_line/command_line.h"

namespace trunnion::bundle {
namespace {

constexpr const char* kUsage = R"(usage: trunnion-serve-bundle REPOSITORY [options]

Serve the bundles of REPOSITORY (NAME/VERSION/..., or one bundle) by the Open Inference Protocol. A line of JSON on standard
output names the ports once the models that could be loaded are ready; SIGTERM finishes what is queued, then ends.

  --host HOST          address to listen on (127.0.0.1)
  --grpc-port PORT     0 = one that is free (8001)
  --http-port PORT     HTTP, /metrics and health; 0 = one that is free (8000)
  --platform NAME      the lowering to run; default: the first of cuda, npu, cpu, pjrt that runs here
  --engines FOLDER     where engine_NAME.so are; default: beside this program, or ../lib/trunnion_bundle
  --settings JSON      an object for engines, such as {"pjrt_plugin": PATH}
  --allow-plugins      run the plugins that bundles bring: code of whoever wrote the bundle
  --no-jit             compile nothing: of PJRT only precompiled executables run, others are refused
  --load-only          load and warm up, print what that took as JSON, and end: 0 if a model can be served
  --record FILE        write the first requests to FILE, for `bench --shadow`
  --record-limit N     how many (1000)
  --poll-ms N          how often to look for new versions; 0 = at start and when asked only (1000)
  --drain-seconds N    how long SIGTERM waits for requests (30)
  --max-message-mb N   the largest request (64)
)";

int integer(const std::string& option, const std::string& text, int min, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw std::invalid_argument(option + " is " + text + ", expected " + std::to_string(min) + " ... " + std::to_string(max));
  }
  return value;
}

std::string json_object(const std::string& option, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw std::invalid_argument(option + " is " + text + ", expected a JSON object");
  return text;
}

}  // namespace

Options read_options(int count, char** arguments) {
  Options options;
  options.repository = read_words(count, arguments, kUsage, {
      {"--host", [&](auto&, auto& text) { options.host = text; }},
      {"--grpc-port", [&](auto& option, auto& text) { options.grpc_port = integer(option, text, 0, 65535); }},
      {"--http-port", [&](auto& option, auto& text) { options.http_port = integer(option, text, 0, 65535); }},
      {"--platform", [&](auto&, auto& text) { options.platform = text; }},
      {"--engines", [&](auto&, auto& text) { options.engines = text; }},
      {"--settings", [&](auto& option, auto& text) { options.settings = json_object(option, text); }},
      {"--record", [&](auto&, auto& text) { options.record = text; }},
      {"--record-limit", [&](auto& option, auto& text) { options.record_limit = integer(option, text, 1, 100000000); }},
      {"--poll-ms", [&](auto& option, auto& text) { options.poll = std::chrono::milliseconds(integer(option, text, 0, 3600000)); }},
      {"--drain-seconds", [&](auto& option, auto& text) { options.drain = std::chrono::seconds(integer(option, text, 0, 86400)); }},
      {"--max-message-mb", [&](auto& option, auto& text) { options.max_message_bytes = integer(option, text, 1, 2047) << 20; }},
  }, {
      {"--allow-plugins", [&] { options.allows_plugins = true; }},
      {"--load-only", [&] { options.load_only = true; }},
      {"--no-jit", [&] { options.allows_jit = false; }},
  });
  if (options.repository.empty()) throw std::invalid_argument("no REPOSITORY was given; see --help");
  if (!std::filesystem::is_directory(options.repository)) {
    throw std::invalid_argument("there is no folder " + options.repository.string());
  }
  return options;
}

}  // namespace trunnion::bundle
