"""The interfaces between the common package and its parts: hardware packages, groups, methods, models."""
