"""From a checkpoint's tensors to a model's parameters: sources, name maps, the loader and its report."""
