//! The process title (`set-proc-title`, `proc-title-template`), as `ps` and `/proc/PID/cmdline` show it.
//!
//! The kernel reads a process's command line from the memory that held the program's arguments at the start. The title
//! is written to that memory, so a title that is longer than the arguments is truncated. Valkey also overwrites the
//! environment behind the arguments, but the Rust standard library still reads it. The memory is reached through
//! `/proc/self/mem`; where the system forbids that, the command line stays as it is.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use config::{Config, keys};

/// A copy of the program's arguments, since the title overwrites them.
static ORIGINAL_ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Returns the program's arguments as they were at the start, beginning with the program's name. After
/// [`update_process_title`], [`std::env::args_os`] does not return them any more.
pub fn original_arguments() -> &'static [OsString] {
    ORIGINAL_ARGUMENTS.get_or_init(|| std::env::args_os().collect())
}

/// Sets the title from the configuration. Does nothing with `set-proc-title no`.
pub fn update_process_title(config: &Config, config_file: Option<&str>) {
    if !config.get(keys::SET_PROC_TITLE) {
        return;
    }
    let name = original_arguments().first().map(|name| name.to_string_lossy().into_owned());
    let template = config.get(keys::PROC_TITLE_TEMPLATE);
    let title = expand_template(&template, |variable| match variable {
        "title" => name.clone().unwrap_or_default(),
        "listen-addr" => listen_address(config),
        "server-mode" if config.get(keys::CLUSTER_ENABLED) => "[cluster]".to_owned(),
        "port" => config.get(keys::PORT).to_string(),
        "tls-port" => config.get(keys::TLS_PORT).to_string(),
        "unixsocket" => config.get(keys::UNIXSOCKET).map(|path| path.to_string()).unwrap_or_default(),
        "config-file" => config_file.unwrap_or("-").to_owned(),
        _ => String::new(),
    });
    if let Err(error) = write_command_line(title.as_bytes()) {
        tracing::debug!("proc-title-template: cannot set the process title: {error}");
    }
}

/// Returns the first `bind` address with the port, or the path of the unix socket if there is no port.
fn listen_address(config: &Config) -> String {
    let port = match config.get(keys::PORT) {
        0 => config.get(keys::TLS_PORT),
        port => port,
    };
    if port == 0 {
        return config.get(keys::UNIXSOCKET).map(|path| path.to_string()).unwrap_or_default();
    }
    let addresses = config.get(keys::BIND);
    format!("{}:{port}", addresses.first().map_or("*", |address| address))
}

/// Replaces the variables in braces. A doubled brace stands for one literal brace. Blanks at both ends are removed.
fn expand_template(template: &str, value_of: impl Fn(&str) -> String) -> String {
    let (mut rest, mut title) = (template, String::new());
    while let Some((text, after)) = rest.split_once('{') {
        title.push_str(text);
        if let Some(after) = after.strip_prefix('{') {
            title.push('{');
            rest = after;
            continue;
        }
        let (variable, after) = after.split_once('}').unwrap_or((after, ""));
        title.push_str(&value_of(variable));
        rest = after;
    }
    title.push_str(rest);
    title.trim_matches(' ').to_owned()
}

/// Overwrites the arguments in the memory of this process, and fills the rest of that memory with zeros.
fn write_command_line(title: &[u8]) -> io::Result<()> {
    // Copy the arguments before the title overwrites them.
    original_arguments();
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (start, end) = argument_area(&stat).ok_or(io::ErrorKind::InvalidData)?;
    let mut area = vec![0; usize::try_from(end - start).map_err(io::Error::other)?];
    // If the area does not end with a zero, the kernel reads beyond it, so the last byte stays zero.
    let len = title.len().min(area.len().saturating_sub(1));
    area[..len].copy_from_slice(&title[..len]);
    OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(&area, start)
}

/// Returns the addresses where the arguments begin and end, which are fields 48 and 49 of `/proc/PID/stat`.
fn argument_area(stat: &str) -> Option<(u64, u64)> {
    // The second field is the program's name in parentheses, which may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut addresses = fields.split_whitespace().skip(45).map(|field| field.parse().ok());
    let (start, end) = (addresses.next()??, addresses.next()??);
    (start > 0 && start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let value = |variable: &str| format!("<{variable}>");
        for (template, title) in [
            ("{title} {listen-addr} {server-mode}", "<title> <listen-addr> <server-mode>"),
            ("  x{port}y  ", "x<port>y"),
            ("{{port}", "{port}"),
            ("a {{{port}}", "a {<port>}"),
            ("plain", "plain"),
        ] {
            assert_eq!(expand_template(template, value), title, "{template}");
        }
        assert_eq!(expand_template("a {server-mode}", |_| String::new()), "a");
    }

    #[test]
    fn argument_area_is_found_behind_any_program_name() {
        let fields: Vec<String> = (3..=52).map(|number| (number * 10).to_string()).collect();
        let stat = format!("17 (a ) b) {}\n", fields.join(" "));
        assert_eq!(argument_area(&stat), Some((480, 490)));
        assert_eq!(argument_area("17 (a) S 1"), None);
    }
}
