"""The version of weft, from which the package metadata is built."""

VERSION = "0.1.0"
