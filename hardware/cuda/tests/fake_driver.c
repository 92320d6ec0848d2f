// A CUDA driver that runs nothing: it keeps what the last module, function and launch were, for a test to read.
#include <string.h>

static char module, function;
static unsigned char image[1 << 20];
static char name[256];
static unsigned dims[7];
static void *stream_of_launch;
static long long values[64];
static int num_loads, num_launches, shared_limit, sizes[64], num_params;

// How many bytes each parameter of the next launch has, as its kernel's header says.
void fake_expect(const int *expected, int count) {
    num_params = count;
    memcpy(sizes, expected, sizeof(int) * count);
}

int cuModuleLoadData(void **out, const void *data) {
    const unsigned char *bytes = data;
    // The section headers end an ELF file of a cubin, or the program headers behind them.
    memcpy(image, bytes, 64);
    *out = &module;
    ++num_loads;
    return 0;
}

int cuModuleGetFunction(void **out, void *from, const char *wanted) {
    if (from != &module) return 400;
    strncpy(name, wanted, sizeof name - 1);
    *out = &function;
    return 0;
}

int cuFuncSetAttribute(void *of, int attribute, int value) {
    if (of != &function || attribute != 8) return 1;
    shared_limit = value;
    return 0;
}

int cuLaunchKernel(void *of, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
    if (of != &function || extra) return 400;
    unsigned given[7] = {gx, gy, gz, bx, by, bz, shared};
    memcpy(dims, given, sizeof dims);
    stream_of_launch = stream;
    memset(values, 0, sizeof values);
    for (int i = 0; i < num_params; ++i) memcpy(&values[i], params[i], sizes[i]);
    ++num_launches;
    return 0;
}

const unsigned char *fake_image(void) { return image; }
const char *fake_name(void) { return name; }
const unsigned *fake_dims(void) { return dims; }
const long long *fake_values(void) { return values; }
void *fake_stream(void) { return stream_of_launch; }
int fake_count(int what) { return what == 0 ? num_loads : what == 1 ? num_launches : shared_limit; }
