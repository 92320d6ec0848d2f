// The types of one request's tokens, which tell a cross-encoder the query from the document.
#pragma once

#include <cstdint>
#include <vector>

#include "trunnion/serving.h"

namespace trunnion::serving {

struct BlockKey;

struct TokenTypes {
  std::vector<int32_t> prompt;  // [tokens of the prompt]; empty = all of type 0

  bool given() const { return !prompt.empty(); }
  // Of the token at `index`; a token behind the prompt has the prompt's last one.
  int32_t at(int32_t index) const;
  // What the key of a block with tokens [first, first + count) hashes besides them.
  void add_to_key(BlockKey& key, int32_t first, int32_t count) const;
};

// Copies what `submitted` says of them; nothing is kept of types that are all 0. std::invalid_argument names the field.
TokenTypes read_token_types(const trn_host_request& submitted, const trn_model_info& model);

}  // namespace trunnion::serving
