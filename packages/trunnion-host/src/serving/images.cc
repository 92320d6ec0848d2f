#include "serving/images.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace trunnion::serving {
namespace {

constexpr int64_t kMaxSide = 1 << 20;

void require(bool holds, const std::string& text) {
  if (!holds) throw std::invalid_argument(text);
}

std::string field(int32_t image, const char* name) { return "images[" + std::to_string(image) + "]" + name; }

std::string shape(int64_t rows, int64_t columns) {
  std::string text = "[";
  return text.append(std::to_string(rows)).append(", ").append(std::to_string(columns)).append("]");
}

void check_pixels(const trn_host_image& image, int32_t index, int32_t patch_dim) {
  require(image.struct_size >= sizeof image, field(index, ".struct_size") + " is not that of this library's header");
  int64_t patches = 1;
  for (const int32_t count : image.grid) {
    require(count >= 1 && count <= kMaxSide, field(index, ".grid") + " has " + std::to_string(count) +
                                                 ", expected 1 ... " + std::to_string(kMaxSide));
    patches *= count;
  }
  require(image.pixels != nullptr, field(index, ".pixels") + " is NULL");
  require(image.num_patches == patches && image.patch_dim == patch_dim,
          field(index, ".pixels") + " has the shape " + shape(image.num_patches, image.patch_dim) +
              ", its grid and this model need " + shape(patches, patch_dim));
}

// `first_free` is the first token that no image before it has.
void check_span(const trn_host_image& image, int32_t index, int32_t first_free, int32_t num_tokens, int32_t max_rows) {
  const int64_t end = int64_t{image.first_token} + image.num_tokens;
  require(image.num_tokens >= 1, field(index, ".num_tokens") + " is " + std::to_string(image.num_tokens) +
                                     ", expected at least 1");
  require(image.first_token >= 0 && end <= num_tokens,
          field(index, "") + " has tokens " + std::to_string(image.first_token) + " ... " + std::to_string(end - 1) +
              ", the prompt has 0 ... " + std::to_string(num_tokens - 1));
  require(image.first_token >= first_free, field(index, ".first_token") + " is " + std::to_string(image.first_token) +
                                               ", within or before the image in front of it, which ends at " +
                                               std::to_string(first_free - 1));
  require(image.num_tokens <= max_rows, "the request can never fit: " + field(index, "") + " needs " +
                                            std::to_string(image.num_tokens) +
                                            " rows of the encoder pool, max_encoder_rows is " +
                                            std::to_string(max_rows));
}

void check_images(const trn_host_request& submitted, const trn_model_info& model, const trn_limits& limits) {
  const int32_t count = submitted.num_images;
  require(count >= 0 && (count == 0 || submitted.images != nullptr),
          "num_images is " + std::to_string(count) + ", expected the length of images");
  if (count == 0) return;
  const std::string there_are = "there are " + std::to_string(count) + " images, ";
  require(submitted.kind == TRN_REQUEST_GENERATE, there_are + "and an embed request takes none");
  require(model.encoder_patch_dim > 0, there_are + "and this model takes none");
  require(limits.max_encoder_rows > 0, there_are + "and the encoder pool has no rows: max_encoder_rows is 0");
  int32_t first_free = 0;
  for (int32_t i = 0; i < count; ++i) {
    const trn_host_image& image = submitted.images[i];
    check_pixels(image, i, model.encoder_patch_dim);
    check_span(image, i, first_free, submitted.num_tokens, limits.max_encoder_rows);
    first_free = image.first_token + image.num_tokens;
  }
}

Positions read_positions(const trn_host_request& submitted, const trn_model_info& model, const trn_limits& limits) {
  Positions positions;
  positions.num_axes = static_cast<size_t>(std::max(1, model.num_position_axes));
  const std::string axes = std::to_string(positions.num_axes);
  if (submitted.positions == nullptr) {
    require(positions.num_axes == 1 || submitted.num_images == 0,
            "positions are missing: this model counts " + axes + " axes, a prompt with images needs [" +
                std::to_string(submitted.num_tokens) + ", " + axes + "]");
    require(submitted.position_delta == 0, "position_delta is " + std::to_string(submitted.position_delta) +
                                               " without positions, expected 0");
    return positions;
  }
  require(positions.num_axes > 1, "positions are given, and this model counts one axis: a token lies at its index");
  const size_t count = static_cast<size_t>(submitted.num_tokens) * positions.num_axes;
  positions.prompt.assign(submitted.positions, submitted.positions + count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t position = positions.prompt[i];
    require(position >= 0 && position < limits.max_model_len,
            "positions[" + std::to_string(i / positions.num_axes) + "] has " + std::to_string(position) +
                ", expected 0 ... " + std::to_string(limits.max_model_len - 1) + " (max_model_len)");
  }
  // An image takes no fewer tokens than positions, so that the last token a request may have keeps within the limit.
  positions.delta = submitted.position_delta;
  require(positions.delta <= 0 && submitted.num_tokens + int64_t{positions.delta} >= 0,
          "position_delta is " + std::to_string(positions.delta) + ", expected " +
              std::to_string(-submitted.num_tokens) + " ... 0");
  return positions;
}

}  // namespace

Image::Image(const trn_host_image& submitted)
    : pixels(submitted.pixels, submitted.pixels + submitted.num_patches * submitted.patch_dim),
      shape{submitted.num_patches, submitted.patch_dim},
      grid{submitted.grid[0], submitted.grid[1], submitted.grid[2]},
      content(content_key(grid, std::as_bytes(std::span(pixels)))) {
  view.data = pixels.data();
  view.device = {kDLCPU, 0};
  view.ndim = 2;
  view.dtype = {kDLFloat, 32, 1};
  view.shape = shape;
}

void Positions::write(int32_t index, int32_t* to) const {
  const size_t first = static_cast<size_t>(index) * num_axes;
  if (first < prompt.size()) {
    std::copy_n(prompt.begin() + static_cast<ptrdiff_t>(first), num_axes, to);
  } else {
    std::fill_n(to, num_axes, index + delta);
  }
}

int32_t RequestImages::encoder_row(int32_t index) const {
  for (const ImageSpan& span : spans) {
    if (index < span.first_token) break;
    if (index < span.end_token()) return span.first_row + index - span.first_token;
  }
  return -1;
}

void RequestImages::add_to_key(BlockKey& key, int32_t first, int32_t count) const {
  for (const ImageSpan& span : spans) {
    const int32_t begin = std::max(first, span.first_token), end = std::min(first + count, span.end_token());
    if (begin >= end) continue;
    // Which part of it lies where in the block.
    add_content(key, span.image->content, begin - span.first_token, begin - first);
  }
  if (positions.prompt.empty()) return;
  std::vector<int32_t> at(positions.num_axes * static_cast<size_t>(count));
  bool usual = true;
  for (int32_t i = 0; i < count; ++i) {
    int32_t* axes = &at[positions.num_axes * static_cast<size_t>(i)];
    positions.write(first + i, axes);
    usual = usual && std::all_of(axes, axes + positions.num_axes, [&](int32_t axis) { return axis == first + i; });
  }
  // Text in front of an image is found by prompts without one.
  if (!usual) key = chain(key, at);
}

RequestImages read_images(const trn_host_request& submitted, const trn_model_info& model, const trn_limits& limits) {
  require(submitted.num_tokens >= 1, "the prompt has no tokens");
  check_images(submitted, model, limits);
  RequestImages images{.spans = {}, .positions = read_positions(submitted, model, limits)};
  for (int32_t i = 0; i < submitted.num_images; ++i) {
    const trn_host_image& image = submitted.images[i];
    images.spans.push_back({std::make_shared<const Image>(image), image.first_token, image.num_tokens});
  }
  return images;
}

}  // namespace trunnion::serving
