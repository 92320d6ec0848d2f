"""Examples: each module writes one bundle, `python -m trunnion_bundle.examples.NAME DIR`."""
