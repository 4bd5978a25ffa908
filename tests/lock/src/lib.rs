//! What the tests of locks share.
#![forbid(unsafe_code)]
