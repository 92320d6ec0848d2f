"""trunnion on CPUs: the embedded default, torch operators only."""
