// Making and destroying operands, and writing them down.
#include "tensors.h"

#include <cstring>

#include "errors.h"

namespace sim {
namespace {

constexpr int64_t NONE = -1;

// Elements from the start of the storage to the last one that the view has.
int64_t extent(const aclTensor& tensor) {
    int64_t last = 0;
    for (size_t dim = 0; dim < tensor.sizes.size(); ++dim) {
        if (tensor.sizes[dim] == 0) return 0;
        last += (tensor.sizes[dim] - 1) * tensor.strides[dim];
    }
    return tensor.offset + last + 1;
}

}  // namespace

size_t item_bytes(aclDataType dtype) {
    switch (dtype) {
        case ACL_BOOL:
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_FLOAT8_E4M3FN:
        case ACL_FLOAT8_E5M2:
        case ACL_INT4:
            return 1;
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT16:
        case ACL_UINT16:
            return 2;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32:
            return 4;
        case ACL_DOUBLE:
        case ACL_INT64:
        case ACL_UINT64:
        case ACL_COMPLEX64:
            return 8;
        case ACL_COMPLEX128:
            return 16;
        default:
            throw Fault(ACL_ERROR_RT_PARAM_INVALID, "no rule is written for tensors of dtype " + std::to_string(dtype));
    }
}

void Words::add(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    words.push_back(bits);
}

void Words::add(const char* value) {
    const std::string text = value == nullptr ? "" : value;
    words.push_back(static_cast<int64_t>(text.size()));
    for (const char letter : text) words.push_back(letter);
}

void Words::add(const aclTensor* value) {
    words.push_back(reinterpret_cast<int64_t>(value));
    if (value == nullptr) return;
    const int64_t elements = extent(*value);
    words.insert(words.end(), {value->dtype, value->format, reinterpret_cast<int64_t>(value->storage), elements,
                               value->offset, static_cast<int64_t>(value->sizes.size())});
    words.insert(words.end(), value->sizes.begin(), value->sizes.end());
    words.insert(words.end(), value->strides.begin(), value->strides.end());
    words.push_back(static_cast<int64_t>(value->storage_sizes.size()));
    words.insert(words.end(), value->storage_sizes.begin(), value->storage_sizes.end());
    if (elements != 0) {
        memory.emplace_back(static_cast<const char*>(value->storage), elements * item_bytes(value->dtype));
    }
}

void Words::add(const aclTensorList* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->tensors.size()));
    if (value == nullptr) return;
    for (const aclTensor* tensor : value->tensors) add(tensor);
}

void Words::add(const aclScalar* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->dtype));
    if (value != nullptr) words.insert(words.end(), {value->bits[0], value->bits[1]});
}

void Words::add(const aclScalarList* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->scalars.size()));
    if (value == nullptr) return;
    for (const aclScalar* scalar : value->scalars) add(scalar);
}

void Words::add(const aclIntArray* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->values.size()));
    if (value != nullptr) words.insert(words.end(), value->values.begin(), value->values.end());
}

void Words::add(const aclFloatArray* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->values.size()));
    if (value == nullptr) return;
    for (const float number : value->values) add(number);
}

void Words::add(const aclBoolArray* value) {
    words.push_back(value == nullptr ? NONE : static_cast<int64_t>(value->values.size()));
    if (value != nullptr) words.insert(words.end(), value->values.begin(), value->values.end());
}

}  // namespace sim

extern "C" {

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, aclDataType dtype, const int64_t* strides,
                           int64_t offset, aclFormat format, const int64_t* storage_sizes, uint64_t storage_dims,
                           void* storage) {
    return new aclTensor{dtype,
                         format,
                         {sizes, sizes + dims},
                         {strides, strides + dims},
                         offset,
                         {storage_sizes, storage_sizes + storage_dims},
                         storage};
}
int aclDestroyTensor(const aclTensor* tensor) {
    delete tensor;
    return ACL_SUCCESS;
}
// As in CANN, a list owns its tensors.
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
    return new aclTensorList{{tensors, tensors + count}};
}
int aclDestroyTensorList(const aclTensorList* list) {
    if (list != nullptr) {
        for (const aclTensor* tensor : list->tensors) delete tensor;
    }
    delete list;
    return ACL_SUCCESS;
}
aclScalar* aclCreateScalar(void* value, aclDataType dtype) {
    auto* made = new aclScalar{dtype, {0, 0}};
    try {
        std::memcpy(made->bits, value, sim::item_bytes(dtype));
    } catch (const sim::Fault& fault) {
        sim::set_message(fault.what());
        delete made;
        return nullptr;
    }
    return made;
}
int aclDestroyScalar(const aclScalar* scalar) {
    delete scalar;
    return ACL_SUCCESS;
}
aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t count) {
    return new aclScalarList{{scalars, scalars + count}};
}
int aclDestroyScalarList(const aclScalarList* list) {
    if (list != nullptr) {
        for (const aclScalar* scalar : list->scalars) delete scalar;
    }
    delete list;
    return ACL_SUCCESS;
}
aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
    return new aclIntArray{{values, values + count}};
}
int aclDestroyIntArray(const aclIntArray* array) {
    delete array;
    return ACL_SUCCESS;
}
aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
    return new aclFloatArray{{values, values + count}};
}
int aclDestroyFloatArray(const aclFloatArray* array) {
    delete array;
    return ACL_SUCCESS;
}
aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
    return new aclBoolArray{{values, values + count}};
}
int aclDestroyBoolArray(const aclBoolArray* array) {
    delete array;
    return ACL_SUCCESS;
}
int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* dims) {
    *dims = tensor->sizes.size();
    *sizes = new int64_t[*dims + 1];
    std::memcpy(*sizes, tensor->sizes.data(), *dims * sizeof(int64_t));
    return ACL_SUCCESS;
}

// For rules whose results have a shape that depends on values.
void sim_set_sizes(aclTensor* tensor, const int64_t* sizes, uint64_t dims) { tensor->sizes.assign(sizes, sizes + dims); }

}  // extern "C"
