//! How features are run: one after another, then all at once with a master killed in their middle.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::timeout;

use crate::middle::Event;
use crate::table::Table;
use crate::{Attempt, Deployment, Feature, Mode, Outcome};

/// How long a feature may take.
const BOUND: Duration = Duration::from_secs(60);
/// How long the kill waits for those that are not in their middle yet.
const BOUND_BEFORE_KILL: Duration = Duration::from_secs(20);

/// A death is the same in both.
const NEWEST_PROTOCOL: u8 = 3;

/// A feature and the protocol in which it is tried.
type Case = (u8, Feature);

/// Goes through all features of a library in this mode.
///
/// # Panics
/// If one fails.
pub fn tell_all(
    client: &'static str,
    mode: Mode,
    protocol: u8,
    perform: &impl AsyncFn(&Attempt, Feature) -> Outcome,
) {
    // A group that speaks TLS speaks nothing else to clients: that one has a test of its own.
    let tls = mode != Mode::Sentinel;
    let features = Feature::ALL.into_iter().filter(|&feature| tls || feature != Feature::Tls);
    let cases: Vec<Case> = features.map(|feature| (protocol, feature)).collect();
    tell(client, Deployment::start(mode, tls), &cases, perform);
}

/// Goes through TLS with sentinels, in both protocols.
///
/// # Panics
/// If it fails.
pub fn tell_of_tls_with_sentinels(
    client: &'static str,
    perform: &impl AsyncFn(&Attempt, Feature) -> Outcome,
) {
    let cases = [2, 3].map(|protocol| (protocol, Feature::Tls));
    tell(client, Deployment::start(Mode::Sentinel, true), &cases, perform);
}

fn tell(
    client: &'static str,
    mut place: Deployment,
    cases: &[Case],
    perform: &impl AsyncFn(&Attempt, Feature) -> Outcome,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut table = Table::new(client);
    runtime.block_on(async {
        one_by_one(&place, &mut table, cases, perform).await;
        let newest = cases.iter().any(|(protocol, _)| *protocol == NEWEST_PROTOCOL);
        if newest && place.at.mode != Mode::Standalone {
            with_a_kill(&mut place, &mut table, cases, perform).await;
        }
    });
    // A feature that hangs has its cell already; the others do not wait for it.
    runtime.shutdown_background();
    table.finish();
}

async fn one_by_one(
    place: &Deployment,
    table: &mut Table,
    cases: &[Case],
    perform: &impl AsyncFn(&Attempt, Feature) -> Outcome,
) {
    for &(protocol, feature) in cases {
        let attempt = Attempt::new(place.at.clone(), protocol, None);
        let outcome = bounded(perform(&attempt, feature)).await;
        table.note(place.at.mode.name(), protocol, feature, outcome);
    }
}

async fn with_a_kill(
    place: &mut Deployment,
    table: &mut Table,
    cases: &[Case],
    perform: &impl AsyncFn(&Attempt, Feature) -> Outcome,
) {
    let cases: Vec<Case> = cases
        .iter()
        .copied()
        .filter(|(protocol, feature)| *protocol == NEWEST_PROTOCOL && feature.meets_death())
        .collect();
    let (mut event, middles) = Event::amid(cases.len());
    let at = place.at.clone();
    let attempts = cases.iter().zip(middles).map(async |(&(protocol, feature), middle)| {
        let attempt = Attempt::new(at.clone(), protocol, Some(middle));
        bounded(perform(&attempt, feature)).await
    });
    let killing = async {
        // One that hangs before its middle is told of by its own cell.
        let _ = timeout(BOUND_BEFORE_KILL, event.all_there()).await;
        let number = place.kill_master();
        event.end();
        number
    };
    let (outcomes, killed) = join(join_all(attempts), killing).await;
    place.restart(killed);
    for ((protocol, feature), outcome) in cases.into_iter().zip(outcomes) {
        table.note(at.mode.name_with_kill(), protocol, feature, outcome);
    }
}

async fn bounded(feature: impl Future<Output = Outcome>) -> Outcome {
    timeout(BOUND, feature).await?
}
