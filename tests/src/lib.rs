//! Integration tests; see `tests/`.
