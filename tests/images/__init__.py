"""A made-up collection of images and non-images, built when the tests run: no binary files are kept."""
