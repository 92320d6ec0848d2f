// What a tokenizer needs of Unicode: text from UTF-8, categories, plain lower-case letters.
#pragma once

#include <string>
#include <string_view>

namespace trunnion::bundle {

// Throws InvalidRequest with the byte that is at fault.
std::u32string from_utf8(std::string_view bytes);
void append_utf8(std::string& text, char32_t code);

bool is_space(char32_t code);    // category Zs
bool is_control(char32_t code);  // categories C, unassigned ones too
bool is_punctuation(char32_t code);

// Decomposed (NFD), without marks (Mn), in lower case; as Python's
// "".join(c for c in normalize("NFD", word) if category(c) != "Mn").lower().
std::u32string plain_lower(std::u32string_view word);

}  // namespace trunnion::bundle
