use super::*;
use crate::transaction::{DeferredCommand, DeferredExec, Transaction};
use crate::waiting::{BlockedCommand, KeyWait, WaitQueues, Waiter};

fn new_session() -> Session {
    Session::new(1, CommandOrigin::Client, true)
}

/// Creates a waiter that blocks the session's client on key `k`.
fn waiter_on_key(session: &Session, deadline: Option<Millis>) -> Arc<Waiter> {
    let call = BlockedCommand {
        command_number: 0,
        request: [&b"blpop"[..], b"k", b"0"].into_iter().collect(),
        slots: smallvec::smallvec![slot_routing::Slot::of_key(b"k")],
        db: 0,
        protocol: Protocol::Resp2,
        asking: false,
        reads_from_replicas: false,
        users_version: 0,
    };
    let wait = KeyWait::new(1..2, keyspace::Kind::List, deadline, |reply| reply.null_array());
    WaitQueues::default().add(session.client(), call, wait)
}

#[test]
fn session_is_small() {
    assert!(size_of::<Session>() <= 176, "{} bytes", size_of::<Session>());
}

#[test]
fn only_an_authenticated_client_is_unrestricted() {
    let mut session = Session::new(1, CommandOrigin::Client, false);
    assert!(
        !session.is_authenticated() && !session.is_unrestricted() && !session.needs_no_special_handling()
    );
    session.permit_all(1);
    assert!(session.is_authenticated() && session.is_unrestricted() && session.needs_no_special_handling());
    session.replace_rules(None, false, 2);
    assert!(session.is_authenticated() && !session.is_unrestricted());
    assert_eq!((session.users_version(), session.user().is_none()), (2, true));
}

#[test]
fn suspended_exec_is_not_a_transaction() {
    let mut session = new_session();
    session.begin_transaction();
    assert!(session.in_transaction() && !session.needs_no_special_handling());
    assert!(session.take_transaction().is_some() && !session.in_transaction());
    let commands = vec![DeferredCommand::Pending(0, resp::Request::default())];
    session.suspend_exec(Box::new(DeferredExec { commands }));
    assert!(!session.in_transaction() && session.take_transaction().is_none());
    assert!(session.take_suspended_exec().is_some() && session.take_suspended_exec().is_none());
}

#[test]
fn queued_select_decides_database_of_next_command() {
    let mut session = new_session();
    session.begin_transaction();
    let request: resp::Request = [&b"select"[..], b"3"].into_iter().collect();
    session.queue_command(0, request.args(), Some(3));
    assert_eq!((session.db(), session.next_command_db()), (0, 3));
    session.fail_transaction();
    assert!(session.transaction().is_some_and(|transaction: &Transaction| transaction.has_failed));
    session.take_transaction();
    assert_eq!(session.next_command_db(), 0);
}

#[test]
fn retried_command_keeps_its_waiter_until_it_ends() {
    let mut session = new_session();
    let waiter = waiter_on_key(&session, Some(Millis(7)));
    session.block_on(waiter);
    assert!(session.waiter().is_some() && session.waiter_to_retry().is_none());
    assert!(
        session.take_transaction().is_none() && session.waiter().is_some(),
        "another state is left alone"
    );
    let waiter = session.take_waiter().unwrap();
    session.schedule_retry(waiter);
    assert!(session.waiter().is_none() && !session.needs_no_special_handling());
    assert_eq!(session.waiter_to_retry().and_then(|waiter| waiter.deadline()), Some(Millis(7)));
    session.block_on(waiter_on_key(&session, None));
    session.end_retry();
    assert!(session.waiter().is_some(), "it blocked once more");
}

#[test]
fn stopped_tracking_still_delivers_messages() {
    let mut session = new_session();
    session.set_tracks_reads(false);
    assert!(!session.receives_messages());
    session.set_tracks_reads(true);
    assert!(session.receives_messages() && session.tracks_reads());
    session.start_receiving_messages();
    assert!(session.tracks_reads());
    session.set_tracks_reads(false);
    assert!(session.receives_messages() && !session.tracks_reads());
}

#[test]
fn listener_state_follows_protocol_and_flags() {
    let mut session = new_session();
    assert_eq!(session.listener_state(), ListenerState::Unrestricted);
    session.start_receiving_messages();
    session.client().set_flag(ClientFlags::PUBSUB, true);
    session.client().set_flag(ClientFlags::MONITOR, true);
    assert_eq!(session.listener_state(), ListenerState::SubscriberOnly);
    session.set_protocol(Protocol::Resp3);
    assert_eq!(session.listener_state(), ListenerState::Monitor);
    session.client().set_flag(ClientFlags::MONITOR, false);
    assert_eq!(session.listener_state(), ListenerState::Unrestricted);
}

#[test]
fn reply_skip_suppresses_one_reply() {
    let mut session = new_session();
    session.set_reply_suppression(ReplySuppression::Next);
    assert!(!session.is_reply_suppressed());
    session.begin_suppression();
    assert!(session.is_reply_suppressed());
    session.end_suppression();
    assert_eq!(session.reply_suppression(), ReplySuppression::None);
    session.set_reply_suppression(ReplySuppression::All);
    session.begin_suppression();
    session.end_suppression();
    assert!(session.is_reply_suppressed());
}
