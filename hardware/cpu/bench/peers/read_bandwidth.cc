// Reads a buffer that no cache holds with some threads, and prints the bytes per second of the fastest of some passes.
// Its pages are large where the system gives such, as engines ask for them too.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr int kPasses = 8;

// Sums in eight places, so that no addition waits for the one before.
std::uint64_t read(const std::uint64_t *values, std::size_t count) {
  std::uint64_t sums[64] = {};
  for (std::size_t index = 0; index + 64 <= count; index += 64)
    for (int lane = 0; lane < 64; ++lane) sums[lane] += values[index + lane];
  std::uint64_t total = 0;
  for (std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

int main(int, char **arguments) {
  const std::size_t threads = std::strtoul(arguments[1], nullptr, 10);
  constexpr std::size_t kCount = kBytes / sizeof(std::uint64_t);
  auto *values = static_cast<std::uint64_t *>(std::aligned_alloc(kLargePage, kBytes));
  if (values == nullptr) return 1;
#ifdef __linux__
  madvise(values, kBytes, MADV_HUGEPAGE);
#endif
  for (std::size_t index = 0; index < kCount; ++index) values[index] = index;
  const std::size_t share = kCount / threads;
  double best = 0;
  std::uint64_t check = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::uint64_t> sums(threads);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> helpers;
    for (std::size_t index = 0; index < threads; ++index)
      helpers.emplace_back([&, index] { sums[index] = read(values + index * share, share); });
    for (auto &helper : helpers) helper.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    for (std::uint64_t sum : sums) check += sum;
    const double rate = static_cast<double>(share * threads * sizeof(std::uint64_t)) / seconds.count();
    if (rate > best) best = rate;
  }
  // The sum is printed so that it is computed.
  std::printf("%.0f %llu\n", best, static_cast<unsigned long long>(check));
}
