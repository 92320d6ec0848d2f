#include "bundle/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "bundle/errors.h"

namespace trunnion::bundle {
namespace {

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
      throw std::runtime_error("SHA-256 is not available");
    }
  }
  void update(const char* data, size_t size) { EVP_DigestUpdate(context_.get(), data, size); }
  std::string hex() {
    std::array<unsigned char, 32> bytes{};
    EVP_DigestFinal_ex(context_.get(), bytes.data(), nullptr);
    std::string text;
    for (const unsigned char byte : bytes) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256(std::string_view bytes) {
  Digest digest;
  digest.update(bytes.data(), bytes.size());
  return digest.hex();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BundleError(path.string() + " cannot be read");
  Digest digest;
  std::vector<char> block(1 << 20);
  while (file) {
    file.read(block.data(), std::ssize(block));
    digest.update(block.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) throw BundleError(path.string() + " cannot be read to its end");
  return digest.hex();
}

}  // namespace trunnion::bundle
