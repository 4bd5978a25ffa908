//! Runs the examples of crates/lock against real servers.

#[allow(missing_docs, clippy::missing_errors_doc, unreachable_pub)]
#[path = "../../../crates/lock/examples/resource.rs"]
mod resource;
#[allow(missing_docs, clippy::missing_errors_doc, unreachable_pub)]
#[path = "../../../crates/lock/examples/shop.rs"]
mod shop;

use std::time::{Duration, Instant};

use harness::{Node, Program};
use redoubt_lock::{Locks, Options};
use resource::{FencedFile, StaleToken};

#[tokio::test(flavor = "multi_thread")]
async fn shop_sells_its_stock_to_a_thousand_buyers_without_duplicates() {
    let node = Node::start(&Program::redoubt(), "");
    let began = Instant::now();
    let (happy, ledger) = shop::open_shop(&format!("redis://{}", node.address()), 100, 1000).await.unwrap();
    let mut buyers = ledger.buyers.clone();
    buyers.sort_unstable();
    buyers.dedup();
    assert_eq!((happy, ledger.stock, ledger.buyers.len(), buyers.len()), (100, 0, 100, 100));
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_rejects_a_holder_that_slept_through_its_lease() {
    let node = Node::start(&Program::redoubt(), "");
    let locks = Locks::connect(&format!("redis://{}", node.address())).await.unwrap();
    let mut resource = FencedFile::open(&node.folder().join("resource")).unwrap();
    let short = Options::default().lease(Duration::from_millis(300)).watchdog(false);
    let slow = locks.lock("r").with(short).acquire().await.unwrap();
    assert_eq!(resource.read(slow.token()).unwrap(), Ok(0));
    let quick = locks.lock("r").acquire().await.unwrap();
    assert_eq!(resource.write(quick.token(), 7).unwrap(), Ok(7));
    assert_eq!(resource.write(slow.token(), 1).unwrap(), Err(StaleToken { newest_token: quick.token() }));
    assert_eq!(resource.read(quick.token()).unwrap(), Ok(7));
}
