"""JPEGs decoded by a GPU: the libraries beside each other, and the whole way in one process."""
