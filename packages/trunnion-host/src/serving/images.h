// The images of one request, and the positions that its tokens get because of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "serving/block_key.h"
#include "trunnion/serving.h"

namespace trunnion::serving {

// Pixels as submitted, never changed. Steps refer to them, so they outlive a request that ends under one.
struct Image {
  explicit Image(const trn_host_image& submitted);
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  std::vector<float> pixels;
  int64_t shape[2];
  DLTensor view{};
  int32_t grid[3];
  BlockKey content;  // hash of grid and pixels
};

// Its placeholder tokens in the prompt, and the rows of the encoder pool that stand for them.
struct ImageSpan {
  std::shared_ptr<const Image> image;
  int32_t first_token = 0, num_tokens = 0;
  int32_t first_row = -1;  // -1 = it holds none

  int32_t end_token() const { return first_token + num_tokens; }
  bool holds_rows() const { return first_row >= 0; }
};

// Where a request's tokens lie on each position axis. Without a table: at their index, on all of them.
struct Positions {
  size_t num_axes = 1;
  std::vector<int32_t> prompt;  // [tokens of the prompt, num_axes], or empty
  int32_t delta = 0;            // of the tokens behind the table

  void write(int32_t index, int32_t* to) const;
};

struct RequestImages {
  std::vector<ImageSpan> spans;  // in the order of their tokens
  Positions positions;

  // The row of the encoder pool that stands for the token at `index`, or -1.
  int32_t encoder_row(int32_t index) const;
  // What the key of a block with tokens [first, first + count) hashes besides them.
  void add_to_key(BlockKey& key, int32_t first, int32_t count) const;
};

// Copies what `submitted` says of images and positions. std::invalid_argument names the field at fault.
RequestImages read_images(const trn_host_request& submitted, const trn_model_info& model, const trn_limits& limits);

}  // namespace trunnion::serving
