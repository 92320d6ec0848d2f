"""The command line: generate, chat, check, port, models, env and others. Nothing else of trunnion imports it."""
