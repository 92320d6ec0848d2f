// Attention of few queries over a paged cache as it lies: a part of the keys at a time, then the parts put together.
//
// Query heads that share a KV head, and the queries of one request, are rows of one product with each key.
#include "kernels_of_isa.h"
#include "paged_keys.h"
#include "products.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int kMaxRows = 4;
constexpr int kVectors = kManyRegisters ? 4 : 2;  // of an output row, kept in registers
constexpr float kNone = -__builtin_inff();

constexpr int reversed(int lane) {
  int found = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) found = found * 2 + (lane & bit ? 1 : 0);
  return found;
}

// [a0, b0, a1, b1, ...] of the lower halves plus the same of the upper halves.
TRUNNION_INLINE Floats fold(Floats a, Floats b) {
  Ints lower, upper;
  for (int i = 0; i < kLanes; ++i) {
    lower[i] = i / 2 + (i % 2) * kLanes;
    upper[i] = lower[i] + kLanes / 2;
  }
  return __builtin_shuffle(a, b, lower) + __builtin_shuffle(a, b, upper);
}

// The sums of kLanes vectors as one. Folding reverses the bits of a lane's number.
TRUNNION_INLINE Floats sums_of(Floats (&values)[kLanes]) {
  Floats ordered[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) ordered[i] = values[reversed(i)];
#pragma GCC unroll 4
  for (int count = kLanes / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) ordered[i] = fold(ordered[2 * i], ordered[2 * i + 1]);
  }
  return ordered[0];
}

template <class Type>
struct Tile : PagedKeys<typename Type::Stored> {
  alignas(64) float scores[kMaxRows][kTileKeys];
  int64_t scored;  // keys with a score: whole vectors
};

// State of kMaxRows rows of one item.
template <class Type>
struct RowsState {
  alignas(64) typename Type::X q[kMaxRows][kMaxHeadDim + 2 * kLanes];
  alignas(64) float sums[kMaxRows][kMaxHeadDim + kLanes];
  float largest[kMaxRows], total[kMaxRows];
  int64_t own_key[kMaxRows];
};

template <class Type>
TRUNNION_INLINE Floats scores_of(const Tile<Type>& tile, int64_t first, const typename Type::X* q, int64_t size) {
  Floats sums[kLanes] = {};
  const int64_t whole = size - size % Type::kStep;
  for (int64_t d = 0; d < whole; d += Type::kStep) {
    const auto x = Type::take_x(q + d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = Type::add(sums[i], Type::take(tile.keys[first + i] + d), x);
  }
  if (whole < size) {
    const auto x = Type::take_x(q + whole);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      sums[i] = Type::add(sums[i], Type::take(tile.keys[first + i] + whole, size - whole), x);
    }
  }
  return sums_of(sums);
}

// Scores of one row as weights relative to its largest score so far, which the sums are scaled to.
template <class Type>
void weigh(const AttendArgs& args, Tile<Type>& tile, RowsState<Type>& rows, int row) {
  float* scores = tile.scores[row];
  const int64_t own = rows.own_key[row] - tile.first;
  const int64_t end = own + 1 < tile.count ? own + 1 : tile.count;
  const int64_t begin = args.window > 0 ? own - args.window + 1 : 0;
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Floats largest = broadcast(kNone);
  for (int i = 0; i < tile.scored; i += kLanes) {
    Floats value = load(scores + i) * args.scale;
    if (args.soft_cap > 0) {
      const Floats power = exp_of(value * (2.0f / args.soft_cap));
      value = args.soft_cap * (1.0f - 2.0f / (power + 1.0f));
    }
    const Ints key = lane + i;
    value = (key < (int32_t)end) & (key >= (int32_t)(begin > 0 ? begin : 0)) ? value : broadcast(kNone);
    store(scores + i, value);
    largest = larger(value, largest);
  }
  const float before = rows.largest[row], tile_largest = largest_of(largest);
  const float now = tile_largest > before ? tile_largest : before;
  if (now == kNone) {
    for (int i = 0; i < tile.scored; i += kLanes) store(scores + i, Floats{});
    return;
  }
  Floats total = {};
  for (int i = 0; i < tile.scored; i += kLanes) {
    const Floats score = load(scores + i);
    const Floats weight = score == kNone ? Floats{} : exp_of(score - now);
    store(scores + i, weight);
    total += weight;
  }
  const float kept = before == kNone ? 0.0f : exp_of(broadcast(before - now))[0];
  rows.largest[row] = now;
  rows.total[row] = rows.total[row] * kept + sum_of(total);
  if (kept != 1.0f) {
    for (int64_t d = 0; d < args.head_dim; d += kLanes) store(rows.sums[row] + d, load(rows.sums[row] + d) * kept);
  }
}

template <class Type, int kRows, int kCount>
TRUNNION_INLINE void add_values_at(const Tile<Type>& tile, RowsState<Type>& rows, int64_t d, int64_t left) {
  Floats sums[kRows][kCount];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) sums[r][c] = load(rows.sums[r] + d + c * kLanes);
  }
  for (int64_t i = 0; i < tile.count; ++i) {
    Floats values[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      // Only the last vector of a row can be short, and it is taken alone.
      values[c] = kCount > 1 ? load(tile.values[i] + d + c * kLanes) : take(tile.values[i] + d, left);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Floats weight = broadcast(tile.scores[r][i]);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) sums[r][c] += weight * values[c];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) store(rows.sums[r] + d + c * kLanes, sums[r][c]);
  }
}

template <class Type, int kRows>
void add_values(const AttendArgs& args, const Tile<Type>& tile, RowsState<Type>& rows) {
  int64_t d = 0;
  for (; d + kVectors * kLanes <= args.head_dim; d += kVectors * kLanes) {
    add_values_at<Type, kRows, kVectors>(tile, rows, d, args.head_dim - d);
  }
  for (; d < args.head_dim; d += kLanes) add_values_at<Type, kRows, 1>(tile, rows, d, args.head_dim - d);
}

// Values of a tile are on their way while its scores are computed.
template <class Stored>
TRUNNION_INLINE void ask_for_values(const AttendArgs& args, const PagedKeys<Stored>& tile) {
  constexpr int64_t kLine = 64 / sizeof(Stored);
  for (int64_t i = 0; i < tile.count; ++i) {
    for (int64_t d = 0; d < args.head_dim; d += kLine) __builtin_prefetch(tile.values[i] + d);
  }
}

template <class Type, int kRows>
void rows_over_keys(const AttendArgs& args, const int32_t* table, int64_t head, int64_t first, int64_t end,
                    RowsState<Type>& rows) {
  Tile<Type> tile;
  for (tile.first = first; tile.first < end; tile.first += kTileKeys) {
    tile.count = end - tile.first < kTileKeys ? end - tile.first : kTileKeys;
    tile.scored = (tile.count + kLanes - 1) / kLanes * kLanes;
    find_keys<typename Type::Stored>(args, table, head, tile);
    ask_for_values(args, tile);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < tile.scored; i += kLanes) {
        store(tile.scores[r] + i, scores_of(tile, i, rows.q[r], args.head_dim));
      }
      weigh(args, tile, rows, r);
    }
    add_values<Type, kRows>(args, tile, rows);
  }
}

// A row of the output whose keys are one part; a sink takes its share of the weights and gives no value.
template <class Stored>
void end_row(const AttendArgs& args, const float* sums, float largest, float total, int64_t token, int64_t q_head) {
  float factor = 1.0f;
  if (args.sinks != nullptr) {
    const float sink = args.sinks[q_head], most = sink > largest ? sink : largest;
    factor = total > 0 ? exp_of(broadcast(largest - most))[0] : 0.0f;
    total = total * factor + exp_of(broadcast(sink - most))[0];
  }
  const float share = total > 0 ? factor / total : 0.0f;
  auto* out = static_cast<Stored*>(args.out) + (token * args.q_heads + q_head) * args.head_dim;
  for (int64_t d = 0; d < args.head_dim; d += kLanes) put(out + d, load(sums + d) * share, args.head_dim - d);
}

// Rows [first, first + count) of one request's part and KV head; row = query * group + head within the group.
template <class Type>
void block_of_rows(const AttendArgs& args, int64_t request, int64_t part, int64_t head, int64_t first, int64_t count) {
  using Stored = typename Type::Stored;
  const AttendRequest& of = args.requests[request];
  const int64_t group = args.q_heads / args.kv_heads, size = args.head_dim;
  RowsState<Type> rows;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = (first + r) / group, q_head = head * group + (first + r) % group;
    Type::prepare_row(row_at<Stored>(args.q, (of.first_row + query) * args.q_heads + q_head), rows.q[r], size);
    for (int64_t d = 0; d < size; d += kLanes) store(rows.sums[r] + d, Floats{});
    rows.largest[r] = kNone;
    rows.total[r] = 0.0f;
    rows.own_key[r] = of.own_key + query;
  }
  const int64_t begin = of.first_key + part * args.keys_per_part;
  const int64_t end = begin + args.keys_per_part < of.end_key ? begin + args.keys_per_part : of.end_key;
  switch (count) {
    case 1: rows_over_keys<Type, 1>(args, of.table, head, begin, end, rows); break;
    case 2: rows_over_keys<Type, 2>(args, of.table, head, begin, end, rows); break;
    case 3: rows_over_keys<Type, 3>(args, of.table, head, begin, end, rows); break;
    default: rows_over_keys<Type, 4>(args, of.table, head, begin, end, rows); break;
  }
  if (of.num_parts == 1) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t token = of.first_row + (first + r) / group, q_head = head * group + (first + r) % group;
      end_row<Stored>(args, rows.sums[r], rows.largest[r], rows.total[r], token, q_head);
    }
    return;
  }
  float* out = args.parts + (((of.first_part + part) * args.kv_heads + head) * args.most_rows + first) * (size + 2);
  for (int64_t r = 0; r < count; ++r, out += size + 2) {
    memcpy(out, rows.sums[r], sizeof(float) * size);
    out[size] = rows.largest[r];
    out[size + 1] = rows.total[r];
  }
}

template <class Type>
void items(const AttendArgs& args, int64_t begin, int64_t end) {
  const int64_t group = args.q_heads / args.kv_heads;
  int64_t request = 0;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t part = item / args.kv_heads, head = item % args.kv_heads;
    while (part >= args.requests[request].first_part + args.requests[request].num_parts) ++request;
    const AttendRequest& of = args.requests[request];
    const int64_t num_rows = of.num_rows * group;
    for (int64_t first = 0; first < num_rows; first += kMaxRows) {
      const int64_t count = num_rows - first < kMaxRows ? num_rows - first : kMaxRows;
      block_of_rows<Type>(args, request, part - of.first_part, head, first, count);
    }
  }
}

// One row of the output from its parts, of which there are several, or none; a sink takes its share of the weights and
// gives no value.
template <class Stored>
void merge_row(const AttendArgs& args, const float* parts, int64_t num_parts, int64_t stride, const float* sink,
               Stored* out) {
  const int64_t size = args.head_dim;
  float largest = sink == nullptr ? kNone : *sink;
  for (int64_t part = 0; part < num_parts; ++part) {
    const float value = parts[part * stride + size];
    largest = value > largest ? value : largest;
  }
  alignas(64) float sums[kMaxHeadDim + kLanes];
  for (int64_t d = 0; d < size; d += kLanes) store(sums + d, Floats{});
  float total = sink == nullptr ? 0.0f : exp_of(broadcast(*sink - largest))[0];
  for (int64_t part = 0; part < num_parts; ++part) {
    const float* from = parts + part * stride;
    if (from[size] == kNone) continue;
    const float factor = exp_of(broadcast(from[size] - largest))[0];
    total += factor * from[size + 1];
    for (int64_t d = 0; d < size; d += kLanes) store(sums + d, load(sums + d) + take(from + d, size - d) * factor);
  }
  const float share = total > 0 ? 1.0f / total : 0.0f;
  for (int64_t d = 0; d < size; d += kLanes) put(out + d, load(sums + d) * share, size - d);
}

template <class Stored>
void merge_requests(const AttendArgs& args, int64_t first, int64_t last) {
  const int64_t group = args.q_heads / args.kv_heads, row_size = args.head_dim + 2;
  for (int64_t request = first; request < last; ++request) {
    const AttendRequest& of = args.requests[request];
    if (of.num_parts == 1) continue;
    for (int64_t row = 0; row < of.num_rows * args.q_heads; ++row) {
      const int64_t query = row / args.q_heads, q_head = row % args.q_heads, head = q_head / group;
      const int64_t within = query * group + q_head % group;
      const float* parts = args.parts + ((of.first_part * args.kv_heads + head) * args.most_rows + within) * row_size;
      merge_row(args, parts, of.num_parts, args.kv_heads * args.most_rows * row_size,
                args.sinks == nullptr ? nullptr : args.sinks + q_head,
                static_cast<Stored*>(args.out) + (of.first_row * args.q_heads + row) * args.head_dim);
    }
  }
}

}  // namespace

void attend(const AttendArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return items<Float32>(args, first, last);
  items<Bf16>(args, first, last);
}

void merge(const AttendArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return merge_requests<float>(args, first, last);
  merge_requests<BFloat16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
