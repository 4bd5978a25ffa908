//! Tests of INFO, its error counters and the log, compared with Valkey.

mod error_counters;
mod info;
mod info_comparison;
mod log_formats;
mod log_phrases;
