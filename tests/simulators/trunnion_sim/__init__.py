"""A hardware package that captures graphs on a simulated device; tests use it, nothing installs it."""

SIMULATED = "ran on the capture simulator: graphs are recorded and replayed on the CPU, and computed by the reference"
NOT_VERIFIED = (
    "any kernel, driver or speed",
    "races: streams are one queue",
    "host memory in kernels: host and device are one address space",
)
