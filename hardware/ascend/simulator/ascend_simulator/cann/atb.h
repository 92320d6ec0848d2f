// What torch_npu's operators of the Ascend Transformer Boost library pass to it: the layout of its public types, written
// down from github.com/hicann/ascend-transformer-boost (include/atb), of which no header is used here.
#pragma once

#include <cstdint>
#include <string>

#include "acl/acl.h"

namespace atb {

using Status = int32_t;

struct Dims {
    int64_t dims[8];
    uint64_t count = 0;
};

struct TensorDesc {
    aclDataType dtype = ACL_DT_UNDEFINED;
    aclFormat format = ACL_FORMAT_UNDEFINED;
    Dims shape;
};

struct Tensor {
    TensorDesc desc;
    void* device = nullptr;
    void* host = nullptr;
    uint64_t bytes = 0;
};

// Only what reads one: torch_npu makes them.
template <class Item>
class SVector {
  public:
    SVector(const SVector&) = delete;
    const Item& operator[](size_t place) const { return heap_ != nullptr ? heap_[place] : items_[place]; }
    size_t size() const { return size_; }

  private:
    size_t capacity_;
    size_t size_;
    Item items_[65];
    Item* heap_;
};

struct VariantPack {
    SVector<Tensor> inputs;
    SVector<Tensor> outputs;
};

class Context {
  public:
    virtual ~Context() = default;
    virtual Status SetExecuteStream(aclrtStream stream) = 0;
    virtual aclrtStream GetExecuteStream() const = 0;
    virtual Status SetAsyncTilingCopyStatus(bool enable) = 0;
    virtual bool GetAsyncTilingCopyStatus() const = 0;
};

class Operation {
  public:
    virtual ~Operation() = default;
    virtual std::string GetName() const = 0;
    virtual Status InferShape(const SVector<TensorDesc>& inputs, SVector<TensorDesc>& outputs) const = 0;
    virtual uint32_t GetInputNum() const = 0;
    virtual uint32_t GetOutputNum() const = 0;
    virtual Status Setup(const VariantPack& pack, uint64_t& workspace_bytes, Context* context) = 0;
    virtual Status Execute(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_bytes, Context* context) = 0;
};

template <class Param>
Status CreateOperation(const Param& param, Operation** operation);

namespace infer {

struct ReshapeAndCacheParam {
    int32_t compression;
    // 0: keys and values; 1: keys only; 2: both in the fractal layout.
    int32_t caches;
};

struct PagedAttentionParam {
    int32_t num_heads;
    float scale;
    int32_t num_kv_heads;
    int32_t mask_type;
    bool has_batch_status;
    int32_t quantisation;
    int32_t out_dtype;
    bool has_offset;
    int32_t compression;
};

struct LinearParam;
struct ElewiseParam;
struct RmsNormParam;
struct GroupTopkParam;
struct SelfAttentionParam;
struct RopeParam;

}  // namespace infer
}  // namespace atb
