"""Load tests, the starvation ladder, and what tells why a GPU idles."""
