// Parses the null executor's model string.
#include "null_options.h"

#include <charconv>
#include <map>

#include "status.h"

namespace trunnion::executor {
namespace {

constexpr std::int64_t kMax = 1 << 30;

std::map<std::string, std::int64_t*> keys(NullOptions& options) {
  return {{"vocab", &options.vocab},         {"pooled", &options.pooled},   {"layers", &options.layers},
          {"window", &options.window},       {"images", &options.images},   {"axes", &options.axes},
          {"levels", &options.levels},       {"whole", &options.whole},    {"types", &options.types},
          {"recurrent", &options.recurrent}, {"csr", &options.csr},         {"draft", &options.draft},
          {"agree", &options.agree},         {"draft_fail_at", &options.draft_fail_at},
          {"refuse_at", &options.refuse_at},
          {"fail_at", &options.fail_at},     {"fatal_at", &options.fatal_at}, {"hang_at", &options.hang_at},
          {"sleep_us", &options.sleep_us}};
}

void parse_item(const std::string& item, const std::map<std::string, std::int64_t*>& known) {
  const auto equals = item.find('=');
  const std::string key = item.substr(0, equals);
  const auto found = known.find(key);
  if (found == known.end()) {
    std::string choices;
    for (const auto& [name, value] : known) choices += (choices.empty() ? "" : ", ") + name;
    refuse("model", "unknown option '", key, "' of the null executor; choices: ", choices);
  }
  const std::string text = equals == std::string::npos ? "" : item.substr(equals + 1);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMax) {
    refuse("model", "option ", key, " is '", text, "', expected a count of 0 ... ", kMax);
  }
  *found->second = value;
}

}  // namespace

NullOptions parse_null_options(const std::string& model) {
  NullOptions options;
  const auto known = keys(options);
  const std::string prefix = "null";
  if (model.compare(0, prefix.size(), prefix) != 0 || (model.size() > prefix.size() && model[prefix.size()] != ':')) {
    refuse("model", "'", model, "' is not 'null' or 'null:key=value,...', which hardware 'null' runs");
  }
  std::size_t begin = prefix.size() + 1;
  while (begin < model.size()) {
    const std::size_t end = std::min(model.find(',', begin), model.size());
    parse_item(model.substr(begin, end - begin), known);
    begin = end + 1;
  }
  if (options.vocab < 1) refuse("model", "vocab is 0, expected at least 1");
  if (options.layers < 1) refuse("model", "layers is 0, expected at least 1");
  if (options.axes != 1 && options.axes != 3) refuse("model", "axes is ", options.axes, ", expected 1 or 3");
  return options;
}

}  // namespace trunnion::executor
