// Checks of trn_encoder_item.
#include "image_items.h"

#include "status.h"

namespace trunnion::executor {
namespace {

std::string item_field(std::int32_t index, const char* name) { return concat("encoder_items[", index, "].", name); }

void check_pixels(const trn_encoder_item& item, std::int32_t index, std::int32_t patch_dim) {
  const auto field = [&] { return item_field(index, "pixels"); };
  if (item.pixels == nullptr || item.pixels->data == nullptr) refuse(field(), "is NULL");
  const DLTensor& pixels = *item.pixels;
  if (pixels.device.device_type != kDLCPU) refuse(field(), "does not lie in host memory");
  if (pixels.dtype.code != kDLFloat || pixels.dtype.bits != 32 || pixels.dtype.lanes != 1) {
    refuse(field(), "is not float32");
  }
  std::int64_t patches = 1;
  for (const std::int32_t count : item.grid) {
    if (count < 1 || count > (1 << 20)) refuse(item_field(index, "grid"), "has ", count, ", expected 1 ... ", 1 << 20);
    patches *= count;
  }
  if (pixels.ndim != 2 || pixels.shape == nullptr || pixels.shape[0] != patches || pixels.shape[1] != patch_dim) {
    refuse(field(), "has not the shape [", patches, ", ", patch_dim, "] that grid and encoder_patch_dim ask for");
  }
  const std::int64_t* strides = pixels.strides;
  if (strides != nullptr && (strides[1] != 1 || strides[0] != patch_dim)) refuse(field(), "is not contiguous");
}

}  // namespace

void check_images(const trn_forward_batch& batch, const Description& description, const trn_limits& limits) {
  const std::int32_t count = batch.num_encoder_items;
  if (count == 0) return;
  if (description.encoder_patch_dim == 0) {
    refuse("encoder_items", "there are ", count, ", and this model takes no images");
  }
  if (count < 0 || batch.encoder_items == nullptr) refuse("num_encoder_items", count, " is not a number of items");
  for (std::int32_t i = 0; i < count; ++i) {
    const trn_encoder_item& item = batch.encoder_items[i];
    check_pixels(item, i, description.encoder_patch_dim);
    const std::int64_t end = std::int64_t{item.first_row} + item.num_rows;
    if (item.first_row < 0 || item.num_rows < 1 || end > limits.max_encoder_rows) {
      refuse(item_field(i, "first_row"), item.first_row, " and ", item.num_rows, " rows do not fit max_encoder_rows ",
             limits.max_encoder_rows);
    }
    for (std::int32_t j = 0; j < i; ++j) {
      const trn_encoder_item& other = batch.encoder_items[j];
      if (item.first_row < other.first_row + other.num_rows && other.first_row < end) {
        refuse(item_field(i, "first_row"), item.first_row, " lies within the rows of item ", j);
      }
    }
  }
}

}  // namespace trunnion::executor
