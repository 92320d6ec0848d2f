// Rotary embedding of queries and keys, and the way of keys and values into the cache: float32 inside, rounded once.
#include "kernels_of_isa.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

template <class T>
void turn_halves(const T* x, T* out, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const Floats first = take(x + i, left), second = take(x + half + i, left);
    const Floats c = take(cos + i, left), s = take(sin + i, left);
    put(out + i, first * c - second * s, left);
    put(out + half + i, second * c + first * s, left);
  }
}

template <class T>
void turn_neighbours(const T* x, T* out, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = to_float(x[2 * i]), second = to_float(x[2 * i + 1]);
    store_one(out + 2 * i, first * cos[i] - second * sin[i]);
    store_one(out + 2 * i + 1, second * cos[i] + first * sin[i]);
  }
}

template <class T>
void turn(const RotateArgs& args, const T* x, T* out, const float* cos, const float* sin) {
  const int64_t half = args.rotary_dim / 2;
  if (args.interleaved) {
    turn_neighbours(x, out, cos, sin, half);
  } else {
    turn_halves(x, out, cos, sin, half);
  }
  memcpy(out + args.rotary_dim, x + args.rotary_dim, sizeof(T) * (args.head_dim - args.rotary_dim));
}

// Cosines and sines of one token; those of several axes are put together in `buffer`.
const float* angles(const RotateArgs& args, int64_t token, float* buffer) {
  if (args.section == nullptr) return args.cos_sin + args.positions[token] * args.rotary_dim;
  const int64_t half = args.rotary_dim / 2;
  int64_t pair = 0;
  for (int64_t run = 0; run < args.num_sections; ++run) {
    const float* row = args.cos_sin + args.positions[token * args.axes + run % args.axes] * args.rotary_dim;
    for (const int64_t end = pair + args.section[run]; pair < end; ++pair) {
      buffer[pair] = row[pair];
      buffer[half + pair] = row[half + pair];
    }
  }
  return buffer;
}

template <class T>
void tokens(const RotateArgs& args, int64_t first, int64_t last) {
  alignas(64) float buffer[kMaxHeadDim];
  const int64_t size = args.head_dim, bytes = sizeof(T) * size;
  for (int64_t token = first; token < last; ++token) {
    const bool rotates = args.positions != nullptr;
    const float* cos = rotates ? angles(args, token, buffer) : nullptr;
    const float* sin = rotates ? cos + args.rotary_dim / 2 : nullptr;
    for (int64_t head = 0; rotates && head < args.q_heads; ++head) {
      const int64_t row = token * args.q_heads + head;
      turn(args, row_at<T>(args.q, row), static_cast<T*>(args.q_out) + row * size, cos, sin);
    }
    const int64_t slot = args.slots[token];
    for (int64_t head = 0; slot >= 0 && head < args.kv_heads; ++head) {
      const int64_t row = token * args.kv_heads + head, cached = slot * args.kv_heads + head;
      const T* key = row_at<T>(args.k, row);
      T* stored = static_cast<T*>(args.k_cache) + cached * size;
      if (rotates) {
        turn(args, key, stored, cos, sin);
      } else {
        memcpy(stored, key, bytes);
      }
      memcpy(static_cast<T*>(args.v_cache) + cached * size, row_at<T>(args.v, row), bytes);
    }
  }
}

}  // namespace

void rotate(const RotateArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return tokens<float>(args, first, last);
  tokens<BFloat16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
