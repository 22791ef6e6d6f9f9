"""Coverage-guided fuzzing of what happens to a file before the model: `make fuzz`."""
