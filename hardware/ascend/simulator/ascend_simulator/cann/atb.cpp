// Operators of the Ascend Transformer Boost library: two by rules, the others are refused by their names.
#include "atb.h"

#include "errors.h"
#include "operators.h"

namespace atb {
namespace {

constexpr Status FAILED = 1;
// Not nothing, so that a caller who brings none is found.
constexpr uint64_t WORKSPACE_BYTES = 4096;

class SimulatedContext : public Context {
  public:
    Status SetExecuteStream(aclrtStream stream) override {
        stream_ = stream;
        return 0;
    }
    aclrtStream GetExecuteStream() const override { return stream_; }
    Status SetAsyncTilingCopyStatus(bool) override { return 0; }
    bool GetAsyncTilingCopyStatus() const override { return false; }

  private:
    aclrtStream stream_ = nullptr;
};

// Tensors are rows without gaps. What lies on the host is read now, as the library reads it when it is called.
void add(sim::Words& words, const Tensor& tensor) {
    const Dims& shape = tensor.desc.shape;
    const std::vector<int64_t> sizes(shape.dims, shape.dims + shape.count);
    if (tensor.host != nullptr) {
        aclIntArray values;
        const auto* first = static_cast<const int32_t*>(tensor.host);
        values.values.assign(first, first + tensor.bytes / sizeof(int32_t));
        words.add(&values);
        return;
    }
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
    const aclTensor handle{tensor.desc.dtype, tensor.desc.format, sizes, strides, 0, sizes, tensor.device};
    words.add(&handle);
}

class RuleOperation : public Operation {
  public:
    RuleOperation(const char* name, uint64_t workspace_bytes, sim::Words attributes)
        : name_(name), workspace_bytes_(workspace_bytes), attributes_(std::move(attributes)) {}

    std::string GetName() const override { return name_; }
    Status InferShape(const SVector<TensorDesc>&, SVector<TensorDesc>&) const override { return FAILED; }
    uint32_t GetInputNum() const override { return 0; }
    uint32_t GetOutputNum() const override { return 0; }
    Status Setup(const VariantPack&, uint64_t& workspace_bytes, Context*) override {
        workspace_bytes = workspace_bytes_;
        return 0;
    }
    Status Execute(const VariantPack& pack, uint8_t*, uint64_t workspace_bytes, Context* context) override {
        sim::Words words;
        for (size_t place = 0; place < pack.inputs.size(); ++place) add(words, pack.inputs[place]);
        for (size_t place = 0; place < pack.outputs.size(); ++place) add(words, pack.outputs[place]);
        words.words.insert(words.words.end(), attributes_.words.begin(), attributes_.words.end());
        auto* executor = new aclOpExecutor{name_, std::move(words), workspace_bytes_};
        const int code = sim::launch(executor, workspace_bytes, context->GetExecuteStream());
        // torch_npu drops what this returns outside of captures.
        if (code != 0) sim::device().fail_later(code, sim::last_message());
        return code;
    }

  private:
    const char* name_;
    uint64_t workspace_bytes_;
    sim::Words attributes_;
};

Status refuse(const char* name, Operation** operation) {
    *operation = nullptr;
    sim::set_message(std::string(name) + " is not modelled");
    return FAILED;
}

}  // namespace

template <>
Status CreateOperation(const infer::ReshapeAndCacheParam& param, Operation** operation) {
    if (param.compression != 0 || param.caches != 0) return refuse("ReshapeAndCache with compression or NZ", operation);
    *operation = new RuleOperation("atb::ReshapeAndCache", 0, {});
    return 0;
}

template <>
Status CreateOperation(const infer::PagedAttentionParam& param, Operation** operation) {
    if (param.mask_type != 0 || param.quantisation != 0 || param.compression != 0) {
        return refuse("PagedAttention with a mask, integers or compression", operation);
    }
    const sim::Words attributes = sim::write_down(param.num_heads, param.num_kv_heads, param.scale);
    *operation = new RuleOperation("atb::PagedAttention", WORKSPACE_BYTES, attributes);
    return 0;
}

#define REFUSED(name)                                                        \
    template <>                                                              \
    Status CreateOperation(const infer::name##Param&, Operation** operation) { \
        return refuse(#name, operation);                                     \
    }
REFUSED(Linear)
REFUSED(Elewise)
REFUSED(RmsNorm)
REFUSED(GroupTopk)
REFUSED(SelfAttention)
REFUSED(Rope)

Status DestroyOperation(Operation* operation) {
    delete operation;
    return 0;
}

Status CreateContext(Context** context) {
    *context = new SimulatedContext;
    return 0;
}

Status DestroyContext(Context* context) {
    delete context;
    return 0;
}

namespace Utils {
uint64_t size_of(const Tensor& tensor) __asm__("_ZN3atb5Utils13GetTensorSizeERKNS_6TensorE");
uint64_t size_of(const Tensor& tensor) {
    const Dims& shape = tensor.desc.shape;
    uint64_t elements = shape.count == 0 ? 0 : 1;
    for (uint64_t dim = 0; dim < shape.count; ++dim) elements *= static_cast<uint64_t>(shape.dims[dim]);
    return elements * sim::item_bytes(tensor.desc.dtype);
}
}  // namespace Utils

}  // namespace atb
