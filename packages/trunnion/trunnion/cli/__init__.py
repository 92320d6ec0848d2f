"""The command line: generate, chat, models, env. Nothing else of trunnion imports it."""
