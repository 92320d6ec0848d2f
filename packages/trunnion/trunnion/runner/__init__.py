"""What executes a model: the executor of the contract, its persistent inputs, and tools for runners."""
