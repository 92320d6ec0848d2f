"""Whether and how a checkpoint will run, from its configuration and the headers of its files: no tensor is read."""
