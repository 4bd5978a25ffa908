//! Tests of INFO, its error counters and the log, compared with Valkey.

mod errors_beside_valkey;
mod info;
mod info_beside_valkey;
mod log_formats;
mod log_words;
