"""What families make of a `config.json`, compared with what transformers makes of it."""
