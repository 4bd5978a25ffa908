//! Generates shell completions and manual pages from the clap definitions.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;

/// Writes the script that completes the program's arguments in this shell.
pub(crate) fn write_completions(mut program: Command, shell: Shell, out: &mut dyn Write) {
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, &mut &mut *out);
}

/// Writes `redoubt.1`, and a page for each subcommand (`redoubt-lock.1`).
///
/// # Errors
/// The folder cannot be written to.
pub(crate) fn write_manual_pages(program: Command, folder: &Path) -> Result<()> {
    let shown = folder.display();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {shown}"))?;
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
        .with_context(|| format!("cannot write to {shown}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    use super::*;
    use crate::Cli;

    /// Returns the names of the subcommands that the help lists.
    fn visible_subcommands() -> Vec<String> {
        let program = Cli::command();
        let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
        shown.map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn every_shell_completes_every_subcommand() {
        for shell in Shell::value_variants() {
            let mut text = Vec::new();
            write_completions(Cli::command(), *shell, &mut text);
            let text = String::from_utf8(text).unwrap();
            for name in visible_subcommands() {
                assert!(text.contains(&name), "{shell}: {name}");
            }
        }
    }

    #[test]
    fn every_subcommand_has_its_page() {
        let folder = tempfile::tempdir().unwrap();
        write_manual_pages(Cli::command(), folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let main = read("redoubt.1");
        for name in visible_subcommands() {
            assert!(main.contains(&name.replace('-', "\\-")), "{name} is not on the first page");
            assert!(read(&format!("redoubt-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
        }
        assert!(!folder.path().join("redoubt-manual-pages.1").exists(), "what is hidden has no page");
    }
}
