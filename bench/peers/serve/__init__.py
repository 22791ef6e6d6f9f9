"""The model behind each peer; each module runs in its peer's own environment."""
