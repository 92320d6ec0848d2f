// What operators ask of kernels: plain structs, plain functions, one table of them per instruction set.
//
// Kernels neither allocate, throw, nor include what has inline functions: a linker that keeps one copy of those could
// give a portable caller the one with instructions that its processor lacks.
#pragma once

#include <cstdint>

namespace trunnion_cpu {

enum class Element : int32_t { kFloat32, kBFloat16, kFloat16 };  // the last of scales alone

// y[m, n] = sum over k of x[m, k] * weight[n, k], + bias[n]
struct LinearArgs {
  const void* x;  // [rows, x_stride], as Kernels::prepare makes it
  int64_t x_stride;
  const void* weight;  // [features, weight_stride], as the checkpoint has it
  int64_t weight_stride;
  const void* bias;  // [features] or null
  void* out;         // [rows, features]
  int64_t rows, features, size;
  int64_t features_per_item, rows_per_item;
  Element element;             // of x, weight, bias and out; of bias and out where x and weight are quantised
  const float* x_scales;       // [rows], of quantised products
  const float* x_sums;         // [rows]: sums of the prepared integers
  const float* weight_scales;  // [features]
};

// What a kernel likes its items to be: features in multiples, and up to so many rows.
struct ItemShape {
  int64_t features, rows;
};
constexpr int64_t kItemFeatures = 24;  // a multiple of what kernels without panels take at once
constexpr int64_t kItemRows = 64;      // whose prepared values a cache holds beside those of a weight

// A packed weight of bfloat16 is [features / 16, size / 2, 16, 2].
constexpr int64_t kPackedTile = 16;
constexpr int64_t kPackedFeatures = 64;  // of an item, in multiples
constexpr int64_t kPackedRows = 256;     // of an item, at most

struct QuantiseArgs {
  const void* x;  // [rows, x_stride]
  int64_t x_stride;
  void* out;  // [rows, quantised_size(size)] of quantised_bytes() each
  float* scales;
  float* sums;
  int64_t size;
  const float* scale;  // of all rows; null, or of 0: each its own
  Element element;
};

struct PrepareArgs {
  const void* x;  // [rows, x_stride]
  int64_t x_stride;
  void* out;  // [rows, prepared_size(size)]
  int64_t size;
  Element element;
};

// Where rows of a tensor begin: `inner` of them at one distance, then as many again at another.
struct RowPlaces {
  const void* data;
  int64_t inner, inner_stride, outer_stride;  // strides in elements
};

// y[m, n] = sum over k of x[m, k] * (weight[n, k] - zero_points[n, k / group]) * scales[n, k / group], + bias[n]
struct GroupedArgs {
  const void* x;  // [rows, x_stride], as Kernels::spread makes it, or Kernels::prepare
  int64_t x_stride;
  const uint8_t* weight;  // [features, weight_stride]; of two values in a byte the lower half is the first
  int64_t weight_stride;
  const void* scales;          // [features, groups]
  const uint8_t* zero_points;  // [features, groups]; null: 2 ** (bits - 1)
  const void* bias;            // [features] or null
  void* out;                   // [rows, features]
  int64_t rows, features, size, bits, group_size, groups;
  int64_t features_per_item, rows_per_item;
  Element element;   // of scales, bias and out
  bool is_prepared;  // by Kernels::prepare
};

struct SpreadArgs {
  const void* x;  // [rows, x_stride]
  int64_t x_stride;
  float* out;  // [rows, spread_size(size)]
  int64_t size, bits;
  Element element;
};

// As GroupedArgs, with weights in tiles of 16 features (see tiled.cc) and rows quantised by blocks.
struct TiledArgs {
  const int8_t* x;  // [rows, x_stride], as Kernels::quantise_blocks makes it
  int64_t x_stride;
  const float* x_scales;        // [rows, blocks]
  const int32_t* x_sums;        // [rows, blocks]: of the integers of a block
  const uint8_t* codes;         // [tiles, tile_bytes]
  int64_t tile_bytes;           // 2 * bits * x_stride
  const void* scales;           // [tiles, groups, 16]
  const void* mins;             // likewise, added in place of zero points taken off; or null
  const uint8_t* zero_points;   // [tiles, groups, 16]; null: 2 ** (bits - 1)
  const void* bias;             // [features] or null
  void* out;                    // [rows, features]
  int64_t rows, features, bits;
  int64_t block_size, blocks;   // a block lies within a group
  int64_t group_size, groups;
  int64_t features_per_item, rows_per_item;  // the former a multiple of 16
  Element scale_element;        // of scales and mins
  Element element;              // of bias and out
};

// y[m, n] = sum over k of x[m, k] * dense[n, k], + bias[n], of weights in blocks of 32 in tiles of 16 features (see
// blocks.cc) and rows quantised by the same blocks.
struct BlockLinearArgs {
  const int8_t* x;          // [rows, 32 * blocks], as Kernels::quantise_blocks makes it
  const float* x_scales;    // [rows, blocks]
  const int32_t* x_shifts;  // [rows, blocks]: what a block's integers amount to where all values are the zero point, negated
  const float* x_sums;      // [rows, blocks]: of what the integers of a block stand for; for minima alone
  const uint8_t* codes;     // [tiles, blocks, 64 * bits]
  const uint16_t* scales;   // [tiles, blocks, 16], float16
  const uint16_t* minima;   // likewise, or null
  const void* bias;         // [features] or null
  void* out;                // [rows, features]
  int64_t rows, features, blocks, bits;
  int64_t features_per_item, rows_per_item;  // the former a multiple of 16
  Element element;                           // of bias and out
};

struct BlocksArgs {
  const void* x;  // [rows, x_stride]
  int64_t x_stride;
  int8_t* out;  // [rows, out_stride], zeros past `size`
  int64_t out_stride;
  float* scales;  // [rows, blocks]
  int32_t* sums;  // [rows, blocks]
  int64_t size, block_size, blocks;
  const float* scale;  // of all blocks; null, or of 0: each its own
  Element element;
};

// As GroupedArgs, with weights in tiles of 16 features (see tiled.cc).
struct TiledGroupsArgs {
  const void* x;  // [rows, x_stride], as Kernels::prepare_groups makes it, or Kernels::prepare
  int64_t x_stride;            // in the former case `width`
  const float* x_sums;         // [rows, groups]: of a group's values; null in the latter case
  const uint8_t* codes;        // [tiles, 2 * bits * width]
  const void* scales;          // [tiles, groups, 16]
  const uint8_t* zero_points;  // [tiles, groups, 16]; null: 2 ** (bits - 1)
  const void* bias;            // [features] or null
  void* out;                   // [rows, features]
  int64_t rows, features, size, width, bits;  // width: the next multiple of 8
  int64_t group_size, groups;
  int64_t features_per_item, rows_per_item;  // the former a multiple of 16
  Element element;             // of scales, bias and out
  bool is_prepared;            // by Kernels::prepare
};

struct PrepareGroupsArgs {
  const void* x;  // [rows, x_stride]
  int64_t x_stride;
  void* out;    // [rows, width] of prepared_group_bytes(element) each, zeros past `size`
  float* sums;  // [rows, groups]
  int64_t size, width, bits, group_size, groups;
  Element element;
};

// y[m, n] = x_scales[m] * weight_scales[n] * sum over k of x[m, k] * (codes[n, k] - 128), + bias[n]
struct TiledBytesArgs {
  const int8_t* x;            // [rows, size], as Kernels::quantise_blocks makes it in one block
  const float* x_scales;      // [rows]
  const int32_t* x_sums;      // [rows]
  const uint8_t* codes;       // [features / 16, 16 * size]: tiles of 8 bits (see tiled.cc)
  const float* weight_scales; // [features]
  const void* bias;           // [features] or null
  void* out;                  // [rows, features]
  int64_t rows, features, size;  // features a multiple of 16, size of 4, and no more than kMostTiledBytes
  int64_t features_per_item, rows_per_item;  // the former a multiple of 16
  Element element;            // of bias and out
};
constexpr int64_t kMostTiledBytes = 1 << 16;  // of a row: sums stay within 32 bits

struct NormArgs {
  RowPlaces x;         // of [size] each
  RowPlaces residual;  // likewise; data is null without one
  const void* weight;  // [size]
  void* out;           // [rows, size]
  void* sum;           // [rows, size]: x + residual, rounded; null without a residual
  int64_t size;
  float eps;
  bool unit_offset;
  Element element;
};

struct GatedArgs {
  RowPlaces x;  // of [2 * size] each: gate, up
  void* out;    // [rows, size]
  int64_t size;
  Element element;
};

struct RotateArgs {
  RowPlaces q, k, v;  // row token * heads + head of each; q's data is null where nothing rotates
  void* q_out;        // [tokens, q_heads, head_dim]: rotated
  int64_t q_heads, kv_heads, head_dim;
  const int32_t* positions;  // [tokens, axes]; null: nothing rotates
  int64_t axes;
  const float* cos_sin;    // [max_position, rotary_dim]: cosines, then sines
  const int64_t* section;  // [num_sections] pairs each, whose axis is their number mod axes; null for one axis
  int64_t num_sections;
  int64_t rotary_dim;
  bool interleaved;
  const int32_t* slots;  // [tokens]; negative: not written
  void* k_cache;         // [rows, kv_heads, head_dim]
  void* v_cache;
  Element element;
};

// One request's queries and the keys they see. Keys are numbered from the first that the block table names.
struct AttendRequest {
  const int32_t* table;         // its blocks
  int64_t first_row, num_rows;  // of q and out
  int64_t first_key, end_key;   // any of its queries sees keys within
  int64_t own_key;              // of its first query; query i's is own_key + i
  int64_t first_part;           // number of its first part
  int64_t num_parts;
};

// Some queries of a request, as an item takes them.
struct AttendBlock {
  const int32_t* table;
  int64_t first_row, num_queries;
  int64_t first_key, end_key, own_key;
};

struct AttendArgs {
  RowPlaces q;          // row token * q_heads + head
  const void* k_cache;  // [blocks, block_size, kv_heads, head_dim]
  const void* v_cache;
  int64_t k_block_stride, v_block_stride;
  int64_t block_size;
  int64_t q_heads, kv_heads, head_dim;
  float scale, soft_cap;  // 0: no cap
  int64_t window;         // 0: none
  const float* sinks;     // [q_heads] or null
  const AttendBlock* blocks;        // of requests with many queries
  const AttendRequest* requests;    // with few
  int64_t num_requests, keys_per_part;
  float* parts;  // [num_parts, kv_heads, most_rows, head_dim + 2]: sums of values, largest score, sum of weights
  int64_t most_rows;
  void* out;  // [tokens, q_heads, head_dim]
  Element element;
};

constexpr int64_t kMaxHeadDim = 512;
constexpr int kTileKeys = 64;
constexpr int kTileRows = 6;

// Bytes that `attend_tiles` needs of whoever calls it, for items of at most `rows` rows.
constexpr int64_t tile_bytes(int64_t rows, int64_t head_dim) {
  const int64_t width = (head_dim + 15) / 16 * 16, filled = rows + kTileRows - 1;
  return 4 * (2 * kTileKeys * width + filled * (2 * width + 2));
}

// Ranges are of rows (prepare, quantise, spread, quantise_blocks, norm, gated), tokens (rotate) or items, each of which one thread computes.
struct Kernels {
  const char* name;
  int64_t (*prepared_size)(Element element, int64_t size);  // elements of a prepared row
  int64_t (*prepared_bytes)(Element element);               // of one such element
  void (*prepare)(const PrepareArgs& args, int64_t first, int64_t last);
  ItemShape (*linear_item)(Element element, int64_t rows);  // for that many rows in all
  void (*linear)(const LinearArgs& args, int64_t first, int64_t last);
  // As linear_item and linear, with a packed weight and rows as they lie.
  ItemShape (*packed_item)(int64_t rows);
  void (*packed_linear)(const LinearArgs& args, int64_t first, int64_t last);
  int64_t (*quantised_size)(int64_t size);
  int64_t (*quantised_bytes)();
  void (*quantise)(const QuantiseArgs& args, int64_t first, int64_t last);
  void (*w8a8_linear)(const LinearArgs& args, int64_t first, int64_t last);
  int64_t (*spread_size)(int64_t size);
  void (*spread)(const SpreadArgs& args, int64_t first, int64_t last);
  // As linear_item, and whether x is to be prepared, and not spread.
  ItemShape (*grouped_item)(Element element, int64_t rows, bool& takes_prepared);
  void (*grouped_linear)(const GroupedArgs& args, int64_t first, int64_t last);
  void (*quantise_blocks)(const BlocksArgs& args, int64_t first, int64_t last);
  void (*tiled_linear)(const TiledArgs& args, int64_t first, int64_t last);
  // As grouped_item: whether x is to be prepared by `prepare`, and not by `prepare_groups`.
  ItemShape (*tiled_groups_item)(Element element, int64_t rows, bool& takes_prepared);
  int64_t (*prepared_group_bytes)(Element element);  // of one prepared value
  void (*prepare_groups)(const PrepareGroupsArgs& args, int64_t first, int64_t last);
  void (*tiled_groups_linear)(const TiledGroupsArgs& args, int64_t first, int64_t last);
  void (*tiled_bytes_linear)(const TiledBytesArgs& args, int64_t first, int64_t last);
  void (*block_linear)(const BlockLinearArgs& args, int64_t first, int64_t last);
  void (*rms_norm)(const NormArgs& args, int64_t first, int64_t last);
  void (*silu_and_mul)(const GatedArgs& args, int64_t first, int64_t last);
  void (*rotate)(const RotateArgs& args, int64_t first, int64_t last);
  void (*attend)(const AttendArgs& args, int64_t first, int64_t last);  // items: part * kv_heads + kv_head
  void (*merge)(const AttendArgs& args, int64_t first, int64_t last);   // requests; those of one part are done
  // Items: block * kv_heads + kv_head. `memory` is this thread's own, of tile_bytes().
  void (*attend_tiles)(const AttendArgs& args, void* memory, int64_t first, int64_t last);
};

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}

}  // namespace trunnion_cpu
