#include "steps/word_piece.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "bundle/contract.h"
#include "steps/operators.h"
#include "steps/unicode.h"

namespace trunnion::bundle {
namespace {

constexpr const char* kContinued = "##";

bool is_ideograph(char32_t code) {
  static constexpr char32_t kRanges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                            {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [code](const auto& range) { return code >= range[0] && code <= range[1]; });
}

bool splits(char32_t code) {
  const bool is_ascii = (code >= 33 && code < 48) || (code >= 58 && code < 65) || (code >= 91 && code < 97) || (code >= 123 && code < 127);
  return is_ascii || is_punctuation(code);
}

}  // namespace

WordPiece::WordPiece(const std::filesystem::path& vocabulary, int64_t size, bool lowercase, int64_t max_chars_per_word)
    : lowercase_(lowercase), max_chars_per_word_(max_chars_per_word) {
  std::ifstream file(vocabulary, std::ios::binary);
  if (!file) throw BundleError(vocabulary.string() + " cannot be read");
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) vocabulary_[line] = count++;
  if (count != size) {
    throw BundleError(vocabulary.string() + " has " + std::to_string(count) + " tokens, vocabulary_size is " + std::to_string(size));
  }
  unknown_ = special("[UNK]");
  start_ = special("[CLS]");
  end_ = special("[SEP]");
  pad_ = special("[PAD]");
}

int64_t WordPiece::special(const char* token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) throw BundleError(std::string("the vocabulary has no token ") + token);
  return found->second;
}

std::vector<int64_t> WordPiece::encode(std::string_view text, int64_t max_length) const {
  std::vector<int64_t> ids{start_};
  std::u32string word;
  const auto flush = [&] {
    if (!word.empty()) add_word(word, ids);
    word.clear();
  };
  for (const char32_t code : from_utf8(text)) {
    if (code == ' ' || code == '\t' || code == '\n' || code == '\r' || is_space(code)) {
      flush();
    } else if (code == 0xFFFD || is_control(code)) {
      continue;
    } else if (is_ideograph(code)) {
      flush();
      word = code;
      flush();
    } else if (code == 0x2028 || code == 0x2029) {
      // Separators of lines and paragraphs, at which Python splits too.
      flush();
    } else {
      word += code;
    }
  }
  flush();
  ids.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(ids), max_length - 1)));
  ids.push_back(end_);
  return ids;
}

void WordPiece::add_word(std::u32string_view word, std::vector<int64_t>& ids) const {
  const std::u32string text = lowercase_ ? plain_lower(word) : std::u32string(word);
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!splits(text[i])) continue;
    if (start < i) add_pieces(std::u32string_view(text).substr(start, i - start), ids);
    add_pieces(std::u32string_view(text).substr(i, 1), ids);
    start = i + 1;
  }
  if (start < text.size()) add_pieces(std::u32string_view(text).substr(start), ids);
}

void WordPiece::add_pieces(std::u32string_view word, std::vector<int64_t>& ids) const {
  if (std::ssize(word) > max_chars_per_word_) {
    ids.push_back(unknown_);
    return;
  }
  std::string bytes;
  std::vector<size_t> offsets{0};
  for (const char32_t code : word) {
    append_utf8(bytes, code);
    offsets.push_back(bytes.size());
  }
  std::vector<int64_t> pieces;
  for (size_t start = 0; start < word.size();) {
    size_t end = word.size();
    auto found = vocabulary_.end();
    for (; end > start; --end) {
      const std::string piece = bytes.substr(offsets[start], offsets[end] - offsets[start]);
      found = vocabulary_.find(start > 0 ? kContinued + piece : piece);
      if (found != vocabulary_.end()) break;
    }
    if (found == vocabulary_.end()) {
      ids.push_back(unknown_);
      return;
    }
    pieces.push_back(found->second);
    start = end;
  }
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

Operator make_word_piece(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                         const OperatorContext& context) {
  parameters.expect_keys({"vocabulary", "vocabulary_size", "lowercase", "lengths", "symbol", "max_chars_per_word"});
  if (!step.is_request) throw BundleError(parameters.place() + ": word_piece has scope batch, expected request");
  if (inputs[0].dtype != Dtype::kBytes || inputs[0].num_dims() != 1) {
    throw BundleError(parameters.place() + ": word_piece takes BYTES of one dim, the batch");
  }
  const size_t num_outputs = step.outputs.size();
  if (num_outputs < 2 || num_outputs > 3) throw BundleError(parameters.place() + ": word_piece has 2 or 3 outputs");
  const std::string vocabulary = parameters.at("vocabulary").path();
  if (vocabulary.rfind("assets/", 0) != 0) parameters.at("vocabulary").fail("a path under assets/");
  const int64_t size = parameters.at("vocabulary_size").integer(1, kMaxSize);
  const std::vector<int64_t> lengths = read_lengths(parameters);
  if (lengths.back() < 2) parameters.at("lengths").fail("a length that holds [CLS] and [SEP]");
  const auto tokenizer = std::make_shared<const WordPiece>(context.folder / vocabulary, size, parameters.at("lowercase").boolean(),
                                                           parameters.at("max_chars_per_word").integer(1, kMaxSize));
  Operator made;
  const std::vector<Dim> dims = {inputs[0].dims[0], read_padded_dim(parameters, lengths, context.symbols)};
  for (const int64_t below : {size, int64_t{2}, int64_t{1}}) {
    if (made.outputs.size() < num_outputs) made.outputs.push_back({Dtype::kInt64, dims, 0, IndexRange{0, {below}}});
  }
  made.run = [tokenizer, lengths, num_outputs](std::span<const Tensor* const> given) {
    std::vector<std::vector<int64_t>> rows;
    size_t longest = 0;
    for (const std::string& text : given[0]->strings) {
      rows.push_back(tokenizer->encode(text, lengths.back()));
      longest = std::max(longest, rows.back().size());
    }
    const int64_t length = *std::lower_bound(lengths.begin(), lengths.end(), static_cast<int64_t>(longest));
    std::vector<Tensor> results;
    for (size_t i = 0; i < num_outputs; ++i) {
      results.push_back(make_tensor(Dtype::kInt64, {std::ssize(rows), length}));
      std::fill_n(results[i].as<int64_t>(), rows.size() * static_cast<size_t>(length), i == 0 ? tokenizer->pad() : 0);
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      std::copy(rows[row].begin(), rows[row].end(), results[0].as<int64_t>() + static_cast<int64_t>(row) * length);
      std::fill_n(results[1].as<int64_t>() + static_cast<int64_t>(row) * length, rows[row].size(), 1);
    }
    return results;
  };
  return made;
}

}  // namespace trunnion::bundle
