"""The version, written once: the package's metadata is built from it."""

VERSION = "0.1.0"
