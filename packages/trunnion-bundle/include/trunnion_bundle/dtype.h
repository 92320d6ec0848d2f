/* Element types of tensors, as engines and plugins are told them. */
#ifndef TRUNNION_BUNDLE_DTYPE_H
#define TRUNNION_BUNDLE_DTYPE_H

typedef enum trn_dtype {
  TRN_DTYPE_BOOL = 1, /* one byte, 0 or 1 */
  TRN_DTYPE_UINT8 = 2,
  TRN_DTYPE_UINT16 = 3,
  TRN_DTYPE_UINT32 = 4,
  TRN_DTYPE_UINT64 = 5,
  TRN_DTYPE_INT8 = 6,
  TRN_DTYPE_INT16 = 7,
  TRN_DTYPE_INT32 = 8,
  TRN_DTYPE_INT64 = 9,
  TRN_DTYPE_FLOAT16 = 10,
  TRN_DTYPE_BFLOAT16 = 11,
  TRN_DTYPE_FLOAT32 = 12,
  TRN_DTYPE_FLOAT64 = 13,
  TRN_DTYPE_BYTES = 14 /* strings: only as an input of a plugin */
} trn_dtype;

#endif
