#include "steps/unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "bundle/errors.h"

namespace trunnion::bundle {
namespace {

struct CodeRange {
  uint32_t first, last;
};

// A character and up to three that stand for it; 0 = none.
struct PlainRow {
  uint32_t code, parts[3];
};

#include "steps/unicode_tables.inc"

constexpr char32_t kSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;
constexpr char32_t kFirstHangul = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kNumVowels = 21, kNumTails = 28, kNumHangul = 11172;

template <size_t kCount>
bool is_in(const CodeRange (&ranges)[kCount], char32_t code) {
  const auto after = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                      [](char32_t value, const CodeRange& range) { return value < range.first; });
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}

[[noreturn]] void refuse(std::string_view bytes, size_t at) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(bytes[at]);
  const std::string hex = byte < 16 ? std::string(1, kDigits[byte]) : std::string{kDigits[byte >> 4], kDigits[byte & 15]};
  throw InvalidRequest("the text is no UTF-8: byte 0x" + hex + " at " + std::to_string(at));
}

// Whether the capital sigma at `index` of what is not yet in lower case ends a word.
bool is_final_sigma(std::u32string_view text, size_t index) {
  size_t before = index;
  while (before > 0 && is_in(kIgnored, text[before - 1])) --before;
  if (before == 0 || !is_in(kCased, text[before - 1])) return false;
  size_t after = index + 1;
  while (after < text.size() && is_in(kIgnored, text[after])) ++after;
  return after == text.size() || !is_in(kCased, text[after]);
}

}  // namespace

std::u32string from_utf8(std::string_view bytes) {
  std::u32string text;
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
    if (length == 0 || i + length > bytes.size()) refuse(bytes, i);
    char32_t code = length == 1 ? lead : lead & (0x7F >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(bytes[i + k]);
      if ((next & 0xC0) != 0x80) refuse(bytes, i);
      code = code << 6 | (next & 0x3F);
    }
    const bool is_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (is_long || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) refuse(bytes, i);
    text += code;
    i += length;
  }
  return text;
}

void append_utf8(std::string& text, char32_t code) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

bool is_space(char32_t code) { return is_in(kSpaces, code); }
bool is_control(char32_t code) { return (code >= 0xD800 && code < 0xE000) || is_in(kControls, code); }
bool is_punctuation(char32_t code) { return is_in(kPunctuation, code); }

std::u32string plain_lower(std::u32string_view word) {
  std::u32string text;
  for (const char32_t code : word) {
    if (code >= kFirstHangul && code < kFirstHangul + kNumHangul) {
      const uint32_t syllable = code - kFirstHangul;
      text += kLeads + syllable / (kNumVowels * kNumTails);
      text += kVowels + syllable % (kNumVowels * kNumTails) / kNumTails;
      if (syllable % kNumTails != 0) text += kTails + syllable % kNumTails;
      continue;
    }
    if (is_in(kMarks, code)) continue;
    const auto row = std::lower_bound(std::begin(kPlain), std::end(kPlain), code,
                                      [](const PlainRow& candidate, char32_t value) { return candidate.code < value; });
    // What a sigma becomes depends on what is around it.
    if (row == std::end(kPlain) || row->code != code || code == kSigma) {
      text += code;
      continue;
    }
    for (const uint32_t part : row->parts) {
      if (part != 0) text += part;
    }
  }
  std::u32string lower = text;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kSigma) lower[i] = is_final_sigma(text, i) ? kFinalSigma : kSmallSigma;
  }
  return lower;
}

}  // namespace trunnion::bundle
