//! stub
use anyhow::Result;
use clap::Args;
/// What is asked for.
#[derive(Debug, Args)]
pub(crate) struct Options {}
pub(super) fn run(_options: &Options) -> Result<()> {
    Ok(())
}
