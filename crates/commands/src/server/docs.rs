//! COMMAND DOCS: documentation of commands.

use engine::{RegisteredCommand, Registry};
use resp::{Args, Writer};

use crate::facts::{self, ArgumentDocs, CommandDocs};

pub(super) fn docs(registry: &Registry, args: Args<'_>, reply: &mut Writer<'_>) {
    let chosen: Vec<_> = if args.len() == 2 {
        registry.top_level().to_vec()
    } else {
        // COMMAND DOCS skips names of unknown commands.
        args.skip(2).iter().filter_map(|name| registry.find_by_full_name(name)).collect()
    };
    reply_docs(reply, &chosen);
}

fn reply_docs(reply: &mut Writer<'_>, entries: &[&'static RegisteredCommand]) {
    reply.map(entries.len());
    for entry in entries {
        reply.bulk(entry.full_name.as_bytes());
        reply_command_docs(reply, entry);
    }
}

fn reply_command_docs(reply: &mut Writer<'_>, entry: &'static RegisteredCommand) {
    let (command, subcommands) = (entry.command, entry.subcommands());
    let unknown = CommandDocs::default();
    let facts = facts::find_docs(&entry.full_name).unwrap_or(&unknown);
    let texts = [
        ("summary", Some(command.summary)),
        ("since", Some(command.since)),
        ("group", Some(command.group.name())),
        ("complexity", facts.complexity),
        ("deprecated_since", facts.deprecated_since),
        ("replaced_by", facts.replaced_by),
    ];
    let lists = [
        facts.doc_flags.is_empty(),
        facts.history.is_empty(),
        facts.arguments.is_empty(),
        subcommands.is_empty(),
    ];
    reply.map(present_texts(&texts).count() + lists.into_iter().filter(|empty| !empty).count());
    reply_texts(reply, &texts);
    if !facts.doc_flags.is_empty() {
        reply_flags(reply, b"doc_flags", &facts.doc_flags);
    }
    if !facts.history.is_empty() {
        reply.bulk(b"history");
        reply.set(facts.history.len());
        for (version, text) in &facts.history {
            reply.array(2);
            reply.bulk(version.as_bytes());
            reply.bulk(text.as_bytes());
        }
    }
    if !facts.arguments.is_empty() {
        reply.bulk(b"arguments");
        reply_arguments(reply, &facts.arguments);
    }
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply_docs(reply, subcommands);
    }
}

fn reply_arguments(reply: &mut Writer<'_>, arguments: &[ArgumentDocs]) {
    reply.array(arguments.len());
    for argument in arguments {
        // A block or a choice has no display text, because the reply shows its nested arguments instead.
        let stands_for_others = ["block", "oneof"].contains(&argument.kind);
        let display = (!stands_for_others).then(|| argument.display.unwrap_or(argument.name));
        let named = [("name", Some(argument.name)), ("type", Some(argument.kind)), ("display_text", display)];
        let texts = [
            ("token", argument.token),
            ("since", argument.since),
            ("deprecated_since", argument.deprecated_since),
        ];
        let more = [argument.key_spec.is_some(), !argument.flags.is_empty(), !argument.arguments.is_empty()];
        reply.map(
            present_texts(&named).count()
                + present_texts(&texts).count()
                + more.into_iter().filter(|there| *there).count(),
        );
        reply_texts(reply, &named);
        if let Some(spec) = argument.key_spec {
            reply.bulk(b"key_spec_index");
            reply.integer(spec);
        }
        reply_texts(reply, &texts);
        if !argument.flags.is_empty() {
            reply_flags(reply, b"flags", &argument.flags);
        }
        if !argument.arguments.is_empty() {
            reply.bulk(b"arguments");
            reply_arguments(reply, &argument.arguments);
        }
    }
}

type NamedText = (&'static str, Option<&'static str>);

fn present_texts(texts: &[NamedText]) -> impl Iterator<Item = (&'static str, &'static str)> {
    texts.iter().filter_map(|(name, text)| Some((*name, (*text)?)))
}

fn reply_texts(reply: &mut Writer<'_>, texts: &[NamedText]) {
    for (name, text) in present_texts(texts) {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
}

fn reply_flags(reply: &mut Writer<'_>, name: &[u8], flags: &[&str]) {
    reply.bulk(name);
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn docs_nest_subcommands() {
        let mut client = Client::new();
        client.check_replies(&[(
            "command docs get nosuch",
            "*2|$3|get|*10|$7|summary|$34|Returns the string value of a key.|$5|since|$5|1.0.0|$5|group|$6|string\
             |$10|complexity|$4|O(1)|$9|arguments|*1|*8|$4|name|$3|key|$4|type|$3|key\
             |$12|display_text|$3|key|$14|key_spec_index|:0",
        )]);
        let object = client.run_to_text("command docs object");
        assert!(object.contains("$11\r\nsubcommands\r\n*") && object.contains("object|encoding"), "{object}");
    }
}
