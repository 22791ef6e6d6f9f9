"""Generated from classifier.proto by `make protos`."""
