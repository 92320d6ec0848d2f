// Tensors of device type `cuda` on a torch without CUDA: device memory is host memory, and every operator runs its CPU
// kernel on an alias of the same memory. Fresh memory holds 0xFF: NaN in every float, -1 in every int. While a pool is
// in use, new memory comes from it, and what is freed there goes to the next tensor, as in a graph's private pool.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <malloc.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Stack = torch::jit::Stack;

constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xFF;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Memory of the graphs of one runner. First fit, lowest address first.
class Pool {
 public:
  explicit Pool(size_t capacity) : capacity_(capacity) {
    base_ = static_cast<char*>(mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    TORCH_CHECK(base_ != MAP_FAILED, "simulated pool: no address space for ", capacity, " bytes");
    free_[0] = capacity;
  }

  void* take(size_t bytes) {
    bytes = aligned(bytes);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      size_t offset = it->first, rest = it->second - bytes;
      free_.erase(it);
      if (rest) free_[offset + bytes] = rest;
      used_[offset] = bytes;
      high_water_ = std::max(high_water_, offset + bytes);
      return base_ + offset;
    }
    TORCH_CHECK(false, "simulated pool: ", bytes, " bytes do not fit into ", capacity_);
  }

  void give_back(void* pointer) {
    size_t offset = static_cast<char*>(pointer) - base_;
    auto it = used_.find(offset);
    size_t bytes = it->second;
    used_.erase(it);
    std::memset(pointer, kPoison, bytes);
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_[offset] = bytes;
  }

  bool owns(const void* pointer) const { return pointer >= base_ && pointer < base_ + capacity_; }
  void poison() { std::memset(base_, kPoison, high_water_); }
  size_t high_water() const { return high_water_; }

 private:
  char* base_;
  size_t capacity_;
  size_t high_water_ = 0;
  std::map<size_t, size_t> free_;
  std::map<size_t, size_t> used_;
};

struct Memory {
  std::mutex mutex;
  std::map<int64_t, Pool*> pools;
  Pool* current = nullptr;
  int64_t allocations = 0;
  bool keeps_freed = false;
  std::vector<void*> freed;

  Pool* owner(const void* pointer) {
    for (auto& [_, pool] : pools)
      if (pool->owns(pointer)) return pool;
    return nullptr;
  }
};

Memory& memory() {
  static Memory found;
  return found;
}

struct SimulatedAllocator final : c10::Allocator {
  static void release(void* pointer) {
    std::lock_guard<std::mutex> lock(memory().mutex);
    if (memory().keeps_freed && pointer)
      memory().freed.push_back(pointer);
    else
      give_back(pointer);
  }
  static void give_back(void* pointer) {
    if (Pool* pool = memory().owner(pointer))
      pool->give_back(pointer);
    else if (pointer) {
      // Whoever still reads it shall notice.
      std::memset(pointer, kPoison, malloc_usable_size(pointer));
      free(pointer);
    }
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    if (bytes) {
      std::lock_guard<std::mutex> lock(memory().mutex);
      memory().allocations++;
      if (memory().current)
        pointer = memory().current->take(bytes);
      else
        TORCH_CHECK(posix_memalign(&pointer, kAlignment, aligned(bytes)) == 0, "out of memory");
      std::memset(pointer, kPoison, bytes);
    }
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CUDA, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

SimulatedAllocator allocator;
c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA,
                                          new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>());
const DispatchKeySet kCuda(DispatchKey::CUDA);

at::ScalarType type_or_default(std::optional<at::ScalarType> dtype) {
  return dtype ? *dtype : c10::typeMetaToScalarType(c10::get_default_dtype());
}

// The same memory as a CPU tensor, which keeps the device tensor alive.
Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  const auto& storage = tensor.storage();
  auto flat = at::from_blob(storage.mutable_data(), {static_cast<int64_t>(storage.nbytes())}, [tensor](void*) {},
                            at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  Tensor result = at::empty({0}, tensor.options().device(at::kCPU));
  result.unsafeGetTensorImpl()->set_storage_keep_dtype(flat.storage());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return result;
}

Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                           std::optional<at::Device>, std::optional<bool>,
                           std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator, kCuda, type_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kCuda, type_or_default(dtype));
}

Tensor on_device(const Tensor& host) {
  auto result = empty_strided(host.sizes(), host.strides(), host.scalar_type(), {}, {}, {});
  if (host.numel()) on_host(result).copy_(host);
  return result;
}

Tensor view_of(const Tensor& base, const Tensor& host) {
  // A view is an inference tensor exactly where its base is, whatever mode it is made in.
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                   host.dtype());
  impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return Tensor(std::move(impl));
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}
Tensor strided_view(const Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                    std::optional<int64_t> offset) {
  return view_of(tensor, on_host(tensor).as_strided(sizes, strides, offset ? *offset : tensor.storage_offset()));
}
Tensor view(const Tensor& tensor, c10::IntArrayRef sizes) { return view_of(tensor, on_host(tensor).view(sizes)); }
Tensor reshape_alias(const Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return strided_view(tensor, sizes, strides, std::nullopt);
}
c10::Scalar local_scalar(const Tensor& tensor) { return on_host(tensor).item(); }

Tensor& set_storage(Tensor& tensor, c10::Storage storage) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(storage.nbytes() / tensor.element_size())});
  return tensor;
}
Tensor& set_storage_at(Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  if (strides.size() == sizes.size())
    impl->set_sizes_and_strides(sizes, strides, offset);
  else {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  }
  return tensor;
}
const Tensor& resize_(const Tensor& tensor, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  size_t needed = c10::multiply_integers(sizes) * tensor.element_size();
  if (tensor.storage().nbytes() < needed) {
    auto storage = tensor.storage();
    storage.set_data_ptr_noswap(allocator.allocate(needed));
    storage.set_nbytes(needed);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}
Tensor to_copy(const Tensor& tensor, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
               std::optional<at::Device> device, std::optional<bool>, bool, std::optional<at::MemoryFormat> format) {
  auto options = at::TensorOptions().dtype(dtype ? *dtype : tensor.scalar_type()).device(at::kCPU);
  auto result = at::_to_copy(on_host(tensor), options, false, format);
  return (device ? device->is_cuda() : tensor.is_cuda()) ? on_device(result) : result;
}

bool has_tensor(const IValue& value) {
  if (!value.isList()) return false;
  for (const auto& item : value.toListRef())
    if (item.isTensor() && item.toTensor().defined()) return true;
  return false;
}

// Arguments as the CPU kernel wants them. An output that is to be resized comes as a fresh tensor.
IValue argument_on_host(const IValue& value, bool is_written, bool& to_host) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (is_written && tensor.defined() && tensor.is_cuda() && tensor.numel() == 0)
      return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    return on_host(tensor);
  }
  if (value.isDevice()) {
    if (value.toDevice().is_cuda()) return c10::Device(at::kCPU);
    to_host = true;
    return value;
  }
  if (value.isTensorList()) {
    std::vector<Tensor> moved;
    for (const Tensor& tensor : value.toTensorVector()) moved.push_back(on_host(tensor));
    return moved;
  }
  if (has_tensor(value)) {
    c10::List<std::optional<Tensor>> moved;
    for (const auto& item : value.toListRef())
      moved.push_back(item.isTensor() && item.toTensor().defined() ? std::optional<Tensor>(on_host(item.toTensor()))
                                                                   : std::nullopt);
    return moved;
  }
  return value;
}

void on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), first = stack->size() - count;
  std::vector<IValue> given(stack->begin() + first, stack->end());
  bool to_host = false, mixed = false, any = false;
  for (size_t i = 0; i < count; ++i) {
    const auto& value = given[i];
    if (value.isTensor() && value.toTensor().defined()) {
      const auto& tensor = value.toTensor();
      any |= tensor.is_cuda();
      // Scalars of the host go into a launch by value.
      mixed |= !tensor.is_cuda() && tensor.dim() > 0;
    }
    auto* alias = schema.arguments()[i].alias_info();
    (*stack)[first + i] = argument_on_host(value, alias && alias->isWrite(), to_host);
  }
  TORCH_CHECK(!(any && mixed), "Expected all tensors to be on the same device (simulated cuda): ", op.operator_name());
  op.callBoxed(stack);
  size_t results = schema.returns().size(), start = stack->size() - results;
  for (size_t j = 0; j < results; ++j) {
    auto* alias = schema.returns()[j].alias_info();
    int source = -1;
    for (size_t i = 0; alias && i < count && source < 0; ++i) {
      auto* other = schema.arguments()[i].alias_info();
      if (other && other->beforeSets() == alias->beforeSets()) source = static_cast<int>(i);
    }
    auto wrap = [&](const Tensor& host) -> Tensor {
      if (!host.defined() || to_host) return host;
      if (source < 0 || !given[source].isTensor()) return on_device(host);
      Tensor original = given[source].toTensor();
      if (!alias->isWrite()) return view_of(original, host);
      // Of no elements there are many shapes: [0] may have become [0, 8].
      if (original.numel() == 0 && original.sizes() != host.sizes()) {
        resize_(original, host.sizes(), std::nullopt);
        if (host.numel() > 0) on_host(original).copy_(host);
      }
      return original;
    };
    auto& value = (*stack)[start + j];
    if (value.isTensor()) {
      value = wrap(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> wrapped;
      for (const Tensor& tensor : value.toTensorVector()) wrapped.push_back(wrap(tensor));
      value = wrapped;
    }
  }
}

// What torch has for CUDA alone, and calls where each channel is convolved by itself.
Tensor conv_depthwise2d(const Tensor& input, const Tensor& weight, at::IntArrayRef, const std::optional<Tensor>& bias,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  std::optional<Tensor> shift;
  if (bias && bias->defined()) shift = on_host(*bias);
  return on_device(at::convolution(on_host(input), on_host(weight), shift, stride, padding, dilation, false, {0, 0},
                                   input.size(1)));
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("as_strided", strided_view);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("resize_", resize_);
  library.impl("_to_copy", to_copy);
  library.impl("_conv_depthwise2d", conv_depthwise2d);
}

}  // namespace

extern "C" {

void sim_pool_create(int64_t id, int64_t capacity) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pools[id] = new Pool(capacity);
}
void sim_pool_use(int64_t id) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().current = id < 0 ? nullptr : memory().pools.at(id);
}
int64_t sim_pool_owns(int64_t id, void* pointer) { return memory().pools.at(id)->owns(pointer); }
void sim_pool_poison(int64_t id) { memory().pools.at(id)->poison(); }
int64_t sim_pool_high_water(int64_t id) { return memory().pools.at(id)->high_water(); }
int64_t sim_allocations() { return memory().allocations; }

// Gives back what was kept, and says whether memory that is freed from now on is kept: work that waits may still use it.
void sim_keep_freed(int keep) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (void* pointer : memory().freed) SimulatedAllocator::give_back(pointer);
  memory().freed.clear();
  memory().keeps_freed = keep;
}
}
