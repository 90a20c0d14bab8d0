"""The commands of `fencepost`. What is slow to import is imported inside of them: `--help` should be quick."""
