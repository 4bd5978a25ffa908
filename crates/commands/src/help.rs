//! The HELP subcommand of all container commands.

use engine::Context;
use resp::Writer;

/// Replies to HELP of the container command `container`. `lines` contains each subcommand with its arguments, followed
/// by its description indented by four spaces.
pub(super) fn reply_help(context: &mut Context<'_>, container: &str, lines: &[&str]) {
    write_help(&mut context.reply, container, lines);
}

/// Like [`reply_help`], for callers that have a reply buffer without a context.
pub(super) fn write_help(reply: &mut Writer<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Prints this help.");
}
