//! The HELP subcommand of every container.

use engine::Context;
use resp::Writer;

/// Replies with what `container` can do: `lines` has each subcommand with its arguments, and under it,
/// indented by four spaces, what it does.
pub(super) fn reply_help(context: &mut Context<'_>, container: &str, lines: &[&str]) {
    write_help(&mut context.reply, container, lines);
}

/// The same, into any reply.
pub(super) fn write_help(reply: &mut Writer<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Prints this help.");
}
