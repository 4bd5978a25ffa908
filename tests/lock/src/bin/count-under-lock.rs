//! One process of the counting tests: `count-under-lock ADDRESS FILE TASKS REPLICAS`.
//!
//! Its tasks increment the number in the file under a lock until standard input ends. The process prints `+` and the
//! new value for each successful increment, and `!` with a reason if two owners held the lock at once: the file
//! rejected a token although this process held a valid lease.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use lock_tests::FencedFile;
use redoubt_lock::{Locks, Options};

const LEASE_DURATION: Duration = Duration::from_secs(4);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, file, tasks, replicas] = arguments.as_slice() else {
        anyhow::bail!("ADDRESS FILE TASKS REPLICAS")
    };
    let (tasks, replicas) = (tasks.parse::<usize>()?, replicas.parse()?);
    let over = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let over = over.clone();
        move || {
            // An error also means that the test is over.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            over.store(true, Ordering::Relaxed);
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let options =
            Options::default().lease(LEASE_DURATION).wait(Duration::from_secs(60)).replicas(replicas);
        let locks = Locks::connect(address).await?.with(options);
        let tasks: Vec<_> = (0..tasks)
            .map(|_| tokio::spawn(increment_until_end(locks.clone(), file.clone(), over.clone())))
            .collect();
        for task in tasks {
            task.await??;
        }
        locks.wait_for_releases().await;
        Ok(())
    })
}

async fn increment_until_end(locks: Locks, file: String, is_over: Arc<AtomicBool>) -> Result<()> {
    let mut resource = FencedFile::open(Path::new(&file))?;
    while !is_over.load(Ordering::Relaxed) {
        let guard = locks.lock("counter").acquire().await.context("acquiring")?;
        let token = guard.token();
        let read = resource.read(token)?;
        // The pause gives other owners time to interfere, if they were admitted.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let written = match read {
            Ok(value) if guard.is_held() => resource.write(token, value + 1)?,
            Ok(_) => continue,
            Err(refused) => Err(refused),
        };
        match written {
            Ok(value) => print_line(&format!("+{value}"))?,
            Err(refused) if guard.is_held() => {
                print_line(&format!("!{token} was refused for {}", refused.newest_token))?;
            }
            Err(_) => {}
        }
        // The lock may be lost by now; the tokens protect the file.
        let _ = guard.release().await;
    }
    Ok(())
}

/// Prints a line in a single write, because this process may be killed at any time.
fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}
