//! WAIT and WAITAOF: a client waits until enough replicas, or disks, have its writes.

use std::time::Duration;

use engine::{Context, UnblockReason};
use process::time;
use replication::wait::{AppendOnlyOffError, CopyCount, RequiredCopies};
use resp::{Args, Writer};

use super::ShellResult;
use crate::connection::{Connection, WaitOutcome};
use crate::replication::Replication;
use crate::replication::copy_waiters::WaitStart;
use crate::server::Server;

/// The parsed arguments of WAIT or WAITAOF: the required copies and the timeout. Without a timeout the client waits
/// forever. The error is the reply text.
pub(super) type WaitRequest = Result<(RequiredCopies, Option<Duration>), &'static str>;

/// Waits until there are enough copies or the timeout expires, then replies with the number of copies.
pub(super) async fn run_wait(connection: &mut Connection, request: WaitRequest) {
    let outcome = match request {
        Ok((wanted, timeout)) => {
            wait_for_copies(connection, wanted, timeout).await.map(|copies| (wanted, copies))
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok((wanted, copies)) => write_copies(&mut connection.reply(), wanted, copies),
        Err(error) => connection.reply().error(error),
    }
}

/// Replies with the current number of copies, for transactions and scripts, which cannot wait.
pub(super) fn reply_current_copies(
    server: &Server,
    context: &mut Context<'_>,
    request: WaitRequest,
) -> ShellResult {
    let (wanted, _) = request?;
    let copies = server
        .replication
        .count_copies(context.session.last_write(), wanted)
        .map_err(append_only_off_error)?;
    write_copies(&mut context.reply, wanted, copies);
    Ok(())
}

/// Parses WAIT numreplicas timeout.
pub(super) fn parse_wait(replication: &Replication, args: Args<'_>) -> WaitRequest {
    if replication.is_replica() {
        return Err("ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 \
                    if a replica is configured to be writable (which is not the default) writes to replicas \
                    are just local and are not propagated.");
    }
    let by = resp::parse_i64(&args[1]).ok_or("ERR value is not an integer or out of range")?;
    let by = usize::try_from(by).unwrap_or(0);
    Ok((RequiredCopies::Acknowledged { replica_count: by }, parse_timeout(&args[2])?))
}

/// Parses WAITAOF numlocal numreplicas timeout.
pub(super) fn parse_waitaof(replication: &Replication, args: Args<'_>) -> WaitRequest {
    let local = resp::parse_i64(&args[1]).ok_or("ERR value is not an integer or out of range")?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1");
    }
    let at = resp::parse_i64(&args[2]).and_then(|number| usize::try_from(number).ok());
    let at = at.ok_or("ERR value is out of range, must be positive")?;
    let timeout = parse_timeout(&args[3])?;
    if replication.is_replica() {
        return Err(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas \
                    are just local and are not propagated.",
        );
    }
    Ok((RequiredCopies::Synced { requires_local_file: local > 0, replica_count: at }, timeout))
}

fn parse_timeout(text: &[u8]) -> Result<Option<Duration>, &'static str> {
    let timeout = resp::parse_i64(text).ok_or("ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    let now = u64::try_from(time::now().0).unwrap_or(0);
    if timeout > i64::MAX.unsigned_abs() - now {
        return Err("ERR timeout is out of range");
    }
    Ok((timeout > 0).then(|| Duration::from_millis(timeout)))
}

async fn wait_for_copies(
    connection: &mut Connection,
    required: RequiredCopies,
    timeout: Option<Duration>,
) -> Result<CopyCount, &'static str> {
    let server = connection.server.clone();
    let replication = &server.replication;
    let offset = connection.session.last_write();
    let (token, woken) = match replication.start_waiting(offset, required) {
        WaitStart::Finished(copies) => return copies.map_err(append_only_off_error),
        WaitStart::Waiting(token, woken) => (token, woken),
    };
    let in_time = async {
        match timeout {
            Some(timeout) => tokio::time::timeout(timeout, woken).await.ok().and_then(Result::ok),
            None => woken.await.ok(),
        }
    };
    connection.session.client().set_blocked(true);
    if replication.is_replica() {
        // The role may have changed after the request. In that case this client may have missed the event that ended
        // all waits, so it is unblocked here.
        connection.session.client().unblock(UnblockReason::RoleChanged);
    }
    let waited = connection.wait(in_time).await;
    replication.remove_waiter(token, offset);
    let how = match waited {
        WaitOutcome::Done(Some(copies)) => return copies.map_err(append_only_off_error),
        WaitOutcome::Done(None) | WaitOutcome::Disconnected => UnblockReason::Timeout,
        WaitOutcome::Unblocked(how) => how,
    };
    if how == UnblockReason::RoleChanged {
        connection.session.close_after_reply();
    }
    match how.error() {
        Some(error) => Err(error),
        None => replication.count_copies(offset, required).map_err(append_only_off_error),
    }
}

fn append_only_off_error(_: AppendOnlyOffError) -> &'static str {
    "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."
}

fn write_copies(reply: &mut Writer<'_>, required: RequiredCopies, copies: CopyCount) {
    let replicas = copies.replica_count as i64;
    match required {
        RequiredCopies::Acknowledged { .. } => reply.integer(replicas),
        RequiredCopies::Synced { .. } => {
            reply.array(2);
            reply.integer(i64::from(copies.is_on_local_disk));
            reply.integer(replicas);
        }
    }
}
