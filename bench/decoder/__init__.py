"""The second published case: a 135 M-parameter decoder that writes 48 tokens a second where thousands would fit."""
