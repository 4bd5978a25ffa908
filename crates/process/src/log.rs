//! Logging: filters messages by level, and writes them to a file, standard output or syslog. Module `line` formats
//! them.
//!
//! Levels are those of Redis: debug (TRACE), verbose (DEBUG), notice (INFO) and warning (WARN and ERROR). The level,
//! the format and the role letter (M master, S replica, X sentinel) can change at run time.

mod line;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use time::{OffsetDateTime, UtcOffset};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::paths;
use config::{Config, LogFormat, LogLevel, LogTimestamp, SyslogFacility, Values, keys};
use line::LogLine;

/// Crates whose messages of all levels are logged. Other crates log warnings only.
const LOGGING_CRATES: [&str; 5] = ["durability", "net", "node", "process", "sentinel_server"];

static MIN_LEVEL: AtomicU8 = AtomicU8::new(2);
static LOG_ROLE: AtomicU8 = AtomicU8::new(b'M');
static LOG_FORMAT: RwLock<(LogFormat, LogTimestamp)> = RwLock::new((LogFormat::Legacy, LogTimestamp::Legacy));

/// Sets the line format and the timestamp format (`log-format`, `log-timestamp-format`).
pub fn set_format(values: &Values) {
    let form = (values[keys::LOG_FORMAT], values[keys::LOG_TIMESTAMP_FORMAT]);
    *LOG_FORMAT.write().unwrap_or_else(PoisonError::into_inner) = form;
}

/// Sets the level below which messages are not logged (`loglevel`).
pub fn set_level(level: LogLevel) {
    let level_index = match level {
        LogLevel::Debug => 0,
        LogLevel::Verbose => 1,
        LogLevel::Notice => 2,
        LogLevel::Warning => 3,
        LogLevel::Nothing => 4,
    };
    MIN_LEVEL.store(level_index, Ordering::Relaxed);
}

/// Sets the role letter shown in log lines: `M` for a master, `S` for a replica, `X` for a sentinel.
pub fn set_role_letter(letter: u8) {
    LOG_ROLE.store(letter, Ordering::Relaxed);
}

/// Starts logging to the configured destinations. Must be called before any thread starts, because the local time zone
/// can only be read safely then.
///
/// # Errors
/// The log file cannot be opened, or the syslog socket cannot be created.
pub fn start_logging(config: &Config) -> std::io::Result<()> {
    let sink = match config.get(keys::LOGFILE) {
        None => LogSink::Stdout,
        Some(path) => LogSink::File(LogFile::open(path.to_string().into())?),
    };
    set_format(&config.values());
    let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
    let syslog = config.get(keys::SYSLOG_ENABLED).then(|| Syslog::open(config)).transpose()?;
    let layer = LogLayer { sink: Mutex::new(sink), syslog, offset, pid: std::process::id() };
    // Tests start several servers in one process, where the first subscriber stays.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
    Ok(())
}

/// The destination of log lines.
enum LogSink {
    Stdout,
    File(LogFile),
}

impl LogSink {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().write_all(line),
            Self::File(file) => file.write(line),
        }
    }
}

/// A log file that another program may rotate. If the file was moved or removed, the next line creates a new file.
struct LogFile {
    path: PathBuf,
    file: File,
    /// Device and inode of the open file.
    device: u64,
    inode: u64,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = paths::open_log_file(&path)?;
        let metadata = file.metadata()?;
        Ok(Self { path, file, device: metadata.dev(), inode: metadata.ino() })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let there = std::fs::metadata(&self.path);
        let same = there.is_ok_and(|there| (there.dev(), there.ino()) == (self.device, self.inode));
        // If no new file can be created, continue with the old one.
        if !same && let Ok(new) = Self::open(self.path.clone()) {
            *self = new;
        }
        self.file.write_all(line)
    }
}

/// The datagram socket of the local syslog daemon (RFC 3164). The daemon need not be running.
struct Syslog {
    socket: UnixDatagram,
    /// The facility code times eight, as in the protocol.
    facility: u8,
    name: String,
}

impl Syslog {
    fn open(config: &Config) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        let facility = facility_code(config.get(keys::SYSLOG_FACILITY));
        Ok(Self { socket, facility: facility * 8, name: config.get(keys::SYSLOG_IDENT).to_string() })
    }

    fn send(&self, level_index: u8, pid: u32, message: &str) {
        // Syslog severities of the levels debug, verbose, notice and warning.
        let severity = [7, 6, 5, 4][usize::from(level_index.min(3))];
        let line = format!("<{}>{}[{pid}]: {message}", self.facility + severity, self.name);
        // An error is ignored, since a missing log must not stop the server.
        let _ = self.socket.send_to(line.as_bytes(), "/dev/log");
    }
}

/// The facility's code in the syslog protocol.
fn facility_code(facility: SyslogFacility) -> u8 {
    match facility {
        SyslogFacility::User => 1,
        SyslogFacility::Local0 => 16,
        SyslogFacility::Local1 => 17,
        SyslogFacility::Local2 => 18,
        SyslogFacility::Local3 => 19,
        SyslogFacility::Local4 => 20,
        SyslogFacility::Local5 => 21,
        SyslogFacility::Local6 => 22,
        SyslogFacility::Local7 => 23,
    }
}

struct LogLayer {
    sink: Mutex<LogSink>,
    syslog: Option<Syslog>,
    offset: UtcOffset,
    pid: u32,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level_index = match *event.metadata().level() {
            Level::TRACE => 0,
            Level::DEBUG => 1,
            Level::INFO => 2,
            Level::WARN | Level::ERROR => 3,
        };
        let source = event.metadata().target().split("::").next();
        let ours = source.is_some_and(|source| LOGGING_CRATES.contains(&source));
        if level_index < MIN_LEVEL.load(Ordering::Relaxed) || (!ours && level_index < 3) {
            return;
        }
        let mut message = MessageVisitor::default();
        event.record(&mut message);
        if let Some(syslog) = &self.syslog {
            syslog.send(level_index, self.pid, message.0.trim_start());
        }
        let line = LogLine {
            pid: self.pid,
            role: char::from(LOG_ROLE.load(Ordering::Relaxed)),
            time: OffsetDateTime::now_utc().to_offset(self.offset),
            level_index,
            message: message.0.trim_start(),
        };
        let (format, timestamp) = *LOG_FORMAT.read().unwrap_or_else(PoisonError::into_inner);
        let line = line.format(format, timestamp);
        // An error is ignored, since a missing log must not stop the server.
        let _ = self.sink.lock().unwrap_or_else(PoisonError::into_inner).write(line.as_bytes());
    }
}

/// Collects an event's message, followed by its other fields as `name=value`.
#[derive(Default)]
struct MessageVisitor(String);

impl Visit for MessageVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}{}", self.0);
        } else {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}

/// Logs the lines that every process begins with. Tools search for these texts.
pub fn log_startup(mode: &str, port: u16) {
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::info!("Redoubt {version} is starting, PID: {pid}, port {port}");
    tracing::info!(
        "Redoubt version={version}, bits={}, commit=00000000, pid={pid}, just started",
        usize::BITS
    );
    tracing::info!("Configuration loaded");
    tracing::info!("Running mode={mode}, port={port}.");
}
