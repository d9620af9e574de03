"""The write-ahead log in segment files; `docs/formats/log.md` draws every byte."""
