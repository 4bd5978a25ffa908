//! Formats log lines as Valkey does.
//!
//! | `log-format` | format |
//! | --- | --- |
//! | `legacy` | `pid:role time mark message`; the mark is `.` debug, `-` verbose, `*` notice, `#` warning |
//! | `logfmt` | `pid=1 role=primary timestamp="..." level=notice message="..."` |
//! | `json` | an object with the same names |
//!
//! In the `logfmt` and `json` formats every message is a single line.

use config::{LogFormat, LogTimestamp};
use time::OffsetDateTime;
use time::macros::format_description;

/// One log message with its metadata.
pub(super) struct LogLine<'a> {
    pub(super) pid: u32,
    /// The role letter: M for a master, S for a replica, X for a sentinel.
    pub(super) role: char,
    pub(super) time: OffsetDateTime,
    /// The level from 0 (debug) to 3 (warning).
    pub(super) level_index: u8,
    pub(super) message: &'a str,
}

impl LogLine<'_> {
    /// Formats the message, including the line break.
    pub(super) fn format(&self, format: LogFormat, timestamp: LogTimestamp) -> String {
        let Self { pid, message, .. } = self;
        let (when, role, level) = (self.timestamp(timestamp), self.role_name(), self.level_name());
        match format {
            LogFormat::Legacy => format!("{pid}:{} {when} {} {message}\n", self.role, self.level_mark()),
            LogFormat::Logfmt => {
                let message = message.replace('"', "'").replace(['\n', '\r'], " ");
                format!("pid={pid} role={role} timestamp=\"{when}\" level={level} message=\"{message}\"\n")
            }
            LogFormat::Json => {
                let message = serde_json::Value::from(*message);
                format!(
                    "{{\"pid\":{pid},\"role\":\"{role}\",\"timestamp\":\"{when}\",\"level\":\"{level}\",\
                     \"message\":{message}}}\n"
                )
            }
        }
    }

    fn timestamp(&self, format: LogTimestamp) -> String {
        let when = match format {
            LogTimestamp::Legacy => self.time.format(format_description!(
                "[day] [month repr:short] [year] [hour]:[minute]:[second].[subsecond digits:3]"
            )),
            LogTimestamp::Iso8601 => self.time.format(format_description!(
                "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3][offset_hour sign:mandatory]:[offset_minute]"
            )),
            LogTimestamp::Milliseconds => Ok((self.time.unix_timestamp_nanos() / 1_000_000).to_string()),
        };
        // Formatting cannot fail, because these formats use only components that every date has.
        when.unwrap_or_default()
    }

    fn role_name(&self) -> &'static str {
        match self.role {
            'S' => "replica",
            'X' => "sentinel",
            _ => "primary",
        }
    }

    fn level_name(&self) -> &'static str {
        ["debug", "info", "notice", "warning"][usize::from(self.level_index.min(3))]
    }

    fn level_mark(&self) -> char {
        ['.', '-', '*', '#'][usize::from(self.level_index.min(3))]
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn line(message: &str) -> LogLine<'_> {
        let when = datetime!(2026-11-24 15:18:20.508 +5:30);
        LogLine { pid: 7, role: 'S', time: when, level_index: 3, message }
    }

    #[test]
    fn formats_lines_as_valkey_does() {
        use LogFormat::{Json, Legacy, Logfmt};
        use LogTimestamp::{Iso8601, Legacy as Old, Milliseconds};
        let table = [
            ((Legacy, Old), "7:S 24 Nov 2026 15:18:20.508 # bye\n"),
            ((Legacy, Iso8601), "7:S 2026-11-24T15:18:20.508+05:30 # bye\n"),
            ((Legacy, Milliseconds), "7:S 1795513700508 # bye\n"),
            (
                (Logfmt, Old),
                "pid=7 role=replica timestamp=\"24 Nov 2026 15:18:20.508\" level=warning message=\"bye\"\n",
            ),
            (
                (Json, Iso8601),
                "{\"pid\":7,\"role\":\"replica\",\"timestamp\":\"2026-11-24T15:18:20.508+05:30\",\
                 \"level\":\"warning\",\"message\":\"bye\"}\n",
            ),
        ];
        for ((format, timestamp), expected) in table {
            assert_eq!(line("bye").format(format, timestamp), expected, "{format:?} {timestamp:?}");
        }
    }

    #[test]
    fn messages_with_line_breaks_stay_on_one_line() {
        let message = "a \"b\" \\c\r\nd\u{1}\u{e9}";
        let json = line(message).format(LogFormat::Json, LogTimestamp::Milliseconds);
        assert_eq!(json.lines().count(), 1);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["message"], message);
        let logfmt = line(message).format(LogFormat::Logfmt, LogTimestamp::Milliseconds);
        assert!(logfmt.ends_with("message=\"a 'b' \\c  d\u{1}\u{e9}\"\n"), "{logfmt}");
    }
}
