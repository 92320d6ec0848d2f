"""A hardware package that captures graphs on a simulated device; tests use it, nothing installs it."""
