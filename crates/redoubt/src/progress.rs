//! Shows progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};

const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub(crate) enum ProgressUnit {
    Bytes,
    Keys,
}

impl ProgressUnit {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            Self::Keys => "{bar:40} {human_pos} of {human_len} keys, {eta} left",
        }
    }

    fn format_line(self, bar: &ProgressBar) -> String {
        let (done, all) = (bar.position(), bar.length().unwrap_or_default());
        let left = HumanDuration(bar.eta());
        match self {
            Self::Bytes => format!("{} of {}, {left} left", HumanBytes(done), HumanBytes(all)),
            Self::Keys => format!("{} of {} keys, {left} left", HumanCount(done), HumanCount(all)),
        }
    }
}

/// Creates a progress bar, which is shown until it is finished unless `hidden`.
pub(crate) fn new_progress_bar(unit: ProgressUnit, length: u64, is_hidden: bool) -> ProgressBar {
    if is_hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(unit.template());
    let bar = ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    if !io::stderr().is_terminal() {
        let bar = bar.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(PROGRESS_LINE_INTERVAL);
                if bar.is_finished() {
                    return;
                }
                eprintln!("{}", unit.format_line(&bar));
            }
        });
    }
    bar
}
