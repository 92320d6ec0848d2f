// Attention of many queries over a paged cache: a tile of keys is packed once and multiplied with all rows of an item.
//
// Query heads that share a KV head, and the queries of a block, are rows. Weights of the softmax are relative to a
// row's largest score so far, and what was summed up before is scaled when a larger one comes. Operands of products are
// words: one float32, or where there are products of pairs, two bfloat16 values.
#include "kernels_of_isa.h"
#include "paged_keys.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int kVectors = kManyRegisters ? 4 : 2;  // of a row's sums, kept in registers
constexpr float kNone = -__builtin_inff();

TRUNNION_INLINE void store_words(uint32_t* to, Words words) { memcpy(to, &words, sizeof words); }
TRUNNION_INLINE Words all_words(uint32_t word) { return word - Words{}; }

template <class T>
struct Single {
  using Stored = T;
  static constexpr int64_t kValues = 1;  // of a word
  static TRUNNION_INLINE Floats add(Floats sum, uint32_t x, Words words) {
    return sum + (Floats)all_words(x) * (Floats)words;
  }
  static TRUNNION_INLINE Words take_words(const Stored* from, int64_t left) { return (Words)take(from, left); }
  // Words across the keys `rows` at one place of their rows.
  static TRUNNION_INLINE Words across(const Stored* const* rows, int64_t at, int64_t left) {
    return (Words)take(rows[0] + at, left);
  }
  static TRUNNION_INLINE void store_weights(uint32_t* to, const Floats* weights) { store_words(to, (Words)weights[0]); }
};

#if defined(__AVX512BF16__)
struct Pairs {
  using Stored = BFloat16;
  static constexpr int64_t kValues = 2;
  static TRUNNION_INLINE Floats add(Floats sum, uint32_t x, Words words) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)words, (__m512bh)all_words(x));
  }
  static TRUNNION_INLINE Words take_words(const Stored* from, int64_t left) {
    return left >= 2 * kLanes ? load_as<Words>(from) : load_first<Words>(from, 2 * left);
  }
  static TRUNNION_INLINE Words across(const Stored* const* rows, int64_t at, int64_t left) {
    Words words[2];
    for (int i = 0; i < 2; ++i) {
      const Stored* from = rows[i] + at;
      const Halves halves = left >= kLanes ? load_as<Halves>(from) : load_first<Halves>(from, 2 * left);
      words[i] = __builtin_convertvector(halves, Words);
    }
    return words[0] | (words[1] << 16);
  }
  static TRUNNION_INLINE void store_weights(uint32_t* to, const Floats* weights) {
    store_words(to, (Words)_mm512_cvtne2ps_pbh((__m512)weights[1], (__m512)weights[0]));
  }
};
using Bf16 = Pairs;
#else
using Bf16 = Single<BFloat16>;
#endif

int64_t whole_vectors(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Rows of an item and one tile of keys, in memory that the caller lends; sizes in words.
template <class Type>
struct Work {
  int64_t words, width, rows;  // of a packed row, of an output row, rows with those that only fill up
  uint32_t* q;                 // [rows, words]
  uint32_t* keys;              // [words, kTileKeys]
  uint32_t* values;            // [kTileKeys / kValues, width]
  float* sums;                 // [rows, width]
  float* largest;              // [rows]
  float* total;                // [rows]

  Work(const AttendArgs& args, void* memory, int64_t num_rows) {
    words = whole_vectors((args.head_dim + Type::kValues - 1) / Type::kValues);
    width = whole_vectors(args.head_dim);
    rows = (num_rows + kTileRows - 1) / kTileRows * kTileRows;
    keys = static_cast<uint32_t*>(memory);
    values = keys + words * kTileKeys;
    q = values + kTileKeys / Type::kValues * width;
    sums = reinterpret_cast<float*>(q + rows * words);
    largest = sums + rows * width;
    total = largest + rows;
  }
};

// In each of log2(kLanes) rounds the lower half of the vectors is interleaved with the upper one.
TRUNNION_INLINE void transpose(Words (&block)[kLanes]) {
  Ints lower, upper;
  for (int i = 0; i < kLanes; ++i) {
    lower[i] = i / 2 + i % 2 * kLanes;
    upper[i] = lower[i] + kLanes / 2;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Words next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = __builtin_shuffle(block[i], block[i + kLanes / 2], lower);
      next[2 * i + 1] = __builtin_shuffle(block[i], block[i + kLanes / 2], upper);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) block[i] = next[i];
  }
}

template <class Type>
void pack(const AttendArgs& args, const PagedKeys<typename Type::Stored>& tile, Work<Type>& work) {
  const int64_t size = args.head_dim;
  for (int64_t key = 0; key < kTileKeys; key += kLanes) {
    for (int64_t word = 0; word < work.words; word += kLanes) {
      Words block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = Type::take_words(tile.keys[key + i] + word * Type::kValues, size - word * Type::kValues);
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store_words(work.keys + (word + i) * kTileKeys + key, block[i]);
    }
  }
  for (int64_t key = 0; key < kTileKeys; key += Type::kValues) {
    uint32_t* out = work.values + key / Type::kValues * work.width;
    for (int64_t d = 0; d < size; d += kLanes) store_words(out + d, Type::across(tile.values + key, d, size - d));
  }
}

// sums[r][c] += x[r, :] * words[:, c]
template <class Type, int kCount>
TRUNNION_INLINE void multiply(Floats (&sums)[kTileRows][kCount], const uint32_t* x, int64_t x_stride,
                              const uint32_t* words, int64_t stride, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    Words column[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) column[c] = load_as<Words>(words + step * stride + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) sums[r][c] = Type::add(sums[r][c], x[r * x_stride + step], column[c]);
    }
  }
}

struct Weights {
  alignas(64) float scores[kTileRows][kTileKeys];
  alignas(64) uint32_t words[kTileRows][kTileKeys];
  float kept[kTileRows];  // what earlier sums are multiplied by
};

TRUNNION_INLINE Floats capped(Floats score, float soft_cap) {
  return soft_cap * (1.0f - 2.0f / (exp_of(score * (2.0f / soft_cap)) + 1.0f));
}

// Scores of one row, of whose tile it sees the keys [begin, end), as weights.
template <class Type>
TRUNNION_INLINE void weigh(const AttendArgs& args, Weights& weights, int r, int64_t begin, int64_t end, float& largest,
                           float& sum) {
  float* scores = weights.scores[r];
  const bool sees_all = begin <= 0 && end >= kTileKeys;
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Floats most = broadcast(kNone);
  for (int i = 0; i < kTileKeys; i += kLanes) {
    Floats score = load(scores + i) * args.scale;
    if (args.soft_cap > 0) score = capped(score, args.soft_cap);
    if (!sees_all) {
      const Ints key = lane + i;
      score = (key < (int32_t)end) & (key >= (int32_t)begin) ? score : broadcast(kNone);
    }
    store(scores + i, score);
    most = larger(score, most);
  }
  const float before = largest, found = largest_of(most), now = found > before ? found : before;
  Floats total = {};
  for (int i = 0; i < kTileKeys; i += kLanes * Type::kValues) {
    Floats parts[Type::kValues];
    for (int part = 0; part < Type::kValues; ++part) {
      const Floats score = load(scores + i + part * kLanes);
      parts[part] = exp_of(score - now);
      if (!sees_all) parts[part] = score == kNone ? Floats{} : parts[part];
      total += parts[part];
    }
    Type::store_weights(weights.words[r] + i / Type::kValues, parts);
  }
  weights.kept[r] = before == kNone ? 0.0f : before == now ? 1.0f : exp_of(broadcast(before - now))[0];
  largest = now;
  sum = sum * weights.kept[r] + sum_of(total);
}

template <class Type, int kCount>
TRUNNION_INLINE void add_values(Work<Type>& work, const Weights& weights, int64_t row, int64_t d) {
  Floats sums[kTileRows][kCount];
  float* to = work.sums + row * work.width + d;
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) sums[r][c] = load(to + r * work.width + c * kLanes) * weights.kept[r];
  }
  multiply<Type>(sums, weights.words[0], kTileKeys, work.values + d, work.width, kTileKeys / Type::kValues);
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) store(to + r * work.width + c * kLanes, sums[r][c]);
  }
}

// kTileRows rows from `row` on over the packed keys; row r belongs to query r / group of the item.
template <class Type>
void rows_over_keys(const AttendArgs& args, Work<Type>& work, const PagedKeys<typename Type::Stored>& tile,
                    int64_t own_key, int64_t row) {
  const int64_t group = args.q_heads / args.kv_heads, words = (args.head_dim + Type::kValues - 1) / Type::kValues;
  const int64_t first_own = own_key + row / group - tile.first;
  const int64_t last_own = own_key + (row + kTileRows - 1) / group - tile.first;
  if (last_own < 0 || (args.window > 0 && first_own - args.window + 1 >= tile.count)) return;
  Weights weights;
  for (int key = 0; key < kTileKeys; key += kVectors * kLanes) {
    Floats sums[kTileRows][kVectors] = {};
    multiply<Type>(sums, work.q + row * work.words, work.words, work.keys + key, kTileKeys, words);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) store(weights.scores[r] + key + c * kLanes, sums[r][c]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    const int64_t own = own_key + (row + r) / group - tile.first;
    const int64_t end = own + 1 < tile.count ? own + 1 : tile.count;
    const int64_t begin = args.window > 0 ? own - args.window + 1 : 0;
    if (end <= 0 || begin >= tile.count) {
      // exp_of knows no infinity less another.
      memset(weights.words[r], 0, sizeof weights.words[r]);
      weights.kept[r] = 1.0f;
      continue;
    }
    weigh<Type>(args, weights, r, begin, end, work.largest[row + r], work.total[row + r]);
  }
  int64_t d = 0;
  for (; d + kVectors * kLanes <= work.width; d += kVectors * kLanes) add_values<Type, kVectors>(work, weights, row, d);
  for (; d < work.width; d += kLanes) add_values<Type, 1>(work, weights, row, d);
}

template <class Type>
void begin_rows(const AttendArgs& args, const AttendBlock& block, int64_t head, Work<Type>& work) {
  using Stored = typename Type::Stored;
  const int64_t group = args.q_heads / args.kv_heads, num_rows = block.num_queries * group;
  for (int64_t row = 0; row < work.rows; ++row) {
    uint32_t* to = work.q + row * work.words;
    // Rows that only fill up multiply zeros.
    if (row >= num_rows) {
      memset(to, 0, sizeof(uint32_t) * work.words);
    } else {
      const int64_t q_head = head * group + row % group;
      const Stored* from = row_at<Stored>(args.q, (block.first_row + row / group) * args.q_heads + q_head);
      for (int64_t word = 0; word < work.words; word += kLanes) {
        store_words(to + word, Type::take_words(from + word * Type::kValues, args.head_dim - word * Type::kValues));
      }
    }
    memset(work.sums + row * work.width, 0, sizeof(float) * work.width);
    work.largest[row] = kNone;
    work.total[row] = 0.0f;
  }
}

// A sink takes its share of the weights and gives no value.
template <class Type>
void end_rows(const AttendArgs& args, const AttendBlock& block, int64_t head, const Work<Type>& work) {
  const int64_t group = args.q_heads / args.kv_heads, size = args.head_dim;
  for (int64_t row = 0; row < block.num_queries * group; ++row) {
    const int64_t q_head = head * group + row % group;
    float factor = 1.0f, total = work.total[row];
    if (args.sinks != nullptr) {
      const float sink = args.sinks[q_head], most = sink > work.largest[row] ? sink : work.largest[row];
      factor = total > 0 ? exp_of(broadcast(work.largest[row] - most))[0] : 0.0f;
      total = total * factor + exp_of(broadcast(sink - most))[0];
    }
    const float share = total > 0 ? factor / total : 0.0f;
    const float* sums = work.sums + row * work.width;
    auto* out = static_cast<typename Type::Stored*>(args.out) +
                ((block.first_row + row / group) * args.q_heads + q_head) * size;
    for (int64_t d = 0; d < size; d += kLanes) put(out + d, load(sums + d) * share, size - d);
  }
}

template <class Type>
void item(const AttendArgs& args, void* memory, const AttendBlock& block, int64_t head) {
  Work<Type> work(args, memory, block.num_queries * (args.q_heads / args.kv_heads));
  begin_rows(args, block, head, work);
  PagedKeys<typename Type::Stored> tile;
  for (tile.first = block.first_key; tile.first < block.end_key; tile.first += kTileKeys) {
    tile.count = block.end_key - tile.first < kTileKeys ? block.end_key - tile.first : kTileKeys;
    find_keys(args, block.table, head, tile);
    pack(args, tile, work);
    for (int64_t row = 0; row < work.rows; row += kTileRows) rows_over_keys(args, work, tile, block.own_key, row);
  }
  end_rows(args, block, head, work);
}

}  // namespace

void attend_tiles(const AttendArgs& args, void* memory, int64_t first, int64_t last) {
  for (int64_t number = first; number < last; ++number) {
    const AttendBlock& block = args.blocks[number / args.kv_heads];
    if (args.element == Element::kFloat32) {
      item<Single<float>>(args, memory, block, number % args.kv_heads);
    } else {
      item<Bf16>(args, memory, block, number % args.kv_heads);
    }
  }
}

}  // namespace trunnion_cpu::TRUNNION_ISA
