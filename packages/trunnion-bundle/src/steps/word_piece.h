// BERT's tokenizer: clean, split into words and punctuation, cut words into the longest pieces of a vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trunnion::bundle {

class WordPiece {
 public:
  // Throws BundleError if the file has not `size` lines, or no [UNK], [CLS], [SEP] or [PAD].
  WordPiece(const std::filesystem::path& vocabulary, int64_t size, bool lowercase, int64_t max_chars_per_word);

  // [CLS] pieces [SEP], the pieces cut so that all are at most `max_length`. Throws InvalidRequest if it is no UTF-8.
  std::vector<int64_t> encode(std::string_view text, int64_t max_length) const;
  int64_t pad() const { return pad_; }

 private:
  int64_t special(const char* token) const;
  void add_word(std::u32string_view word, std::vector<int64_t>& ids) const;
  void add_pieces(std::u32string_view word, std::vector<int64_t>& ids) const;

  std::unordered_map<std::string, int64_t> vocabulary_;
  const bool lowercase_;
  const int64_t max_chars_per_word_;
  int64_t unknown_ = 0, start_ = 0, end_ = 0, pad_ = 0;
};

}  // namespace trunnion::bundle
