// The null executor's model string: "null:vocab=131,pooled=0,layers=2,window=32,recurrent=1,csr=1,images=1,axes=3,levels=1,
// whole=1,types=2,draft=1,agree=70,fail_at=7,sleep_us=100", in one word.
#pragma once

#include <cstdint>
#include <string>

namespace trunnion::executor {

struct NullOptions {
  std::int64_t vocab = 131;
  std::int64_t pooled = 0;     // columns of pooled rows; 0 = logits
  std::int64_t layers = 2;     // per cache group
  std::int64_t window = 32;    // of the window group; 0 = no such group
  std::int64_t recurrent = 0;  // 1 = a recurrent group as well
  std::int64_t csr = 0;        // 1 = asks for, and reads, the CSR form
  std::int64_t images = 0;     // 1 = takes images, of patches of 3 numbers, 4 patches a row of the encoder pool
  std::int64_t axes = 1;       // of positions: 1 or 3
  std::int64_t levels = 0;     // 1 = accepts prefix levels, and makes no use of them
  std::int64_t whole = 0;      // 1 = needs whole prompts
  std::int64_t types = 0;      // of tokens; 0 = takes none
  std::int64_t draft = 0;      // 1 = there is a draft
  std::int64_t agree = 100;    // percent of the positions where it says what the model's most likely token is
  std::int64_t draft_fail_at = 0;  // as fail_at, of the draft's executes; the others are the model's
  std::int64_t refuse_at = 0;  // faults at the n-th execute that passed validation, counted from 1; 0 = never
  std::int64_t fail_at = 0;
  std::int64_t fatal_at = 0;
  std::int64_t hang_at = 0;
  std::int64_t sleep_us = 0;  // per execute
};

/// REFUSED names an unknown key or a value that is no count.
NullOptions parse_null_options(const std::string& model);

}  // namespace trunnion::executor
