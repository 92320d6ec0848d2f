"""What the first-day scripts of all devices share."""
