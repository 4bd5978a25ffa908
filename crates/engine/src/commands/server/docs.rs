//! COMMAND DOCS: what commands are for.

use resp::{Args, Writer};

use crate::lookup::{Registered, Registry};

pub(super) fn docs(registry: &Registry, args: Args<'_>, reply: &mut Writer<'_>) {
    let chosen: Vec<_> = if args.len() == 2 {
        registry.top().to_vec()
    } else {
        // What does not exist is left out.
        args.from(2).iter().filter_map(|name| registry.find_full(name)).collect()
    };
    reply_docs(reply, &chosen);
}

fn reply_docs(reply: &mut Writer<'_>, entries: &[&'static Registered]) {
    reply.map(entries.len());
    for entry in entries {
        let (command, subcommands) = (entry.command, entry.shown_subcommands());
        reply.bulk(entry.full_name.as_bytes());
        reply.map(if subcommands.is_empty() { 3 } else { 4 });
        for (name, value) in
            [("summary", command.summary), ("since", command.since), ("group", command.group.name())]
        {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        if !subcommands.is_empty() {
            reply.bulk(b"subcommands");
            reply_docs(reply, subcommands);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn documents_nest_like_the_commands() {
        let mut client = Client::new();
        client.table(&[(
            "command docs get nosuch",
            "*2|$3|get|*6|$7|summary|$34|Returns the string value of a key.|$5|since|$5|1.0.0|$5|group|$6|string",
        )]);
        let object = client.wire("command docs object");
        assert!(object.contains("$11\r\nsubcommands\r\n*") && object.contains("object|encoding"), "{object}");
    }
}
