//! Tests of command lookup by name.

use engine::{Group, LockScope, LogRole, RenameError};

#[test]
fn single_key_command_locks_one_slot() {
    let registry = crate::server_registry();
    let mut with_key = registry.commands().iter().filter(|entry| entry.single_key.is_some());
    assert!(with_key.all(|entry| entry.command.lock_scope == LockScope::Keys));
}

/// A slot migration ends if such a command is logged, because the command may change the migrating keys.
#[test]
fn roles_in_the_log_belong_to_these_commands() {
    let registry = crate::server_registry();
    let names = |role: LogRole| {
        let with_role = registry.commands().iter().filter(|entry| entry.command.log_role == role);
        with_role.map(|entry| entry.full_name.as_str()).collect::<Vec<&str>>()
    };
    assert_eq!(names(LogRole::ChangesUnnamedKeys), ["flushall", "flushdb", "swapdb"]);
    assert_eq!(names(LogRole::BeginTransaction), ["multi"]);
    assert_eq!(names(LogRole::EndTransaction), ["exec"]);
    assert_eq!(names(LogRole::SelectDb), ["select"]);
    assert_eq!(names(LogRole::KeepAlive), ["ping"]);
}

/// The engine reloads the session's state only after commands without keys, so no other command may change the state.
#[test]
fn single_key_commands_do_not_change_session() {
    for entry in crate::server_registry().commands().iter().filter(|entry| entry.single_key.is_some()) {
        let of_session = matches!(entry.command.group, Group::Connection | Group::Transactions);
        assert!(!of_session, "{}", entry.full_name);
    }
}

/// `rename-command`: a renamed command is found only by its new name and is otherwise unchanged.
#[test]
fn renamed_command_is_found_only_by_new_name() {
    let mut registry = crate::server_registry().clone();
    let get = registry.find(b"get").unwrap();
    registry.rename("GET", "Take-It").unwrap();
    registry.rename("config", "").unwrap();
    registry.rename("client", "kunde").unwrap();
    assert_eq!(registry.rename("get", "x"), Err(RenameError::NoSuchCommand));
    assert_eq!(registry.rename("client|list", "x"), Err(RenameError::NoSuchCommand));
    assert_eq!(registry.clone().rename("hget", "SET"), Err(RenameError::NameTaken));
    registry.rename("hget", "get").unwrap();

    let found = registry.find(b"TAKE-IT").unwrap();
    assert_eq!((found.index, found.full_name.as_str(), found.single_key), (get.index, "get", Some(1)));
    assert!(std::ptr::eq(registry.commands()[get.index], found));
    assert_eq!(registry.find(b"get").unwrap().full_name, "hget");
    assert!(registry.find(b"config").is_none() && registry.find(b"client").is_none());
    assert_eq!(registry.find_by_full_name(b"kunde|list").unwrap().full_name, "client|list");
    assert_eq!(registry.top_level().len(), crate::server_registry().top_level().len() - 1);
    let request: resp::Request = ["kunde", "nosuch"].into_iter().collect();
    let error = registry.resolve(request.args()).unwrap_err().to_string();
    assert_eq!(error, "ERR unknown subcommand 'nosuch'. Try KUNDE HELP.");
}

#[test]
fn command_lookup_is_case_insensitive_and_exact() {
    let registry = crate::server_registry();
    for entry in registry.top_level() {
        let name = entry.command.name;
        assert_eq!(registry.find(name.as_bytes()).unwrap().index, entry.index, "{name}");
        assert_eq!(registry.find(name.to_uppercase().as_bytes()).unwrap().index, entry.index, "{name}");
        assert!(registry.find(&name.as_bytes()[1..]).is_none_or(|other| other.index != entry.index));
    }
    for name in [&b""[..], b"ge", b"gets", b"ge\0", b"get ", b"\xffet", b"GE\x14"] {
        assert!(registry.find(name).is_none(), "{name:?}");
    }
}
