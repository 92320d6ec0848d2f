// From the tensors of a request on the wire to values that are safe to compute with, or InvalidRequest that says why not.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/contract.h"
#include "request/request.h"

namespace trunnion::bundle {

// A tensor as it came: nothing of it is checked. It views the message.
struct WireTensor {
  std::string_view name, datatype;
  std::vector<int64_t> shape;
  std::string_view bytes;
  std::vector<std::string_view> strings = {};  // of BYTES, unless they are in `bytes`, each behind its length in 32 bits
  bool has_strings = false;
};

// Fills `values`, `rows` and `shape` of the request. Bytes are copied.
void admit(const SignatureSpec& signature, std::span<const WireTensor> inputs, const Program& program, Request& request);

}  // namespace trunnion::bundle
