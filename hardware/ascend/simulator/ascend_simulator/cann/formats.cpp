// How large a tensor becomes in another layout of memory, which torch_npu asks for before it makes one.
#include "errors.h"
#include "tensors.h"

namespace {

constexpr int64_t BLOCK_ROWS = 16;
constexpr int64_t BLOCK_COLUMNS = 16;
// Of elements of one byte: a row of a block has 32 bytes.
constexpr int64_t BLOCK_COLUMNS_OF_BYTES = 32;

// [.., m, n] -> [.., n1, m1, m0, n0].
std::vector<int64_t> fractal_sizes(const std::vector<int64_t>& sizes, aclDataType dtype) {
    const int64_t columns = dtype == ACL_INT8 || dtype == ACL_UINT8 ? BLOCK_COLUMNS_OF_BYTES : BLOCK_COLUMNS;
    const int64_t rows = sizes[sizes.size() - 2];
    const int64_t width = sizes.back();
    std::vector<int64_t> found(sizes.begin(), sizes.end() - 2);
    found.insert(found.end(),
                 {(width + columns - 1) / columns, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, BLOCK_ROWS, columns});
    return found;
}

}  // namespace

extern "C" int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* source, int format, int dtype, int64_t** sizes,
                                                        uint64_t* dims, int* actual_format) {
    return sim::guarded("aclnnNpuFormatCastCalculateSizeAndFormat", [&] {
        const bool is_fractal = format == ACL_FORMAT_FRACTAL_NZ;
        if ((!is_fractal && format != ACL_FORMAT_ND) || (is_fractal && source->sizes.size() < 2)) {
            throw sim::Fault(ACL_ERROR_INVALID_PARAM, "layout " + std::to_string(format) + " of " +
                                                          std::to_string(source->sizes.size()) +
                                                          " dimensions is not modelled");
        }
        const std::vector<int64_t> found =
            is_fractal ? fractal_sizes(source->sizes, static_cast<aclDataType>(dtype)) : source->sizes;
        *dims = found.size();
        // torch_npu deletes it.
        *sizes = new int64_t[found.size()];
        std::copy(found.begin(), found.end(), *sizes);
        *actual_format = format;
    });
}
