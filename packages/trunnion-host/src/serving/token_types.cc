#include "serving/token_types.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "serving/block_key.h"

namespace trunnion::serving {

int32_t TokenTypes::at(int32_t index) const {
  if (prompt.empty()) return 0;
  return prompt[std::min(static_cast<size_t>(index), prompt.size() - 1)];
}

void TokenTypes::add_to_key(BlockKey& key, int32_t first, int32_t count) const {
  if (prompt.empty()) return;
  std::vector<int32_t> types(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) types[static_cast<size_t>(i)] = at(first + i);
  // What is all of type 0 is found by prompts without types.
  if (std::any_of(types.begin(), types.end(), [](int32_t type) { return type != 0; })) key = chain(key, types);
}

TokenTypes read_token_types(const trn_host_request& submitted, const trn_model_info& model) {
  // An older caller's struct ends before them.
  if (submitted.struct_size < sizeof submitted || submitted.token_type_ids == nullptr) return {};
  if (model.num_token_types == 0) {
    throw std::invalid_argument("token_type_ids are given, and this model does not take token types");
  }
  TokenTypes types{{submitted.token_type_ids, submitted.token_type_ids + submitted.num_tokens}};
  for (size_t i = 0; i < types.prompt.size(); ++i) {
    const int32_t type = types.prompt[i];
    if (type >= 0 && type < model.num_token_types) continue;
    throw std::invalid_argument("token_type_ids[" + std::to_string(i) + "] is " + std::to_string(type) +
                                ", expected 0 ... " + std::to_string(model.num_token_types - 1) +
                                ": this model has " + std::to_string(model.num_token_types) + " token types");
  }
  if (std::all_of(types.prompt.begin(), types.prompt.end(), [](int32_t type) { return type == 0; })) return {};
  return types;
}

}  // namespace trunnion::serving
