//! A shop with several sales counters that never sells an article twice.
//!
//! The stock is a plain record that is read and written back, as through a web service without transactions. Two
//! concurrent sales could sell the same article, so each sale holds the article's lock. (Where a single command such as
//! DECR, or a script, can do the whole sale on the server, no lock is needed.)
//!
//! Run with a server's address: `cargo run -p redoubt-lock --example shop redis://127.0.0.1:6379`
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use redoubt_lock::{Error, Locks};

/// The number of articles left, and the buyers of the others. The ledger itself is not protected from concurrent
/// changes.
#[derive(Debug, Default, Clone)]
pub struct SalesLedger {
    /// Number of articles left.
    pub stock: u32,
    /// The buyers of the sold articles, in the order of the sales.
    pub buyers: Vec<u32>,
}

/// A service that reads and replaces the whole ledger.
#[derive(Debug, Clone, Default)]
pub struct ShopService(Arc<Mutex<SalesLedger>>);

impl ShopService {
    /// Returns a copy of the whole ledger.
    pub async fn read(&self) -> SalesLedger {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the whole ledger, including changes that others made since it was read.
    pub async fn write(&self, ledger: SalesLedger) {
        tokio::task::yield_now().await;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ledger;
    }
}

/// Sells one article to this buyer. Returns false if none is left.
///
/// # Errors
/// The lock cannot be acquired.
pub async fn buy_item(locks: &Locks, service: &ShopService, buyer: u32) -> Result<bool, Error> {
    let guard = locks.lock("article:7").acquire().await?;
    let mut ledger = service.read().await;
    let sold = ledger.stock > 0;
    if sold {
        ledger.stock -= 1;
        ledger.buyers.push(buyer);
        service.write(ledger).await;
    }
    guard.release().await?;
    Ok(sold)
}

/// Runs the shop with four counters, each with its own connections, and all buyers at once. Returns the number of
/// successful buyers and the final ledger.
///
/// # Errors
/// The lock cannot be acquired, or the server cannot be reached.
pub async fn open_shop(address: &str, stock: u32, buyers: u32) -> Result<(usize, SalesLedger), Error> {
    let service = ShopService::default();
    service.write(SalesLedger { stock, buyers: Vec::new() }).await;
    let mut counters = Vec::new();
    for _ in 0..4 {
        counters.push(Locks::connect(address).await?);
    }
    let visits: Vec<_> = (0..buyers)
        .map(|buyer| {
            let (locks, service) = (counters[buyer as usize % counters.len()].clone(), service.clone());
            tokio::spawn(async move { buy_item(&locks, &service, buyer).await })
        })
        .collect();
    let mut happy = 0;
    for visit in visits {
        if let Ok(bought) = visit.await {
            happy += usize::from(bought?);
        }
    }
    Ok((happy, service.read().await))
}

#[allow(dead_code)]
#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let (happy, ledger) = open_shop(&address, 100, 1000).await?;
    println!("{happy} buyers have one of {} articles sold; {} are left", ledger.buyers.len(), ledger.stock);
    Ok(())
}
