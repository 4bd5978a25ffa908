//! MULTI, EXEC, DISCARD, WATCH and UNWATCH. EXEC itself is implemented in `dispatch/transaction.rs`.

use engine::{Categories, Command, CommandError, Context, Flags, Group, LogRole};
use keyspace::KeyLookup;

use super::rows::METADATA_KEYS;

const ALLOWED_WHILE_LOADING: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
/// Flags of all commands in this group except EXEC.
const TRANSACTION_FLAGS: Flags = ALLOWED_WHILE_LOADING.union(Flags::FAST).union(Flags::ALLOW_BUSY);

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Transactions, since, arity, summary).category(Categories::TRANSACTION)
}

pub(super) const COMMANDS: &[Command] = &[
    new_command("exec", "1.2.0", 1, "Executes the commands queued since MULTI.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::SKIP_COMMANDLOG).union(Flags::NOT_QUEUED))
        .exec(),
    new_command("discard", "2.0.0", 1, "Discards the commands queued since MULTI.")
        .flags(TRANSACTION_FLAGS.union(Flags::NOT_QUEUED))
        .run(discard),
    new_command("multi", "1.2.0", 1, "Starts a transaction; the following commands are queued.")
        .flags(TRANSACTION_FLAGS.union(Flags::NO_MULTI))
        .log_role(LogRole::BeginTransaction)
        .run(multi),
    new_command("unwatch", "2.2.0", 1, "Clears all watched keys.").flags(TRANSACTION_FLAGS).run(unwatch),
    new_command("watch", "2.2.0", -2, "Makes EXEC fail if one of the keys changes before it.")
        .flags(TRANSACTION_FLAGS.union(Flags::NO_MULTI))
        .keys(METADATA_KEYS)
        .run(watch),
];

fn multi(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.session.begin_transaction();
    context.reply.ok();
    Ok(())
}

fn discard(context: &mut Context<'_>) -> Result<(), CommandError> {
    if !context.session.in_transaction() {
        return Err(CommandError::text("ERR DISCARD without MULTI"));
    }
    context.engine.discard_transaction(context.session);
    context.reply.ok();
    Ok(())
}

fn watch(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (engine, now) = (context.engine, context.now);
    for index in 1..context.args.len() {
        let key = context.key(index)?;
        let was_expired = matches!(context.table_ref(&key).find(&key, now), KeyLookup::Expired(_));
        engine.notifications.watch_key(context.session, &key, was_expired);
    }
    context.reply.ok();
    Ok(())
}

fn unwatch(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.engine.notifications.unwatch(context.session);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine::{CommandOrigin, DispatchStatus, NodeFlags, Session};

    use crate::testing::Client;

    /// WATCH must take time proportional to the number of keys, because it keeps all slots locked while it runs. A
    /// quadratic search would take 256 times as long for sixteen times the keys.
    #[test]
    fn watch_is_linear_in_number_of_keys() {
        let mut client = Client::new();
        let mut time = |keys: usize| {
            let names: Vec<String> = (0..keys).map(|key| format!("key:{key}")).collect();
            let mut words = vec!["watch"];
            words.extend(names.iter().map(String::as_str));
            let start = std::time::Instant::now();
            client.call(&words);
            let taken = start.elapsed();
            assert_eq!(client.engine.notifications.watched_key_count(), keys);
            client.call(&["unwatch"]);
            assert_eq!(
                (
                    client.engine.notifications.watched_key_count(),
                    client.engine.notifications.watching_client_count()
                ),
                (0, 0)
            );
            taken
        };
        time(5000);
        // The rounds alternate, so that other load on the machine slows both.
        let rounds = (0..5).map(|_| (time(5000), time(80_000)));
        let (few, many): (Vec<_>, Vec<_>) = rounds.unzip();
        let total = |times: &[std::time::Duration]| times.iter().sum::<std::time::Duration>();
        assert!(total(&many) < total(&few) * 100, "{few:?}, then {many:?}");
    }

    /// The commands of a batch, of its transactions and of their scripts run one after another in the same context.
    #[test]
    fn batch_with_several_transactions_and_scripts_runs_in_order() {
        let mut client = Client::with_recording_log();
        let script = "eval \"return redis.call('incrby', KEYS[1], ARGV[1])\" 1 a 10";
        let undeclared = "eval \"return redis.call('get', 'a')\" 0";
        let batch = format!(
            "set a 1\nmulti\nincr a\n{script}\nget a\nexec\nget a\nmulti\n{undeclared}\nexec\n{script}\nincr a"
        );
        client.check_replies(&[(
            &batch,
            "+OK|+OK|+QUEUED|+QUEUED|+QUEUED|*3|:2|:12|$2|12|$2|12|+OK|+QUEUED|*1|$2|12|:22|:23",
        )]);
    }

    #[test]
    fn command_may_block_after_exec_of_same_batch() {
        let mut client = Client::new();
        assert_eq!(client.run_status("multi\nblpop list 0\nexec"), DispatchStatus::Done);
        assert_eq!(client.run_status("multi\nblpop list 0\nexec\nblpop list 0"), DispatchStatus::Blocked);
    }

    #[test]
    fn exec_runs_queued_commands() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("exec", "-ERR EXEC without MULTI"),
            ("discard", "-ERR DISCARD without MULTI"),
            ("multi", "+OK"),
            ("set k 1", "+QUEUED"),
            ("incr k", "+QUEUED"),
            ("lcs k k len idx", "+QUEUED"),
            ("set e v ex 1", "+QUEUED"),
            ("dbsize", "+QUEUED"),
            ("exec", "*5|+OK|:2|-ERR If you want both the length and indexes, please just use IDX.|+OK|:2"),
            ("multi", "+OK"),
            ("set k 9", "+QUEUED"),
            ("discard", "+OK"),
            ("get k", "$1|2"),
            ("multi", "+OK"),
            ("get k", "+QUEUED"),
            ("exec", "*1|$1|2"),
            ("multi\nexec", "+OK|*0"),
            ("multi\nmulti", "+OK|-ERR Command 'multi' not allowed inside a transaction"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("multi\nwatch k", "+OK|-ERR Command 'watch' not allowed inside a transaction"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("multi", "+OK"),
            ("multi 0", "-ERR wrong number of arguments for 'multi' command"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("multi", "+OK"),
            ("watch", "-ERR wrong number of arguments for 'watch' command"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 MULTI", "0 set k 1", "0 incr k", "0 SET e v PXAT 1700000001000", "0 EXEC"]
        );
    }

    #[test]
    fn refused_command_aborts_transaction() {
        let mut client = Client::new();
        let abort = "-EXECABORT Transaction discarded because of previous errors.";
        client.check_replies(&[
            ("multi", "+OK"),
            ("set k", "-ERR wrong number of arguments for 'set' command"),
            ("set k v", "+QUEUED"),
            ("exec", abort),
            ("multi", "+OK"),
            ("nosuch", "-ERR unknown command 'nosuch', with args beginning with: "),
            ("exec", abort),
            ("multi", "+OK"),
            (
                "exec x",
                "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
            ),
            ("exec", "-ERR EXEC without MULTI"),
            ("multi", "+OK"),
            ("debug set-active-expire 1", "+QUEUED"),
            ("slowlog reset", "+QUEUED"),
            ("discard", "+OK"),
            ("get k", "$-1"),
            ("multi", "+OK"),
            ("set k v", "+QUEUED"),
        ]);
        client.engine.settings.set_node_flag(NodeFlags::READ_ONLY_REPLICA, true);
        client.check_replies(&[
            (
                "exec",
                "-EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica.",
            ),
            ("exec", "-ERR EXEC without MULTI"),
        ]);
    }

    /// Sentinel uses a transaction to give a replica a new master.
    #[test]
    fn stale_data_commands_are_allowed_in_transaction() {
        let mut client = Client::new();
        client.engine.settings.set_node_flag(NodeFlags::MASTER_DOWN, true);
        client.check_replies(&[("multi\nclient getname", "+OK|+QUEUED"), ("exec", "*1|$-1")]);
        let down = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
        client.check_replies(&[
            ("multi\nclient getname", "+OK|+QUEUED"),
            ("get k", &format!("-{down}")),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
        ]);
    }

    #[test]
    fn queued_select_changes_database() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("multi\nset a 1\nselect 1\nset a 2\nexec", "+OK|+QUEUED|+QUEUED|+QUEUED|*3|+OK|+OK|+OK"),
            ("get a", "$1|2"),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 MULTI", "0 set a 1", "0 SELECT 1", "0 set a 2", "0 SELECT 0", "0 EXEC"]
        );
    }

    /// Runs a line as another client of the same server.
    fn run_as_other_client(client: &mut Client, line: &str) {
        let mut session = Session::new(7, CommandOrigin::Client, true);
        std::mem::swap(&mut session, &mut client.session);
        client.run_to_text(line);
        std::mem::swap(&mut session, &mut client.session);
    }

    #[test]
    fn changed_watched_key_aborts_exec() {
        // Columns: the watched key, a command of another client, and whether EXEC still runs the transaction.
        let table = [
            ("k", "get k", true),
            ("k", "set k 2", false),
            ("k", "set other 2", true),
            ("k", "del k", false),
            ("nosuch", "del nosuch", true),
            ("k", "expire k 100", false),
            ("k", "flushall", false),
            ("nosuch", "flushall", true),
            ("k", "swapdb 0 1", false),
            ("k", "rename k l", false),
            ("l", "rename k l", false),
            ("k", "append k x", false),
            ("k", "set k 1 nx", true),
        ];
        for (key, change, runs) in table {
            let mut client = Client::new();
            client.run_to_text(&format!("set k 1\nwatch {key}"));
            run_as_other_client(&mut client, change);
            client.check_replies(&[
                ("multi\nping", "+OK|+QUEUED"),
                ("exec", if runs { "*1|+PONG" } else { "*-1" }),
            ]);
            client.check_replies(&[("multi\nping", "+OK|+QUEUED"), ("exec", "*1|+PONG")]);
        }
    }

    /// The removal of a watched key that had already expired before WATCH does not count as a change.
    #[test]
    fn removal_of_expired_watched_key_is_not_a_change() {
        let table = [
            ("get k", true),
            ("del k", true),
            ("flushall", true),
            ("flushdb", true),
            ("swapdb 0 1", true),
            ("swapdb 0 2", true),
            ("swapdb 0 3", false),
            ("swapdb 0 2\nset k 1", false),
            ("swapdb 0 2\nswapdb 0 3", false),
            ("set k 1", false),
            ("get k\nset k 1", false),
            ("persist k", true),
        ];
        for (change, runs) in table {
            for by_itself in [false, true] {
                let mut client = Client::new();
                client.run_to_text("set k 1 px 10\nselect 2\nset k 1 px 10\nselect 3\nset k 1\nselect 0");
                client.now.0 += 10;
                client.run_to_text("watch k");
                if by_itself {
                    client.run_to_text(change);
                } else {
                    run_as_other_client(&mut client, change);
                }
                let reply = if runs { "*1|+PONG" } else { "*-1" };
                client.check_replies(&[("multi\nping", "+OK|+QUEUED"), ("exec", reply)]);
            }
        }
    }

    #[test]
    fn swap_of_missing_key_for_expired_key_is_not_a_change() {
        let mut client = Client::new();
        client.run_to_text("select 2\nset k 1 px 10\nselect 0\nwatch k");
        client.now.0 += 10;
        run_as_other_client(&mut client, "swapdb 0 2");
        client.check_replies(&[("multi\nping", "+OK|+QUEUED"), ("exec", "*1|+PONG")]);
    }

    #[test]
    fn unwatch_and_expiry_affect_watched_keys() {
        let mut client = Client::new();
        client.run_to_text("set k 1 px 10\nwatch k\nunwatch");
        run_as_other_client(&mut client, "set k 2 px 10");
        client.check_replies(&[("multi\nping\nexec", "+OK|+QUEUED|*1|+PONG"), ("watch k", "+OK")]);
        client.now.0 += 10;
        client.check_replies(&[("multi\nping\nexec", "+OK|+QUEUED|*-1")]);
    }
}
