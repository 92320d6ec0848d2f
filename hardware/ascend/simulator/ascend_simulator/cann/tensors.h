// What operators are called with: handles of tensors, scalars and arrays, and how they are written down for a rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "acl/acl.h"

// The names are acl's, whose headers only declare them.
struct aclTensor {
    aclDataType dtype;
    aclFormat format;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset;
    std::vector<int64_t> storage_sizes;
    void* storage;
};
struct aclTensorList {
    std::vector<const aclTensor*> tensors;
};
struct aclScalar {
    aclDataType dtype;
    // The value's bytes, as they were given.
    int64_t bits[2];
};
struct aclScalarList {
    std::vector<const aclScalar*> scalars;
};
struct aclIntArray {
    std::vector<int64_t> values;
};
struct aclFloatArray {
    std::vector<float> values;
};
struct aclBoolArray {
    std::vector<uint8_t> values;
};

namespace sim {

size_t item_bytes(aclDataType dtype);

// The arguments of one call as a row of integers; `rules.py` reads them back in the same order.
class Words {
  public:
    void add(int64_t value) { words.push_back(value); }
    void add(int32_t value) { words.push_back(value); }
    void add(int8_t value) { words.push_back(value); }
    void add(bool value) { words.push_back(value ? 1 : 0); }
    void add(double value);
    void add(float value) { add(static_cast<double>(value)); }
    void add(const char* value);
    void add(const aclTensor* value);
    void add(const aclTensorList* value);
    void add(const aclScalar* value);
    void add(const aclScalarList* value);
    void add(const aclIntArray* value);
    void add(const aclFloatArray* value);
    void add(const aclBoolArray* value);

    std::vector<int64_t> words;
    // Memory that the operator touches: first byte and number of bytes.
    std::vector<std::pair<const char*, size_t>> memory;
};

}  // namespace sim
