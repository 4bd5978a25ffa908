//! Implements SRANDMEMBER.

use engine::{CommandError, Context, Random};
use keyspace::{SetMember, SetRef};

use crate::sampling::{self, SamplePool, SampleReply, max_reply_bytes, parse_count};

impl<'a> SamplePool for SetRef<'a> {
    type Element = SetMember<'a>;
    type ElementName = SetMember<'a>;

    fn name(member: &SetMember<'a>) -> SetMember<'a> {
        *member
    }

    fn len(&self) -> usize {
        SetRef::len(self)
    }

    fn live_len(&self) -> usize {
        SetRef::len(self)
    }

    fn element_at_random(&self, random: u64) -> Option<SetMember<'a>> {
        SetRef::random_member(self, random)
    }

    fn for_each(&self, visit: &mut dyn FnMut(SetMember<'a>)) {
        SetRef::for_each(self, visit);
    }
}

/// Handles `SRANDMEMBER key [count]`.
pub(super) fn srandmember(context: &mut Context<'_>) -> Result<(), CommandError> {
    let count = match context.args.len() {
        2 => None,
        3 => Some(parse_count(context)?),
        _ => return Err(CommandError::Syntax),
    };
    let key = context.key(1)?;
    let found = context.read_typed::<SetRef<'_>>(&key)?;
    let (mut random, most) = (Random::new(context.random_u64()), max_reply_bytes(context));
    let (table, reply) = context.table_and_reply(&key);
    let set = found.and_then(|place| table.set(place));
    if let Some(count) = count {
        let out = SampleReply::new(
            reply,
            most,
            |reply, count| reply.array(count),
            |reply, member: SetMember<'_>| reply.bulk(&member),
        );
        return sampling::reply_random_elements(set, count, &mut random, out);
    }
    match set.and_then(|set| set.random_member(random.next_u64())) {
        Some(member) => reply.bulk(&member),
        None => reply.null(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::testing::Client;

    fn call_and_collect_members(client: &mut Client, words: &[&str]) -> Vec<Vec<u8>> {
        let reply = client.call(words);
        let members = reply.as_array().expect("a list").iter();
        members.map(|member| member.as_bytes().expect("a member").to_vec()).collect()
    }

    #[test]
    fn random_selection_returns_requested_count() {
        for (size, prefix) in [(1, ""), (7, "m"), (100, ""), (3000, ""), (3000, "m")] {
            let mut client = Client::new();
            for number in 0..size {
                client.call(&["sadd", "s", &format!("{prefix}{number}")]);
            }
            for count in [1, 2, 5, 30, 900, 3000, 5000] {
                let chosen = call_and_collect_members(&mut client, &["srandmember", "s", &count.to_string()]);
                let different: BTreeSet<_> = chosen.iter().collect();
                assert_eq!((chosen.len(), different.len()), (count.min(size), count.min(size)));
                let repeated =
                    call_and_collect_members(&mut client, &["srandmember", "s", &format!("-{count}")]);
                assert_eq!(repeated.len(), count);
            }
        }
    }

    #[test]
    fn srandmember_reply_depends_on_count() {
        Client::new().check_replies(&[
            ("sadd s a", ":1"),
            ("srandmember s", "$1|a"),
            ("srandmember s 2", "*1|$1|a"),
            ("srandmember s -2", "*2|$1|a|$1|a"),
            ("srandmember s 0", "*0"),
            ("srandmember nosuch", "$-1"),
            ("srandmember nosuch 3", "*0"),
            ("srandmember s x", "-ERR value is not an integer or out of range"),
            ("srandmember s 1 2", "-ERR syntax error"),
            ("srandmember s -9223372036854775807", "-ERR value is out of range"),
            ("scard s", ":1"),
        ]);
    }
}
