//! The append-only file's fields in INFO.

use std::fmt::Write;
use std::time::Duration;

use append_only::AofState;
use process::time;

use super::AppendOnlyFile;

impl AppendOnlyFile {
    /// Resets the counters of rewrites and delayed syncs (CONFIG RESETSTAT).
    pub fn reset_counts(&self) {
        self.state.lock().driver.reset_counts();
    }

    /// Appends the append-only file's fields to INFO's Persistence section.
    pub(crate) fn write_info(&self, text: &mut String) {
        let end = self.log.lock().position().offset;
        let now = time::monotonic_now();
        let ok = |ok: bool| if ok { "ok" } else { "err" }.to_owned();
        let flag = |flag: bool| u8::from(flag).to_string();
        let seconds = |took: Option<Duration>| took.map_or(-1, |took| took.as_secs() as i64).to_string();
        let state = self.state.lock();
        let (rewrites, status) = (state.driver.rewrites(), state.driver.status());
        let mut lines = vec![
            ("aof_enabled", flag(status.is_some())),
            ("aof_rewrite_in_progress", flag(rewrites.is_running())),
            ("aof_rewrite_scheduled", flag(rewrites.is_scheduled)),
            ("aof_last_rewrite_time_sec", seconds(rewrites.last_duration)),
            ("aof_current_rewrite_time_sec", seconds(rewrites.running_time(now))),
            ("aof_last_bgrewrite_status", ok(rewrites.was_last_successful)),
            ("aof_rewrites", rewrites.success_count.to_string()),
            ("aof_rewrites_consecutive_failures", rewrites.consecutive_failures.to_string()),
            ("aof_last_write_status", ok(status.as_ref().is_none_or(|status| !status.has_error))),
            ("aof_last_cow_size", "0".to_owned()),
        ];
        if let Some(status) = status {
            let written = status.written_offset.unwrap_or(end);
            let waits = status.state != AofState::Complete && rewrites.is_scheduled;
            lines.extend([
                ("aof_current_size", status.size.to_string()),
                ("aof_base_size", status.base_size.to_string()),
                ("aof_pending_rewrite", flag(waits)),
                ("aof_buffer_length", end.0.saturating_sub(written.0).to_string()),
                ("aof_pending_bio_fsync", "0".to_owned()),
                ("aof_delayed_fsync", status.delayed_sync_count.to_string()),
            ]);
        }
        drop(state);
        for (name, value) in lines {
            // Writing to a String cannot fail.
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }
}
