// Checks of what the host offers as caches.
#include "cache_binding.h"

#include <limits>
#include <set>
#include <tuple>

#include "status.h"

namespace trunnion::executor {
namespace {

constexpr std::int32_t kMinBlocks = 2;

std::string tensor_name(const trn_cache_tensor& tensor) {
  return concat("groups[", tensor.group, "].layers[", tensor.layer, "].", tensor.name);
}

const CacheTensor& find_spec(const Description& description, const trn_cache_tensor& tensor) {
  const auto num_groups = static_cast<std::int32_t>(description.groups.size());
  if (tensor.group < 0 || tensor.group >= num_groups) {
    refuse("kv_cache", "group ", tensor.group, " is outside 0 ... ", num_groups - 1);
  }
  const CacheGroup& group = description.groups[static_cast<std::size_t>(tensor.group)];
  const auto num_layers = static_cast<std::int32_t>(group.layers.size());
  if (tensor.layer < 0 || tensor.layer >= num_layers) {
    refuse("kv_cache", "layer ", tensor.layer, " of group ", tensor.group, " is outside 0 ... ", num_layers - 1);
  }
  std::string choices;
  for (const CacheTensor& spec : group.tensors) {
    if (tensor.name != nullptr && spec.name == tensor.name) return spec;
    choices += (choices.empty() ? "" : ", ") + spec.name;
  }
  refuse("kv_cache", "unknown tensor '", tensor.name == nullptr ? "" : tensor.name, "' of group ", tensor.group,
         "; choices: ", choices);
}

/// Number of blocks of a tensor that is as its spec says.
std::int32_t check_tensor(const Description& description, const trn_cache_tensor& offered, const CacheTensor& spec) {
  const DLTensor& tensor = offered.tensor;
  const std::string name = tensor_name(offered);
  if (tensor.device.device_type != description.cache_device) {
    refuse(name, "lies on DLPack device type ", tensor.device.device_type, ", expected ", description.cache_device);
  }
  if (tensor.dtype.code != spec.dtype.code || tensor.dtype.bits != spec.dtype.bits || tensor.dtype.lanes != 1) {
    refuse(name, "has DLPack dtype (code ", int{tensor.dtype.code}, ", bits ", int{tensor.dtype.bits}, "), expected (",
           int{spec.dtype.code}, ", ", int{spec.dtype.bits}, ")");
  }
  const auto ndim = static_cast<std::int32_t>(spec.shape.size()) + 1;
  if (tensor.ndim != ndim) refuse(name, "has ", tensor.ndim, " dimensions, expected ", ndim);
  if (tensor.shape == nullptr || tensor.data == nullptr) refuse(name, "has no shape or no data");
  std::int64_t stride = 1;
  for (std::int32_t axis = ndim - 1; axis >= 0; --axis) {
    const std::int64_t size = tensor.shape[axis];
    if (axis > 0 && size != spec.shape[static_cast<std::size_t>(axis) - 1]) {
      refuse(name, "has size ", size, " on axis ", axis, ", expected ", spec.shape[static_cast<std::size_t>(axis) - 1]);
    }
    if (tensor.strides != nullptr && size > 1 && tensor.strides[axis] != stride) refuse(name, "is not contiguous");
    stride *= size;
  }
  if (tensor.shape[0] < kMinBlocks || tensor.shape[0] > std::numeric_limits<std::int32_t>::max()) {
    refuse(name, "has ", tensor.shape[0], " blocks, expected at least ", kMinBlocks, ": block 0 is reserved");
  }
  return static_cast<std::int32_t>(tensor.shape[0]);
}

void check_slots_fit(const Description& description, const std::vector<std::int32_t>& num_blocks) {
  for (std::size_t g = 0; g < num_blocks.size(); ++g) {
    const std::int64_t slots = std::int64_t{num_blocks[g]} * description.groups[g].block_size;
    if (slots > std::numeric_limits<std::int32_t>::max()) {
      refuse(concat("num_blocks[", g, "]"), num_blocks[g], " blocks have more slots than int32 can number");
    }
  }
}

}  // namespace

std::vector<std::int32_t> check_num_blocks(const Description& description, const std::int32_t* num_blocks,
                                           std::int32_t num_groups) {
  const auto expected = static_cast<std::int32_t>(description.groups.size());
  if (num_groups != expected) refuse("num_groups", num_groups, " is not the model's ", expected, " cache groups");
  if (num_blocks == nullptr && expected > 0) refuse("num_blocks", "is NULL");
  const std::vector<std::int32_t> counts(num_blocks, num_blocks + num_groups);
  for (std::size_t g = 0; g < counts.size(); ++g) {
    if (counts[g] < kMinBlocks) {
      refuse(concat("num_blocks[", g, "]"), counts[g], ", expected at least ", kMinBlocks, ": block 0 is reserved");
    }
  }
  check_slots_fit(description, counts);
  return counts;
}

std::vector<std::int32_t> check_cache_tensors(const Description& description, const trn_cache_tensor* tensors,
                                              std::int32_t num_tensors) {
  if (num_tensors < 0 || (tensors == nullptr && num_tensors > 0)) refuse("kv_cache", "tensors is NULL");
  std::vector<std::int32_t> num_blocks(description.groups.size(), 0);
  std::set<std::tuple<std::int32_t, std::int32_t, std::string>> seen;
  for (std::int32_t i = 0; i < num_tensors; ++i) {
    const CacheTensor& spec = find_spec(description, tensors[i]);
    const std::int32_t blocks = check_tensor(description, tensors[i], spec);
    if (!seen.insert({tensors[i].group, tensors[i].layer, spec.name}).second) {
      refuse(tensor_name(tensors[i]), "is given twice");
    }
    std::int32_t& expected = num_blocks[static_cast<std::size_t>(tensors[i].group)];
    if (expected != 0 && expected != blocks) {
      refuse(tensor_name(tensors[i]), "has ", blocks, " blocks, others of its group have ", expected);
    }
    expected = blocks;
  }
  for (std::size_t g = 0; g < description.groups.size(); ++g) {
    for (std::size_t layer = 0; layer < description.groups[g].layers.size(); ++layer) {
      for (const CacheTensor& spec : description.groups[g].tensors) {
        if (seen.count({static_cast<std::int32_t>(g), static_cast<std::int32_t>(layer), spec.name}) == 0) {
          refuse(concat("groups[", g, "].layers[", layer, "].", spec.name), "is missing");
        }
      }
    }
  }
  check_slots_fit(description, num_blocks);
  return num_blocks;
}

}  // namespace trunnion::executor
